"""Calls that repeat an earlier one: started again with their own tensors, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import flashasc
from flashasc import _decode_ops, _ops, _repeat, _state_ops, _states, _target
from flashasc._problem import Extras
from flashasc._repeat import Launch, Memo
from flashasc._states import attention_state, finalize_state, merge_states
from flashasc._validate import Arguments, validate_attention
from flashasc.testing import Case, normal
from tests.attention.routes import Route

CASE = Case(B=2, Hq=4, Hk=2, Sq=3, Sk=40, D=32, dtype=torch.float16)


MEMOS = (
    (import_module("flashasc.attention"), "_repeats"),
    (import_module("flashasc.decoding"), "_repeats"),
    (import_module("flashasc.decoding"), "_right"),
    (_ops, "_known"),
    (_decode_ops, "_known"),
    (_decode_ops, "_known_appends"),
    (_states, "_known"),
    (_state_ops, "known_states"),
    (_state_ops, "_known_merges"),
    (_state_ops, "_known_outputs"),
)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in MEMOS:
        monkeypatch.setattr(module, name, Memo())


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


@pytest.fixture
def repeats(kernel_route: Route, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are started as repeats, noted as they are.

    Natively launches are recorded here: the package records those on NVIDIA GPUs alone.
    """
    started: list[str] = []
    start = Launch.__call__

    def note(self: Launch, tensors: dict[str, Tensor]) -> None:
        started.append("kernel")
        start(self, tensors)

    monkeypatch.setattr(Launch, "__call__", note)
    if kernel_route.native:
        from flashasc import native
        from flashasc.kernels import launch

        run = native.launch

        def recorded(kernel: Any, grid: Any, args: Any, constants: Any, **where: Any) -> None:
            run(kernel, grid, args, constants, **where)
            names = list(args)

            def again(*values: Any) -> None:
                run(kernel, grid, dict(zip(names, values, strict=True)), constants, **where)

            _repeat.record(lambda: Launch(again, [args[name] for name in names], names))

        monkeypatch.setattr("flashasc.native.launch", recorded)
        monkeypatch.setattr(launch, "record", lambda make: None)
    return started


def inputs(route: Route, seed: int, case: Case = CASE) -> tuple[Tensor, Tensor, Tensor]:
    return normal(case, device=route.device, seed=seed)


def lengths(route: Route, *values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=route.device)


OPTIONS: dict[str, Callable[[Route, int], dict[str, Any]]] = {
    "none": lambda route, seed: {},
    "lse": lambda route, seed: {"return_lse": True},
    "causal, BSND": lambda route, seed: {"causal": True, "layout": "BSND"},
    "mask": lambda route, seed: {"mask": torch.rand(3, 40, device=route.device) < 0.5},
    "bias": lambda route, seed: {"bias": torch.randn(4, 1, 40, device=route.device)},
    "float64 slopes": lambda route, seed: {
        "alibi_slopes": torch.rand(4, device=route.device).double()
    },
    "sinks": lambda route, seed: {"sinks": torch.randn(4, device=route.device)},
    "lengths": lambda route, seed: {"kv_lens": lengths(route, 40 - seed, seed)},
    "strided lengths": lambda route, seed: {"kv_lens": lengths(route, 40 - seed, 0, seed, 0)[::2]},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_other_numbers_give_what_a_first_call_gives(
    kernel_route: Route, repeats: list[str], options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(seed: int) -> tuple[Tensor, ...]:
        q, k, v = inputs(kernel_route, seed)
        torch.manual_seed(seed)
        kwargs = options(kernel_route, seed)
        if kwargs.get("layout") == "BSND":
            q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        with torch.no_grad():
            found = kernel_route(q, k, v, **kwargs)
        return found if isinstance(found, tuple) else (found,)

    call(1)
    assert not repeats
    later = call(2)
    copied = options in (OPTIONS["float64 slopes"], OPTIONS["strided lengths"])
    assert bool(repeats) != copied, "only what reads its own tensors is repeated"
    forget(monkeypatch)
    for a, b in zip(later, call(2), strict=True):
        assert torch.equal(a, b)
    assert not any(torch.equal(a, b) for a, b in zip(later, call(1), strict=True))


def test_packed_lengths(kernel_route: Route, repeats: list[str]) -> None:
    """Announced, they are the device's business; read from there, they are read each time."""

    def call(ends: Tensor, **longest: int) -> Tensor:
        torch.manual_seed(0)
        q, k, v = (torch.randn(50, 2, 32, device=kernel_route.device).half() for _ in range(3))
        packed = {"layout": "TND", "cu_seqlens_q": ends, "cu_seqlens_k": ends, "causal": True}
        with torch.no_grad():
            return kernel_route(q, k, v, **packed, **longest)

    ends = [lengths(kernel_route, 0, 2, 50), lengths(kernel_route, 0, 31, 45)]
    expected = [call(x) for x in ends]
    assert not repeats
    longest = {"max_seqlen_q": 48, "max_seqlen_k": 48}
    for x, y in zip(ends, expected, strict=True):
        assert torch.equal(call(x, **longest), y)
    assert repeats
    assert not expected[1][45:].any(), "tokens of no sequence"


@pytest.mark.parametrize(
    "change",
    [
        lambda q: q[:, :, :2],
        lambda q: q.transpose(1, 2).contiguous().transpose(1, 2),
        lambda q: torch.cat([q.flatten(), q.flatten()[:1]])[1:].view(q.shape),
    ],
    ids=["shape", "strides", "alignment"],
)
def test_another_form_is_another_call(
    kernel_route: Route, repeats: list[str], change: Callable[[Tensor], Tensor]
) -> None:
    q, k, v = inputs(kernel_route, 1)
    with torch.no_grad():
        kernel_route(q, k, v)
        other = change(q)
        found = kernel_route(other, k, v)
        assert not repeats
        assert torch.equal(found, kernel_route(other.contiguous(), k, v))


class Window(NamedTuple):
    left: Any
    right: Any


class AsGoodAs:
    """Equal to something else, as far as a dictionary is concerned."""

    def __init__(self, other: object) -> None:
        self.other = other

    def __eq__(self, other: object) -> bool:
        return self.other == other

    def __hash__(self) -> int:
        return hash(self.other)


def test_wrong_arguments_stay_wrong(kernel_route: Route, repeats: list[str]) -> None:
    """1 == True, but is none."""
    q, k, v = inputs(kernel_route, 1)
    with torch.no_grad():
        kernel_route(q, k, v, causal=True, window=(1, 0))
        with pytest.raises(TypeError, match="causal"):
            kernel_route(q, k, v, causal=1, window=(1, 0))
        with pytest.raises(TypeError, match="window"):
            kernel_route(q, k, v, causal=True, window=(True, False))
        with pytest.raises(TypeError, match="window"):
            kernel_route(q, k, v, causal=True, window=Window(True, False))
        with pytest.raises(TypeError, match="layout"):
            kernel_route(q, k, v, causal=True, window=(1, 0), layout=AsGoodAs("BNSD"))
        with pytest.raises(TypeError, match="scale"):
            kernel_route(q, k, v, scale=torch.ones(()))
        with pytest.raises((TypeError, ValueError), match="window"):
            kernel_route(q, k, v, window=[[1], 0])
    assert not repeats


def test_gradients_are_asked_for_again(kernel_route: Route, repeats: list[str]) -> None:
    q, k, v = inputs(kernel_route, 1)
    kernel_route(q, k, v)
    kernel_route(q, k, v)
    assert repeats
    q.requires_grad_()
    kernel_route(q, k, v).sum().backward()
    assert q.grad is not None and q.grad.any()


def test_whoever_listens_hears_the_operator(kernel_route: Route, repeats: list[str]) -> None:
    """A mode, a profiler, autocast and a trace see a repeated call as they saw the first."""
    heard: list[str] = []

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            heard.append(str(func))
            return func(*args, **(kwargs or {}))

    q, k, v = inputs(kernel_route, 1)
    with torch.no_grad():
        for _ in range(2):
            kernel_route(q, k, v)
        with Listen():
            kernel_route(q, k, v)
        assert any("attention_fwd" in name for name in heard)
        with torch.profiler.profile() as profile:
            kernel_route(q, k, v)
        assert "flashasc::attention_fwd" in {event.key for event in profile.key_averages()}
        with torch.autocast(q.device.type, torch.bfloat16):
            assert kernel_route(q, k, v).dtype == torch.bfloat16
        compiled = torch.compile(kernel_route.__call__, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(q, k, v), kernel_route(q, k, v))


def test_a_default_device_is_no_listener(kernel_route: Route, repeats: list[str]) -> None:
    q, k, v = inputs(kernel_route, 1)
    with torch.no_grad(), torch.device("meta"):
        first, second = kernel_route(q, k, v), kernel_route(q, k, v)
    assert repeats
    assert torch.equal(first, second)


def test_decoding(kernel_route: Route, repeats: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A second token, and a call that fails: as if nothing had been known."""
    _, k, v = inputs(kernel_route, 1)
    outs = []
    for known in (True, False):
        cache = flashasc.KVCache(k.clone(), v.clone(), lengths(kernel_route, 17, 5))
        for step in range(3):
            new_q, new_k, new_v = inputs(kernel_route, step, CASE)
            token = (new_q[:, :, :1], new_k[:, :, :1], new_v[:, :, :1])
            if not known:
                forget(monkeypatch)
            with torch.no_grad():
                out = flashasc.decode(
                    token[0], cache, k=token[1], v=token[2], impl=kernel_route.impl
                )
                again = flashasc.decode(token[0], cache, impl=kernel_route.impl)
            assert torch.equal(out, again)
            outs.append(out)
        outs += [cache.k, cache.lens]
        with torch.no_grad(), pytest.raises(ValueError, match="together"):
            flashasc.decode(token[0], cache, k=token[1], impl=kernel_route.impl)
        assert cache.lens.tolist() == [20, 8]
    assert repeats
    half = len(outs) // 2
    for a, b in zip(outs[:half], outs[half:], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("precision", ["standard", "compensated"])
def test_states(
    kernel_route: Route, repeats: list[str], monkeypatch: pytest.MonkeyPatch, precision: Any
) -> None:
    """Computed, joined and finished: four kernels, whoever listens, as if nothing were known."""

    def call(seed: int) -> tuple[Tensor, ...]:
        q, k, v = inputs(kernel_route, seed)
        sinks = q[0, :, 0, 0].contiguous()
        problem = validate_attention(Arguments(q, k, v, precision=precision, sinks=sinks))
        problem = replace(problem, Sk=20, has_sinks=False)
        halves = [
            attention_state(
                q, k[:, :, part], v[:, :, part], problem, Extras(), impl=kernel_route.impl
            )
            for part in (slice(20), slice(20, 40))
        ]
        joined = merge_states(*halves)
        return (halves[0].rows, halves[0].acc, *finalize_state(joined, sinks, torch.float16))

    with torch.no_grad():
        call(1)
        repeats.clear()
        later = call(2)
        assert len(repeats) == 4
        with torch.autocast(later[0].device.type, torch.bfloat16):
            heard = call(2)
        assert len(repeats) == 8
        forget(monkeypatch)
        for known, listened, new in zip(later, heard, call(2), strict=True):
            assert torch.equal(known, new)
            assert torch.equal(listened, new)
        assert not any(torch.equal(a, b) for a, b in zip(later, call(1), strict=True))


def test_a_memo_forgets_the_oldest() -> None:
    memo: Memo[int] = Memo()
    for key in range(_repeat._LIMIT + 10):
        memo.keep((key,), key)
    assert memo.get((9,)) is None
    assert memo.get((10,)) == 10
    assert memo.get([1]) is None, "what cannot be hashed was never kept"
    memo.keep([1], 1)
    memo.keep((11,), 12)
    assert memo.get((10,)) == 10, "what is not kept takes nothing's place"


def test_a_card_is_made_the_current_one_only_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton launches on the current one, whichever the tensors are on."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    elsewhere = _target.current(torch.device("cuda:0"))
    assert isinstance(elsewhere, torch.cuda.device) and elsewhere.idx == 0
    for place in ("cuda:1", "cpu"):
        with _target.current(torch.device(place)):
            assert torch.cuda.current_device() == 1
        assert not isinstance(_target.current(torch.device(place)), torch.cuda.device)

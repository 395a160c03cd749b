"""Gradients under every option, of q, k and v and of the options themselves."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from flashasc.reference import packed as packed_reference
from flashasc.testing import Case, eager_attention, error_budget, normal, poisoned_memory
from tests.attention.option_cases import ALONE, BASE, PACKED, option, packed, together
from tests.attention.routes import Route
from tests.attention.test_memory import LargestTensor
from tests.cases_table import DTYPES

TINY = Case(B=2, Hq=2, Hk=1, Sq=4, Sk=5, D=3, Dv=2, dtype=torch.float64)
LEARNED = ("bias", "alibi_slopes", "sinks")


def split(options: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Names of the options that have gradients; and the others."""
    learned = [name for name in LEARNED if name in options]
    return learned, {name: value for name, value in options.items() if name not in learned}


def finite_lse(result: Any) -> tuple[Tensor, Tensor]:
    """A row that saw nothing has no number for a finite difference to be taken of."""
    out, lse = result
    return out, torch.where(lse == -math.inf, 0.0, lse)


def gradcheck(inputs: Any, options: dict[str, Any]) -> None:
    learned, fixed = split(options)
    leaves = [*inputs, *(options[name].double() for name in learned)]

    def run(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(learned, more, strict=True))
        return finite_lse(flashasc.attention(q, k, v, return_lse=True, **fixed, **named))

    assert torch.autograd.gradcheck(run, [x.detach().requires_grad_() for x in leaves])


ALIGNED = ({}, {"causal": True}, {"causal": True, "causal_align": "top_left"})


@pytest.mark.parametrize("aligned", ALIGNED, ids=str)
@pytest.mark.parametrize("name", [n for n in ALONE if n != "bias of -inf"])
def test_gradcheck(name: str, aligned: dict[str, Any]) -> None:
    case = TINY.but(layout="BSND" if aligned else "BNSD")
    options = option(name, case)
    if "window" in options:
        options = {"window": tuple(None if side is None else 1 for side in options["window"])}
    gradcheck(normal(case), {"layout": case.layout, **aligned, **options})


def test_gradcheck_of_everything() -> None:
    names = ["window", "softcap", "mask", "bias of heads", "alibi_slopes", "sinks", "kv_lens"]
    gradcheck(normal(TINY), {"causal": True, **together(names, TINY, 1)})


@pytest.mark.parametrize("name", [*PACKED, None])
@pytest.mark.parametrize("on_host", [True, False], ids=["host", "device"])
def test_gradcheck_packed(monkeypatch: pytest.MonkeyPatch, name: str | None, on_host: bool) -> None:
    monkeypatch.setattr(packed_reference, "_on_host", lambda device: on_host)
    case = TINY.but(B=3)
    inputs, options = packed(case, [3, 0, 2], [2, 2, 4])
    gradcheck(inputs, {**options, "causal": True, **(option(name, case) if name else {})})


def gradients(run: Any, inputs: Any, options: dict[str, Any], seed: int = 3) -> list[Tensor]:
    learned, fixed = split(options)
    leaves = [x.detach().requires_grad_() for x in (*inputs, *(options[n] for n in learned))]
    named = dict(zip(learned, leaves[3:], strict=True))
    out, lse = run(*leaves[:3], **fixed, **named)
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(x.shape, generator=generator).to(x) for x in (out, lse)]
    loss = (out * weights[0]).sum() + torch.where(lse == -math.inf, 0.0, lse * weights[1]).sum()
    return list(torch.autograd.grad(loss, leaves))


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*ALONE, "packed"])
def test_against_float64(options_route: Route, name: str, dtype: torch.dtype) -> None:
    """Error within the budget of eager autograd in the same dtype."""
    case = BASE.but(dtype=dtype, Dv=24, causal=True)
    device = options_route.device
    if name == "packed":
        inputs, options = packed(case, [70, 0, 33], [20, 9, 90], device=device)
        options |= {"sinks": option("sinks", case, device=device)["sinks"], "causal": True}
        options |= option("alibi_slopes of each sequence", case, device=device)
    else:
        inputs, options = normal(case, device=device), case.options
        options = {**options, **option(name, case, device=device)}

    def route(*args: Any, **more: Any) -> Any:
        return options_route(*args, return_lse=True, **more)

    found = gradients(route, inputs, options)
    plain = gradients(eager_attention, inputs, options)
    # the order in which a library adds is a matter of luck: the worse of two counts
    ordered = plain
    if dtype == torch.float32:
        in_order = functools.partial(eager_attention, in_order=True)
        ordered = gradients(in_order, inputs, options)
    wide = {n: x.double() if n in LEARNED else x for n, x in options.items()}
    exact = gradients(eager_attention, [x.double() for x in inputs], wide)
    names = ["q", "k", "v", *split(options)[0]]
    for which, a, b, c, e in zip(names, found, plain, ordered, exact, strict=True):
        assert a.shape == e.shape
        error = (a.double() - e).abs().max().item()
        budget = max(error_budget(e, x, a.dtype) for x in (b, c))
        assert error <= budget, f"gradient of {which}"


@pytest.mark.parametrize(
    "need", [n for n in itertools.product((0, 1), repeat=3) if any(n)], ids=str
)
def test_only_for_the_options_that_ask(options_route: Route, need: tuple[int, ...]) -> None:
    case = BASE.but(Sq=9, Sk=11)
    q, k, v = normal(case, device=options_route.device)
    options = together(list(LEARNED), case, device=options_route.device)
    for name, asks in zip(LEARNED, need, strict=True):
        options[name].requires_grad_(bool(asks))
    all_asking = {name: x.detach().requires_grad_() for name, x in options.items()}
    options_route(q, k, v, **options).square().sum().backward()
    options_route(q, k, v, **all_asking).square().sum().backward()
    assert q.grad is None
    for name, asks in zip(LEARNED, need, strict=True):
        assert (options[name].grad is not None) == bool(asks)
        if asks:
            assert options[name].grad.any()
            torch.testing.assert_close(options[name].grad, all_asking[name].grad)


@pytest.mark.parametrize(
    "shape", [(), (1,), (70,), (90, 1), (4, 1, 70), (3, 1, 1, 1), (1, 4, 90, 70)], ids=str
)
def test_a_bias_of_any_shape(options_route: Route, shape: tuple[int, ...]) -> None:
    """Its gradient has its own shape, summed over all that it stood for."""
    q, k, v = normal(BASE, device=options_route.device)
    bias = torch.randn(shape, device=q.device)
    found, exact = (
        gradients(run, inputs, {"bias": b, "causal": True})[3]
        for run, inputs, b in (
            (lambda *a, **o: options_route(*a, return_lse=True, **o), (q, k, v), bias),
            (eager_attention, [x.double() for x in (q, k, v)], bias.double()),
        )
    )
    assert found.shape == bias.shape
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=2e-5)


def test_memory_of_a_broadcast_bias() -> None:
    """Neither its gradient nor the bias is ever as large as all scores."""
    case = Case(B=1, Hq=1, Sq=2048, Sk=8192, D=8)
    q, k, v = normal(case)
    options = {
        "bias": torch.randn(8192, requires_grad=True),
        "mask": torch.rand(2048, 1) > 0.1,
        "kv_lens": torch.tensor([8000]),
        "alibi_slopes": torch.tensor([0.1], requires_grad=True),
        "softcap": 3.0,
        "window": (4000, 5000),
    }
    with LargestTensor() as seen:
        flashasc.attention(q, k, v, **options).sum().backward()
    # a tile of scores in float32
    assert seen.bytes <= 4 * (1 << 20)
    assert options["bias"].grad.shape == (8192,)


@pytest.mark.parametrize("where", ["q", "grad"])
def test_a_blind_row_with_a_sink_passes_nothing_on(options_route: Route, where: str) -> None:
    """Its log-sum-exp is the sink, so its gradient is that of the sink, whatever the row holds."""
    case = Case(Sq=20, Sk=8, D=16, causal=True)
    q, k, v = normal(case, device=options_route.device)
    if where == "q":
        q[:, :, 0] = math.nan
    sinks = torch.zeros(2, device=q.device)
    leaves = [x.requires_grad_() for x in (q, k, v, sinks)]
    out, lse = options_route(*leaves[:3], sinks=sinks, causal=True, return_lse=True)
    grad_out, grad_lse = torch.zeros_like(out), torch.zeros_like(lse)
    grad_out[:, :, 0] = math.nan if where == "grad" else 1.0
    grad_lse[:, :, 0] = 3.0
    *rest, d_sinks = torch.autograd.grad((out, lse), leaves, (grad_out, grad_lse))
    assert not any(g.any() for g in rest)
    assert torch.equal(d_sinks, torch.full_like(d_sinks, 3.0))


@pytest.mark.parametrize("name", ["bias", "alibi_slopes", "sinks"])
def test_dtype_of_an_options_gradient(options_route: Route, name: str) -> None:
    """The option's own, also where that is not q's."""
    case = BASE.but(Sq=9, Sk=11, dtype=torch.bfloat16)
    q, k, v = normal(case, device=options_route.device)
    for dtype in (*DTYPES, torch.float64):
        x = option(name, case, device=options_route.device)[name].to(dtype).requires_grad_()
        options_route(q, k, v, **{name: x}).sum().backward()
        assert x.grad.dtype == dtype
        assert x.grad.any()


def test_gradients_twice_and_over_any_memory(options_route: Route) -> None:
    names = ["window", "softcap", "mask", "bias of heads", "alibi_slopes", "sinks", "kv_lens"]
    options = {"causal": True, **together(names, BASE, 5, options_route.device)}
    inputs = normal(BASE, device=options_route.device)

    def route(*args: Any, **more: Any) -> Any:
        return options_route(*args, return_lse=True, **more)

    first = gradients(route, inputs, options)
    with poisoned_memory():
        second = gradients(route, inputs, options)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

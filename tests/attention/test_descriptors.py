"""Keys and values read by tensor descriptor: when they are, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from flashasc._problem import Extras
from flashasc._repeat import Launch
from flashasc._validate import Arguments, validate_attention
from flashasc.kernels import attention_launch, descriptors
from flashasc.kernels.descriptors import describable
from tests.attention.routes import Route

SHAPE = (2, 3, 40, 16)


@pytest.fixture(autouse=True)
def _few_keys_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "LEAST_KEYS", 1)


def moved(tensor: Tensor) -> Tensor:
    """The same numbers and strides, one number further on in memory."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    copy = room[1:].view(tensor.shape)
    return copy.copy_(tensor)


@pytest.mark.parametrize(
    ("view", "possible"),
    [
        (lambda x: x, True),
        (lambda x: x.transpose(1, 2), True),
        (lambda x: x[:, :, 1:], True),
        (lambda x: x[:1, :1].expand(1, 1, 40, 16), True),
        (moved, False),
        (lambda x: x[..., 1:], False),
        (lambda x: x[..., ::2], False),
        (lambda x: x.mT, False),
        (lambda x: x[:, :1].expand(2, 3, 40, 16), False),
        (lambda x: torch.empty(2, 3, 40, 20, dtype=x.dtype)[..., :16], False),
    ],
)
def test_what_the_hardware_can_address(view: Any, possible: bool) -> None:
    assert describable(view(torch.zeros(SHAPE, dtype=torch.bfloat16))) is possible


def test_a_repeated_launch_describes_the_tensors_it_is_given() -> None:
    seen: list[Any] = []
    old, new = torch.zeros(4), torch.ones(4)
    descriptor = SimpleNamespace(base=old, shape=[4])
    launch = Launch(lambda *values: seen.extend(values), [old, descriptor], ["k_ptr", "k_desc"])
    launch.forget()
    assert launch.values[1].base is None
    launch({"k_ptr": new})
    assert seen[0] is new
    assert seen[1].base is new
    assert seen[1].shape == [4]
    assert launch.values[1].base is None
    assert descriptor.base is old


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each launch got descriptors."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the rows that read by descriptor are Hopper's")
    launches: list[bool] = []
    find = attention_launch.key_descriptors

    def note(*arguments: Any) -> Any:
        found = find(*arguments)
        launches.append(found is not None)
        return found

    monkeypatch.setattr(attention_launch, "key_descriptors", note)
    return launches


def inputs(D: int, dtype: torch.dtype, B: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of 4 heads, keys and values of 2: [B, heads, length, D]."""
    generator = torch.Generator("cuda").manual_seed(D)
    q, k, v = (
        torch.randn(B, heads, length, D, generator=generator, device="cuda").to(dtype)
        for heads in (4, 2, 2)
    )
    return q, k, v


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["standard", "compensated", "high"])
@pytest.mark.parametrize(
    ("D", "dtype"), [(40, torch.float16), (64, torch.bfloat16), (128, torch.bfloat16)]
)
def test_same_bits_as_by_pointers(
    D: int, dtype: torch.dtype, precision: str, used: list[bool]
) -> None:
    q, k, v = inputs(D, dtype, 2, 700)
    options: dict[str, Any] = {"precision": precision, "impl": "triton", "causal": True}
    options["kv_lens"] = torch.tensor([700, 333], device="cuda")
    # nothing beyond a sequence's end may spread
    for x in (k, v):
        x[1, :, 333:] = torch.nan
    by_descriptor = flashasc.attention(q, k, v, **options)
    by_pointer = flashasc.attention(q, moved(k), moved(v), **options)
    assert used == [True, False]
    assert by_descriptor.isfinite().all()
    assert torch.equal(by_descriptor, by_pointer)


@pytest.mark.gpu
def test_packed_sequences(used: list[bool]) -> None:
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in inputs(128, torch.bfloat16, 1, 900))
    bounds = torch.tensor([0, 129, 430, 900], device="cuda", dtype=torch.int32)
    options: dict[str, Any] = {"causal": True, "impl": "triton", "layout": "TND"}
    options |= {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds}
    options |= {"max_seqlen_q": 470, "max_seqlen_k": 470}
    by_descriptor = flashasc.attention(q, k, v, **options)
    assert torch.equal(by_descriptor, flashasc.attention(q, moved(k), moved(v), **options))
    assert used == [True, False]


@pytest.mark.gpu
def test_repeated_calls_read_their_own_tensors(used: list[bool]) -> None:
    q, k, v = inputs(128, torch.bfloat16, 1, 512)
    calls = [(k, v), (v, k), (k, v)]
    outs = [flashasc.attention(q, *pair, impl="triton") for pair in calls]
    expected = flashasc.attention(q, moved(v), moved(k), impl="triton")
    assert torch.equal(outs[0], outs[2])
    assert torch.equal(outs[1], expected)
    assert not torch.equal(outs[0], outs[1])
    # the repeats were not planned again
    assert used == [True, False]


def test_a_product_waited_for_has_the_same_bits(kernel_route: Route) -> None:
    if kernel_route.native:
        pytest.skip("an instruction of NVIDIA's")
    q, k, v = (
        torch.randn(1, 2, 300, 128, device=kernel_route.device).to(torch.bfloat16) for _ in range(3)
    )
    for precision in ("standard", "compensated"):
        options: dict[str, Any] = {"causal": True, "precision": precision}
        problem = validate_attention(Arguments(q, k, v, **options))
        plan = kernel_route.explain(q, k, v, **options)
        found = [torch.empty_like(q) for _ in range(2)]
        for settle, out in zip((False, True), found, strict=True):
            config = replace(plan.config, settle=settle)
            attention_launch.launch_attention_fwd(
                q, k, v, out, None, problem, Extras(), config, plan.target, plan.route
            )
        assert torch.equal(*found)

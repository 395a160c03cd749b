"""`flashasc.scaled_dot_product_attention` against PyTorch's, shape by shape and mask by mask."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import flashasc
from flashasc.testing import error_budget

ours, theirs = flashasc.scaled_dot_product_attention, F.scaled_dot_product_attention


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# [Sq, D], [Sk, D], [Sk, Dv] = [5, 8], [7, 8], [7, 6] behind these sizes
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "usual": ((2, 4), (2, 4), (2, 4)),
    "two dimensions": ((), (), ()),
    "no batch": ((4,), (4,), (4,)),
    "two batch sizes": ((3, 2, 4), (3, 2, 4), (3, 2, 4)),
    "heads of one": ((2, 4), (1, 1), (2, 1)),
    "batch of one": ((1, 4), (2, 4), (1, 4)),
    "fewer dimensions": ((2, 4), (4,), (2, 4)),
    "more dimensions": ((4,), (3, 1, 4), (1, 2, 4)),
    "empty batch": ((0, 4), (0, 4), (0, 4)),
}
GROUPED = {
    "gqa": ((2, 4), (2, 2), (2, 2)),
    "mqa": ((2, 4), (2, 1), (2, 1)),
    "gqa without batch": ((4,), (2,), (2,)),
    "gqa, batch of one": ((2, 4), (1, 2), (2, 2)),
    "gqa, two batch sizes": ((3, 2, 4), (3, 2, 2), (3, 2, 2)),
    "gqa, unlike heads": ((2, 4), (2, 2), (2, 1)),
    "gqa asked for, not used": ((2, 4), (2, 4), (2, 4)),
}


def check(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    found = ours(q, k, v, **options)
    eager = theirs(q, k, v, **options)
    wide = dict(options)
    if wide.get("attn_mask") is not None and wide["attn_mask"].is_floating_point():
        wide["attn_mask"] = wide["attn_mask"].double()
    exact = theirs(q.double(), k.double(), v.double(), **wide)
    assert found.shape == eager.shape and found.dtype == eager.dtype and found.is_contiguous()
    if found.numel():
        # eager goes through a fused kernel or not as it pleases; both err in the last bits
        assert (found - exact).abs().max() <= 2 * error_budget(exact, eager)


@pytest.mark.parametrize("name", SHAPES | GROUPED)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.2}], ids=str)
def test_shapes(name: str, options: dict[str, Any]) -> None:
    sizes = (SHAPES | GROUPED)[name]
    q, k, v = (randn(*s, n, d) for s, n, d in zip(sizes, (5, 7, 7), (8, 8, 6), strict=True))
    check(q, k, v, **options, enable_gqa=name in GROUPED)


LOWER = torch.ones(5, 7, dtype=torch.bool).tril()
MASKS = {
    "bool": LOWER,
    "a row": LOWER[2:3],
    "a column": LOWER[:, :1],
    "each head": randn(4, 5, 7) > 0,
    "each sequence": randn(2, 1, 5, 7) > 0,
    "each sequence's keys": randn(2, 1, 1, 7) > 0,
    "float": randn(5, 7),
    "float of each head": randn(1, 4, 5, 7),
    "minus infinity": torch.zeros(5, 7).masked_fill(~LOWER, -torch.inf),
    "nothing seen": LOWER & (torch.arange(5) != 3)[:, None],
    "nothing seen, float": torch.full((5, 7), -torch.inf),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks(mask: Tensor) -> None:
    q, k, v = randn(2, 4, 5, 8), randn(2, 4, 7, 8), randn(2, 4, 7, 6)
    check(q, k, v, attn_mask=mask)
    check(q[0], k[0], v[0], attn_mask=mask[0] if mask.dim() == 4 else mask)
    if mask.dim() == 4:
        more = mask[None].expand(3, *mask.shape)
        check(*(x.expand(3, *x.shape) for x in (q, k, v)), attn_mask=more)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_masks_of_other_dtypes(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in (randn(2, 4, 5, 8), randn(2, 4, 7, 8), randn(2, 4, 7, 6)))
    check(q, k, v, attn_mask=randn(5, 7).to(dtype))
    check(q, k, v, attn_mask=randn(5, 7) if dtype != torch.float64 else None)


def test_the_signature_is_pytorchs() -> None:
    parameters = inspect.signature(ours).parameters
    # a builtin has no signature; its documentation begins with one
    text = (theirs.__doc__ or "").partition("->")[0]
    for name, parameter in parameters.items():
        default = parameter.default
        assert name in text and (default is parameter.empty or f"{name}={default}" in text), name
    assert text.count(",") + 1 == len(parameters)


def test_gradients_reach_the_mask() -> None:
    tensors = [randn(2, 4, 5, 8), randn(2, 1, 7, 8), randn(2, 1, 7, 6), randn(4, 5, 7)]
    grads = []
    for attend in (ours, theirs):
        q, k, v, mask = (x.clone().requires_grad_() for x in tensors)
        attend(q, k, v, attn_mask=mask).square().sum().backward()
        grads.append([x.grad for x in (q, k, v, mask)])
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_under_autocast() -> None:
    q, k, v = randn(1, 2, 5, 8), randn(1, 2, 7, 8), randn(1, 2, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = ours(q, k, v, randn(5, 7)), theirs(q, k, v, randn(5, 7))
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_compiled_whole() -> None:
    q, k, v = randn(2, 4, 5, 8), randn(2, 2, 7, 8), randn(1, 2, 7, 6)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(q, k, v, LOWER, enable_gqa=True), ours(q, k, v, LOWER, enable_gqa=True)
    )


Q, K, V = randn(2, 4, 5, 8), randn(2, 4, 7, 8), randn(2, 4, 7, 6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"dropout_p": 0.1}, NotImplementedError, "dropout_p=0.1: attention dropout"),
        ({"dropout_p": 1.5}, ValueError, "between 0 and 1"),
        ({"attn_mask": LOWER, "is_causal": True}, ValueError, "exclude each other"),
        ({"attn_mask": LOWER.int()}, TypeError, "attn_mask must be bool, float32"),
        ({"attn_mask": randn(5, 7).double()}, TypeError, "attn_mask must be bool, float32"),
        ({"attn_mask": LOWER.T}, ValueError, r"mask must broadcast to .*\(2, 4, 5, 7\)"),
        ({"attn_mask": LOWER.expand(3, 1, 5, 7)}, ValueError, "mask must broadcast"),
        ({"query": Q[0, 0, 0]}, ValueError, "query must have at least 2 dimensions"),
        ({"key": K[:, :2], "value": V[:, :2]}, ValueError, "enable_gqa=True"),
        ({"key": K[:, :3], "value": V[:, :3], "enable_gqa": True}, ValueError, "multiple of"),
        ({"key": K.half()}, TypeError, "dtype"),
        ({"value": V[..., :3, :]}, ValueError, "same heads and keys"),
        ({"key": None}, TypeError, "key must be a torch.Tensor; got NoneType"),
    ],
)
def test_wrong_calls_say_so(call: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"query": Q, "key": K, "value": V} | call
    with pytest.raises(error, match=message):
        ours(**given)
    if "dropout_p" not in call or call["dropout_p"] > 1:
        # none of them is a call that PyTorch would have computed
        with pytest.raises((RuntimeError, TypeError, ValueError, IndexError)):
            theirs(**given)


@pytest.mark.parametrize(
    "sizes", [(3, 2, 4, 0, 5), (3, 2, 4, 5, 0), (3, 0, 4, 5, 7), (0, 2, 4, 5, 7)]
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_empty_masks_of_five_dimensions(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    *batch, heads, queries, keys = sizes
    q, k = randn(*batch, heads, queries, 8), randn(*batch, heads, keys, 8)
    for shape in (sizes, (*(1 for _ in batch), 1, queries, keys)):
        check(q, k, k, attn_mask=torch.ones(shape, dtype=dtype))

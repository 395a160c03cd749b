"""How right is right: exact attention, error budgets, and the tolerances of this package."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .eager import Options, Result, dense


class Tolerance(NamedTuple):
    """Accept where |actual - expected| <= atol + rtol * |expected|."""

    rtol: float
    atol: float


TOLERANCES = {
    torch.float32: Tolerance(1e-5, 1e-5),
    torch.float16: Tolerance(1e-3, 1e-3),
    torch.bfloat16: Tolerance(5e-3, 5e-3),
}
"""Loose comparison with another library's result, by output dtype; see `assert_accurate` for the
strict one."""


def exact_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Result:
    """Attention of these very inputs in float64, dense.

    Args:
        q, k, v: as for `flashasc.attention`.
        **options: those of `flashasc.attention` that say what is computed, from `layout` to
            `kv_lens`.

    Returns:
        (out, lse): float64. A row that sees no key has out 0 and lse -inf, or its sink. A key that
        no row sees has no influence, whatever it holds.
    """
    return dense(q.double(), k.double(), v.double(), Options(**options))


def eager_attention(
    q: Tensor, k: Tensor, v: Tensor, *, in_order: bool = False, **options: Any
) -> Result:
    """Attention as plain PyTorch computes it in the inputs' own dtype: products, softmax, product.

    Args:
        q, k, v: as for `flashasc.attention`.
        in_order: add up products and weights one by one, in the order of columns and keys, instead
            of leaving the order to the library behind `@`.
        **options: as for `exact_attention`.

    Returns:
        (out, lse) in the inputs' dtype.
    """
    return dense(q, k, v, Options(**options), _product_in_order if in_order else torch.matmul)


def error_budget(
    exact: Tensor, eager: Tensor, out_dtype: torch.dtype | None = None, *, least: float = 0.0
) -> float:
    """The error that a result may have: 2 * (largest error of eager + eps * max|exact|).

    Below the normal range of the result's dtype, where numbers lie evenly apart, max|exact| counts
    as the smallest normal number.

    Args:
        exact: [...] float64.
        eager: [...] what plain PyTorch makes of the same inputs in their own dtype.
        out_dtype: dtype of the result to be judged; None: eager's.
        least: size of the result to be assumed at least.
    """
    if exact.numel() == 0:
        return 0.0
    info = torch.finfo(out_dtype or eager.dtype)
    eager_error = (eager.double() - exact).abs().max().item()
    largest = max(exact.abs().max().item(), least, info.smallest_normal)
    return 2.0 * (eager_error + info.eps * largest)


def assert_accurate(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor | None = None,
    **options: Any,
) -> None:
    """Fail unless a result is within the error budget of its inputs, element by element.

    Args:
        out: the output to be judged, float16, bfloat16, float32 or float64.
        q, k, v: the inputs it came from.
        lse: [B, Hq, Sq] ([Hq, tokens]), natural-log units; judged against float32 arithmetic when
            given.
        **options: as for `exact_attention`.

    Raises:
        AssertionError: the largest error is over the budget (both are in the message), a shape is
            wrong, or the rows that see nothing are not exactly 0 and -inf.
    """
    exact = exact_attention(q, k, v, **options)
    eager = eager_attention(q, k, v, **options)
    budget = error_budget(exact.out, eager.out, out.dtype)
    if q.dtype == torch.float32:
        # the order in which a library adds differs between machines, and how much the largest
        # error of one order tells is a matter of luck: the worse of two orders counts
        ordered = eager_attention(q, k, v, in_order=True, **options).out
        budget = max(budget, error_budget(exact.out, ordered, out.dtype))
    _within("out", out, exact.out, budget)
    if lse is None:
        return
    seen = exact.lse > -math.inf
    assert torch.equal(lse > -math.inf, seen), "lse: -inf not exactly where a row sees no key"
    wide = torch.promote_types(q.dtype, torch.float32)
    if q.dtype != wide:
        eager = eager_attention(q.to(wide), k.to(wide), v.to(wide), **options)
    # a logarithm's error is absolute: one of 4 * eps changes no weight by more than that
    budget = error_budget(exact.lse[seen], eager.lse[seen], lse.dtype, least=4.0)
    assert lse.shape == exact.lse.shape, f"lse: shape {tuple(lse.shape)}"
    _within("lse", lse[seen], exact.lse[seen], budget)


def relative_error(out: Tensor, exact: Tensor) -> float:
    """Norm of the error over the norm of the exact result."""
    return float((out.double() - exact).norm() / exact.norm())


def round_once(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values correctly rounded to `dtype`.

    `Tensor.to` goes from float64 to 16 bits through float32, and rounds twice. Here the step to
    float32 rounds to odd, which keeps the second one right (Boldo, Melquiond, 2008).
    """
    if dtype in (torch.float32, torch.float64):
        return exact.to(dtype)
    single = exact.to(torch.float32)
    inexact = single.double() != exact
    too_large = single.double().abs() > exact.abs()
    truncated = torch.where(too_large, torch.nextafter(single, torch.zeros_like(single)), single)
    odd = (truncated.view(torch.int32) | inexact.to(torch.int32)).view(torch.float32)
    return torch.where(exact.isnan(), single, odd).to(dtype)


def share_correctly_rounded(out: Tensor, exact: Tensor) -> float:
    """Share of the elements of `out` that are the float64 result, correctly rounded.

    Args:
        out: [...] float16, bfloat16 or float32.
        exact: [...] float64.

    Returns:
        Between 0 and 1.
    """
    return float((out == round_once(exact, out.dtype)).double().mean())


def ulps(out: Tensor, exact: Tensor) -> Tensor:
    """How many units in the last place of the exact result each element is off.

    Args:
        out: [...] float16, bfloat16 or float32.
        exact: [...] float64.

    Returns:
        [...] float64.
    """
    info = torch.finfo(out.dtype)
    exponent = exact.abs().clamp(min=info.smallest_normal).frexp().exponent
    unit = torch.ldexp(torch.full_like(exact, info.eps), exponent - 1)
    return (out.double() - exact).abs() / unit


def _product_in_order(a: Tensor, b: Tensor) -> Tensor:
    total = a.new_zeros(*a.shape[:-1], b.shape[-1])
    for i in range(a.shape[-1]):
        total = total + a[..., i, None] * b[..., i, None, :]
    return total


def _within(name: str, actual: Tensor, exact: Tensor, budget: float) -> None:
    assert actual.shape == exact.shape, f"{name}: {tuple(actual.shape)}, not {tuple(exact.shape)}"
    if exact.numel() == 0:
        return
    error = (actual.double() - exact).abs()
    # a NaN error compares false
    good = error <= budget
    if not bool(good.all()):
        worst = torch.where(error.isnan(), math.inf, error).argmax()
        where = tuple(int(i) for i in torch.unravel_index(worst, error.shape))
        raise AssertionError(
            f"{name}: error {error[where].item():.3g} at {where} is over the budget {budget:.3g}: "
            f"got {actual[where].item()!r}, exact {exact[where].item()!r}; "
            f"{int((~good).sum())} of {good.numel()} elements are over it"
        )

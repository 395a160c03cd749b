"""How right is right: exact attention, and the error budgets of this package."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .eager import Options, Result, dense


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

"""Join results of attention to two parts of the keys, where only (out, lse) pairs are at hand."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._problem import Layout, heads_first
from ._validate import validate_merge

__all__ = ["merge_attention_states"]


def merge_attention_states(
    out_a: Tensor,
    lse_a: Tensor,
    out_b: Tensor,
    lse_b: Tensor,
    *,
    layout: Layout = "BNSD",
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention to two disjoint sets of keys together, from its results for each of them.

    Args:
        out_a, out_b: [B, H, S, Dv] ([B, S, H, Dv], [tokens, H, Dv]: see `layout`), float16,
            bfloat16, float32 or float64. Outputs of the same queries.
        lse_a, lse_b: [B, H, S] ([H, tokens]) float32, float64 for float64 outputs. Log-sum-exp of
            each row, natural logarithm; -inf where a row saw no key.
        layout: of the outputs, as for `flashasc.attention`.
        out_dtype: of the output: that of out_a (None) or torch.float32.

    Returns:
        (out, lse): of both sets together, in the layout of the inputs.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it and the way out.

    Sinks may have counted in one of the two, at most. Computed in float32 (float64 for float64),
    differentiable, symmetric in a and b.

    What was rounded before stays rounded. With u the unit roundoff of the outputs' dtype (2**-24
    for float32, 2**-9 for bfloat16) and L the largest size of a log-sum-exp, the result of a merge
    is off by at most about (u + 2**-24 * (L + 4)) * max(abs(out_a), abs(out_b)) beyond the errors
    that its inputs carry, so a chain of n merges by n times that: the error grows with the number
    of parts. This package's own merges (split keys, context parallelism) join unrounded
    states instead, whose error does not. Ask for outputs with out_dtype=torch.float32, and round
    once at the end.
    """
    dtype, working = validate_merge(out_a, lse_a, out_b, lse_b, layout, out_dtype)
    top = torch.maximum(lse_a, lse_b).detach()
    base = torch.where(top.abs() == math.inf, 0.0, top)
    weight_a, weight_b = (lse_a - base).exp(), (lse_b - base).exp()
    total = weight_a + weight_b
    empty = total == 0
    total = torch.where(empty, 1.0, total)
    share_a, share_b = (
        heads_first((weight / total)[..., None], layout) for weight in (weight_a, weight_b)
    )
    out = share_a * out_a.to(working) + share_b * out_b.to(working)
    lse = torch.where(empty, -math.inf, base + total.log())
    return out.to(dtype).contiguous(), lse

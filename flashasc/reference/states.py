"""Raw softmax states: attention to a part of the keys, to be joined with that to others.

    rows  [..., 5, S]        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp
    acc   [..., S, 2, Dv]    acc, acc_comp

The same seven numbers as `blocks.softmax` keeps, with pivots in log2 units where they are whole
numbers, and in natural units otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._problem import AttentionProblem, Extras
from .forward import row_states, ungrouped
from .products import working_dtype
from .scores import Terms, terms_of
from .softmax import Pair, drop_of, finalize, merge, power_of_two


def state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: AttentionProblem,
    extras: Extras,
    terms: Terms | None = None,
) -> tuple[Tensor, Tensor]:
    """Raw states, rows [B, Hq, Sq, 5] and acc [B, Hq, Sq, 2, Dv], in the working dtype.

    Args:
        q, k, v: [B, H, S, D] any strides.
        terms: what joins the scores, where the caller knows better than `extras`.
    """
    working = working_dtype(problem.dtype)
    shape = (problem.B, problem.Hq, problem.Sq)
    rows = q.new_zeros(*shape, 5, dtype=working)
    rows[..., 0] = -math.inf
    acc = q.new_zeros(*shape, 2, problem.Dv, dtype=working)
    if not rows.numel():
        return rows, acc
    for part, found in row_states(q, k, v, problem, terms or terms_of(problem, extras)):
        numbers = (found.pivot, *found.row_sum, *found.lse_sum)
        rows[:, :, part] = ungrouped(torch.stack(numbers, -1), problem)
        acc[:, :, part] = ungrouped(torch.stack(found.acc, -2), problem)
    return rows, acc


def merge_states(
    rows_a: Tensor, acc_a: Tensor, rows_b: Tensor, acc_b: Tensor, whole: bool
) -> tuple[Tensor, Tensor]:
    """Join the states of two disjoint sets of keys; symmetric in a and b, bit for bit.

    Args:
        rows_a, rows_b: [..., 5, S].
        acc_a, acc_b: [..., S, 2, Dv].
        whole: the pivots are whole numbers (fp32 values, and precision "high").

    Returns:
        (rows, acc), contiguous.
    """
    pivot = torch.maximum(rows_a[..., 0, :], rows_b[..., 0, :])
    base = torch.where(pivot == -math.inf, 0.0, pivot)
    rescales = []
    for rows in (rows_a, rows_b):
        down = rows[..., 0, :] - base
        rescales.append(power_of_two(down) if whole else down.exp())
    sums = [
        merge(*(_pair(rows, first, r) for rows, r in zip((rows_a, rows_b), rescales, strict=True)))
        for first in (1, 3)
    ]
    accs = (
        (acc[..., 0, :] * r[..., None], acc[..., 1, :] * r[..., None])
        for acc, r in zip((acc_a, acc_b), rescales, strict=True)
    )
    numbers = (pivot, *sums[0], *sums[1])
    return torch.stack(numbers, -2), torch.stack(merge(*accs), -2)


def finalize_state(
    rows: Tensor,
    acc: Tensor,
    whole: bool,
    lowered: bool,
    separate_lse: bool,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Output [..., S, Dv] and log-sum-exp [..., S] of a finished state.

    Args:
        rows, acc: [..., 5, S] and [..., S, 2, Dv].
        whole: as for `merge_states`.
        lowered: the inputs were float16.
        separate_lse: lse_sum was kept; otherwise the log-sum-exp comes from row_sum.
        sinks: one more logit of each row, broadcasts to [..., S], natural-log units.
    """
    row_sum, lse_sum = ((rows[..., n, :], rows[..., n + 1, :]) for n in (1, 3))
    pair = (acc[..., 0, :], acc[..., 1, :])
    return finalize(
        rows[..., 0, :],
        row_sum,
        lse_sum if separate_lse else row_sum,
        pair,
        sinks,
        whole=whole,
        drop=drop_of(lowered, whole=whole),
    )


def _pair(rows: Tensor, first: int, rescale: Tensor) -> Pair:
    return rows[..., first, :] * rescale, rows[..., first + 1, :] * rescale

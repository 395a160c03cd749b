"""The running softmax of the reference; its counterpart in the kernels is `blocks.softmax`."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from .._problem import AttentionProblem


class State:
    """Running softmax of a tile of query rows."""

    def __init__(self, q_tile: Tensor, problem: AttentionProblem) -> None:
        rows = q_tile.shape[:-1]
        self.dtype = problem.dtype
        # weights of 16 bits are rounded relative to the row maximum; others have a whole-number
        # pivot, so that a rescale is an exact power of two
        self.rounded = problem.dtype.itemsize == 2 and problem.precision != "high"
        self.compensated = problem.precision != "standard"
        self.separate_lse = self.compensated and self.rounded
        self.pivot = q_tile.new_full(rows, -math.inf)
        # (sum, compensation) pairs: of the weights as multiplied, as they were, and of the output
        self.row_sum = self.lse_sum = (q_tile.new_zeros(rows), q_tile.new_zeros(rows))
        out_shape = (*rows, problem.Dv)
        self.acc = (q_tile.new_zeros(out_shape), q_tile.new_zeros(out_shape))

    def update(self, scores: Tensor, v_tile: Tensor) -> None:
        """Fold one tile of keys in; scores [..., M, N] are in log2 units and are overwritten."""
        candidate = scores.amax(-1)
        if not self.rounded:
            candidate = candidate.ceil_()
        elif self.dtype == torch.float16:
            # not from 2**24 on: there the difference is rounded, and weights may exceed 65504
            candidate = torch.where(candidate.abs() < 2.0**24, candidate - 14, candidate)
        pivot = torch.maximum(self.pivot, candidate)
        base = torch.where(pivot == -math.inf, 0.0, pivot)
        rescale = self.pivot - base
        rescale = torch.exp2(rescale) if self.rounded else power_of_two(rescale)
        self.pivot = pivot

        weights = scores.sub_(base[..., None]).exp2_()
        factors = weights.to(self.dtype).to(weights.dtype) if self.rounded else weights
        summed = factors if self.compensated else weights
        self.row_sum = self._add(self.row_sum, rescale, summed.sum(-1))
        if self.separate_lse:
            self.lse_sum = self._add(self.lse_sum, rescale, weights.sum(-1))
        self.acc = self._add(self.acc, rescale[..., None], factors @ v_tile)

    def _add(
        self, pair: tuple[Tensor, Tensor], rescale: Tensor, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        acc, comp = pair
        acc = acc * rescale
        if not self.compensated:
            return acc.add_(x), comp
        x = x.add_(comp * rescale)
        total = acc + x
        comp = x.sub_(acc.sub_(total).neg_())
        # comp is not finite only where total is not either: kept, inf - inf would turn an honest
        # infinity into NaN on the next step
        return total, comp.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def finalize(self, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        """Output [..., M, Dv] and log-sum-exp [..., M], natural-log units; see `finalize`."""
        total = self.lse_sum if self.separate_lse else self.row_sum
        return finalize(self.pivot, self.row_sum, total, self.acc, sinks)


Pair: TypeAlias = tuple[Tensor, Tensor]
"""A compensated sum: its value is the sum of the two."""


def finalize(
    pivot: Tensor, row_sum: Pair, lse_sum: Pair, acc: Pair, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output [..., M, Dv] and log-sum-exp [..., M], natural-log units.

    Args:
        pivot: [..., M], log2 units.
        row_sum, lse_sum: [..., M] each. The divisor, and what the log-sum-exp is of.
        acc: [..., M, Dv].
        sinks: one more logit of each row, broadcasts to [..., M], natural-log units.
    """
    divisor = row_sum[0] + row_sum[1]
    empty = divisor == 0
    lse = pivot * math.log(2.0) + torch.where(empty, 1.0, lse_sum[0] + lse_sum[1]).log()
    lse = lse.masked_fill_(empty, -math.inf)
    if sinks is not None:
        # relative to the pivot, like the weights; where a sink dwarfs them all it is inf, and
        # the output 0
        weight = torch.exp2(sinks * math.log2(math.e) - pivot)
        divisor = divisor + weight.masked_fill(empty, 0.0)
        lse = torch.logaddexp(lse, sinks)
    out = (acc[0] + acc[1]) / torch.where(empty, 1.0, divisor)[..., None]
    return out.masked_fill_(empty[..., None], 0.0), lse


def merge(a: Pair, b: Pair) -> Pair:
    """Add two compensated sums; symmetric in a and b, bit for bit.

    Source: Knuth, The Art of Computer Programming 2 (1969), section 4.2.2, theorem B.
    """
    total = a[0] + b[0]
    b_rounded = total - a[0]
    error = (a[0] - (total - b_rounded)) + (b[0] - b_rounded)
    rest = error + (a[1] + b[1])
    acc = total + rest
    comp = rest - (acc - total)
    # as in `blocks.compensated.merge`: an honest infinity stays one
    finite = acc.isfinite()
    return torch.where(finite, acc, total), torch.where(finite, comp, 0.0)


def power_of_two(exponent: Tensor) -> Tensor:
    """Exactly 2**exponent for whole numbers <= 0; 0 below the normal range."""
    if exponent.dtype == torch.float64:
        return ((exponent.clamp(-1023, 0).to(torch.int64) + 1023) << 52).view(torch.float64)
    return ((exponent.clamp(-127, 0).to(torch.int32) + 127) << 23).view(torch.float32)

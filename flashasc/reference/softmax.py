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
        # weights of 16 bits are rounded relative to the row maximum, natural units; others have a
        # whole-number pivot, log2 units, so that a rescale is an exact power of two
        self.rounded = problem.dtype.itemsize == 2 and problem.precision != "high"
        self.compensated = problem.precision != "standard"
        self.separate_lse = self.compensated and self.rounded
        # weights of float16 run up to 2**14, out of the subnormals' reach
        self.drop = drop_of(problem.dtype == torch.float16, whole=not self.rounded)
        self.pivot = q_tile.new_full(rows, -math.inf)
        # (sum, compensation) pairs: of the weights as multiplied, as they were, and of the output
        self.row_sum = self.lse_sum = (q_tile.new_zeros(rows), q_tile.new_zeros(rows))
        out_shape = (*rows, problem.Dv)
        self.acc = (q_tile.new_zeros(out_shape), q_tile.new_zeros(out_shape))

    def update(self, scores: Tensor, v_tile: Tensor) -> None:
        """Fold one tile of keys in; scores [..., M, N] are in natural units and are overwritten."""
        top = candidate = scores.amax(-1)
        if not self.rounded:
            candidate = _to_log2(top).ceil_()
        elif self.drop:
            # not from 2**24 on: there the difference is rounded, and weights may exceed 65504
            candidate = torch.where(candidate.abs() < 2.0**24, candidate - self.drop, candidate)
        pivot = torch.maximum(self.pivot, candidate)
        base = torch.where(pivot == -math.inf, 0.0, pivot)
        rescale = self.pivot - base
        rescale = rescale.exp_() if self.rounded else power_of_two(rescale)
        self.pivot = pivot

        if self.rounded:
            weights = scores.sub_(base[..., None]).exp_()
        else:
            high, low = _natural_base(base, candidate, top)
            weights = scores.sub_(high[..., None]).sub_(low[..., None]).exp_()
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
        return finalize(
            self.pivot,
            self.row_sum,
            total,
            self.acc,
            sinks,
            whole=not self.rounded,
            drop=self.drop,
        )


Pair: TypeAlias = tuple[Tensor, Tensor]
"""A compensated sum: its value is the sum of the two."""


def drop_of(half: bool, *, whole: bool) -> float:
    """What pivots are lowered by, natural units, where weights are kept in float16 (`half`)."""
    return 14.0 * math.log(2.0) if half and not whole else 0.0


def finalize(
    pivot: Tensor,
    row_sum: Pair,
    lse_sum: Pair,
    acc: Pair,
    sinks: Tensor | None,
    *,
    whole: bool,
    drop: float,
) -> tuple[Tensor, Tensor]:
    """Output [..., M, Dv] and log-sum-exp [..., M], natural-log units.

    Args:
        pivot: [..., M]. Natural units; log2 units where whole.
        row_sum, lse_sum: [..., M] each. The divisor, and what the log-sum-exp is of.
        acc: [..., M, Dv].
        sinks: one more logit of each row, broadcasts to [..., M], natural-log units.
        whole: pivots are whole numbers.
        drop: what pivots are lowered by, natural units.
    """
    divisor = row_sum[0] + row_sum[1]
    empty = divisor == 0
    # relative to what the pivot was lowered from: otherwise two numbers of about 14 * log(2) would
    # cancel
    total = torch.where(empty, 1.0, lse_sum[0] + lse_sum[1]) * math.exp(-drop)
    top = pivot * math.log(2.0) if whole else pivot + drop
    lse = (top + total.log()).masked_fill_(empty, -math.inf)
    if sinks is not None:
        # relative to the pivot, like the weights; where a sink dwarfs them all it is inf, and
        # the output 0
        weight = (_above(sinks, pivot) if whole else sinks - pivot).exp()
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


def _to_log2(x: Tensor) -> Tensor:
    """Natural units to log2 units, where what is finite stays finite."""
    largest = torch.finfo(x.dtype).max * math.log(2.0)
    bounded = torch.where(x.isinf(), x, x.clamp(-largest, largest))
    return bounded.mul_(math.log2(math.e))


_LN2_HIGH = 177.0 / 256.0
_LN2_LOW = math.log(2.0) - _LN2_HIGH


def _above(x: Tensor, pivot: Tensor) -> Tensor:
    """How far natural scores lie above a whole pivot in log2 units, in natural units.

    Where the pivot has no more than 16 bits, no difference is rounded but for the result: scores
    times log2(e) would be, once more. See `blocks.scores.above`.
    """
    return x.sub(pivot * _LN2_HIGH).sub_(pivot * _LN2_LOW)


def _natural_base(base: Tensor, candidate: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """What natural scores of a tile are to be subtracted from; see `blocks.scores.natural_base`."""
    coarse = torch.where(base.abs() < 2.0**16, base, (base / 256).floor() * 256)
    high = coarse * _LN2_HIGH
    low = (base - coarse) * _LN2_HIGH + base * _LN2_LOW
    # from where on every number is a whole one, and even
    huge = base.abs() >= 4 / torch.finfo(base.dtype).eps
    high = torch.where(huge, torch.where(candidate == base, top, base * math.log(2.0)), high)
    low = low.masked_fill_(huge, 0.0)
    return torch.maximum(high, (top - low) - 11.0), low


def power_of_two(exponent: Tensor) -> Tensor:
    """Exactly 2**exponent for whole numbers <= 0; 0 below the normal range."""
    if exponent.dtype == torch.float64:
        return ((exponent.clamp(-1023, 0).to(torch.int64) + 1023) << 52).view(torch.float64)
    return ((exponent.clamp(-127, 0).to(torch.int32) + 127) << 23).view(torch.float32)

"""The running softmax of the reference; its counterpart in the kernels is `blocks.softmax`."""

from __future__ import annotations

import math

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
        self.drop = 14.0 * math.log(2.0) if self.rounded and problem.dtype == torch.float16 else 0.0
        self.pivot = q_tile.new_full(rows, -math.inf)
        # (sum, compensation) pairs: of the weights as multiplied, as they were, and of the output
        self.row_sum = self.lse_sum = (q_tile.new_zeros(rows), q_tile.new_zeros(rows))
        out_shape = (*rows, problem.Dv)
        self.acc = (q_tile.new_zeros(out_shape), q_tile.new_zeros(out_shape))

    def update(self, scores: Tensor, v_tile: Tensor) -> None:
        """Fold one tile of keys in; scores [..., M, N] are in natural units and are overwritten."""
        candidate = scores.amax(-1)
        if not self.rounded:
            candidate = _to_log2(candidate).ceil_()
        elif self.drop:
            # not from 2**24 on: there the difference is rounded, and weights may exceed 65504
            candidate = torch.where(candidate.abs() < 2.0**24, candidate - self.drop, candidate)
        pivot = torch.maximum(self.pivot, candidate)
        base = torch.where(pivot == -math.inf, 0.0, pivot)
        rescale = self.pivot - base
        rescale = rescale.exp_() if self.rounded else _power_of_two(rescale)
        self.pivot = pivot

        base = base[..., None]
        weights = (scores.sub_(base) if self.rounded else _above(scores, base)).exp_()
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
        """Output [..., M, Dv] and log-sum-exp [..., M], natural-log units.

        Args:
            sinks: one more logit of each row, broadcasts to [..., M], natural-log units.
        """
        acc = self.acc[0] + self.acc[1]
        divisor = self.row_sum[0] + self.row_sum[1]
        empty = divisor == 0
        total = self.lse_sum[0] + self.lse_sum[1] if self.separate_lse else divisor
        # relative to what the pivot was lowered from: otherwise two numbers of about
        # 14 * log(2) would cancel
        total = torch.where(empty, 1.0, total) * math.exp(-self.drop)
        pivot = self.pivot + self.drop if self.rounded else self.pivot * math.log(2.0)
        lse = (pivot + total.log()).masked_fill_(empty, -math.inf)
        if sinks is not None:
            # relative to the pivot, like the weights; where a sink dwarfs them all it is inf, and
            # the output 0
            above = sinks - self.pivot if self.rounded else _above(sinks, self.pivot, huge=False)
            weight = above.exp()
            divisor = divisor + weight.masked_fill(empty, 0.0)
            lse = torch.logaddexp(lse, sinks)
        out = acc / torch.where(empty, 1.0, divisor)[..., None]
        return out.masked_fill_(empty[..., None], 0.0), lse


def _to_log2(x: Tensor) -> Tensor:
    """Natural units to log2 units, where what is finite stays finite."""
    largest = torch.finfo(x.dtype).max * math.log(2.0)
    bounded = torch.where(x.isinf(), x, x.clamp(-largest, largest))
    return bounded.mul_(math.log2(math.e))


def _above(x: Tensor, pivot: Tensor, *, huge: bool = True) -> Tensor:
    """How far natural scores lie above a whole pivot in log2 units, in natural units.

    Where the pivot is of less than 17 bits, no difference is rounded but for the result: scores
    times log2(e) would be, once more. See `blocks.scores.above`. Where it is so large that it was
    rounded itself (and `huge` asks), those decide, so that the largest is at the pivot.
    """
    high = 177.0 / 256.0
    near = x.sub(pivot * high).sub_(pivot * (math.log(2.0) - high))
    if not huge:
        return near
    far = x.mul(math.log2(math.e)).sub_(pivot).mul_(math.log(2.0))
    return torch.where(pivot.abs() < 2.0**24, near, far)


def _power_of_two(exponent: Tensor) -> Tensor:
    """Exactly 2**exponent for whole numbers <= 0; 0 below the normal range."""
    if exponent.dtype == torch.float64:
        return ((exponent.clamp(-1023, 0).to(torch.int64) + 1023) << 52).view(torch.float64)
    return ((exponent.clamp(-127, 0).to(torch.int32) + 127) << 23).view(torch.float32)

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
        # weights of 16 bits are rounded relative to the row maximum; others have a whole-number
        # pivot, so that a rescale is an exact power of two
        self.rounded = problem.dtype.itemsize == 2 and problem.precision != "high"
        self.compensated = problem.precision != "standard"
        self.separate_lse = self.compensated and self.rounded
        # weights of float16 run up to 2**14, out of the subnormals' reach
        self.drop = 14.0 if self.rounded and problem.dtype == torch.float16 else 0.0
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
        elif self.drop:
            # not from 2**24 on: there the difference is rounded, and weights may exceed 65504
            candidate = torch.where(candidate.abs() < 2.0**24, candidate - self.drop, candidate)
        pivot = torch.maximum(self.pivot, candidate)
        base = torch.where(pivot == -math.inf, 0.0, pivot)
        rescale = self.pivot - base
        rescale = torch.exp2(rescale) if self.rounded else _power_of_two(rescale)
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
        total = torch.where(empty, 1.0, total) * 2.0**-self.drop
        lse = (self.pivot + self.drop) * math.log(2.0) + total.log()
        lse = lse.masked_fill_(empty, -math.inf)
        if sinks is not None:
            # relative to the pivot, like the weights; where a sink dwarfs them all it is inf, and
            # the output 0
            near, rest = _log2_pair(sinks)
            weight = torch.exp2((near - self.pivot) + rest)
            divisor = divisor + weight.masked_fill(empty, 0.0)
            lse = torch.logaddexp(lse, sinks)
        out = acc / torch.where(empty, 1.0, divisor)[..., None]
        return out.masked_fill_(empty[..., None], 0.0), lse


def _log2_pair(x: Tensor) -> tuple[Tensor, Tensor]:
    """Natural units to log2 units, as near + rest: rounded to one number, a large x loses digits.

    Its counterpart in the kernels is `blocks.scores.log2_pair`.
    """
    integers, low, factor = _SHORT[x.dtype]
    product = x * math.log2(math.e)
    near = product.view(integers).bitwise_and(-(1 << low)).view(x.dtype)
    # near * factor is exact, and so is the difference
    rest = (x - near * factor) - near * (math.log(2.0) - factor)
    finite = product.isfinite()
    return torch.where(finite, near, product), torch.where(finite, rest * math.log2(math.e), 0.0)


_SHORT = {
    torch.float32: (torch.int32, 12, math.floor(math.log(2.0) * 2.0**12) * 2.0**-12),
    torch.float64: (torch.int64, 27, math.floor(math.log(2.0) * 2.0**26) * 2.0**-26),
}
"""Same-sized integers, how many last bits of a number to drop, and log(2) in the bits kept."""


def _power_of_two(exponent: Tensor) -> Tensor:
    """Exactly 2**exponent for whole numbers <= 0; 0 below the normal range."""
    if exponent.dtype == torch.float64:
        return ((exponent.clamp(-1023, 0).to(torch.int64) + 1023) << 52).view(torch.float64)
    return ((exponent.clamp(-127, 0).to(torch.int32) + 127) << 23).view(torch.float32)

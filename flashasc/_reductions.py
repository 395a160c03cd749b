"""The frozen facts of a reduction, and the rows that a tensor falls into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Method = Literal["plain", "kahan", "sum2"]
"""How a sum is kept; `blocks.reduce` says what each does."""

Term = Literal["value", "square", "scaled", "weight", "spread"]
"""What is summed: x, x**2, (x * s)**2, exp(x - s), or both x - s and (x - s)**2; s is a number a
row."""

Mode = Literal["softmax", "rms_norm", "layer_norm"]
"""How rows are brought to a common scale."""

Largest = Literal["value", "negated", "size"]
"""Of what the maximum is taken: x, -x or |x|."""


@dataclass(frozen=True)
class Rows:
    """A tensor as rows of numbers, without a copy where its strides allow it.

    The rows are [outer, inner], in the order of the dimensions that are kept, and so are the
    numbers of a row. A size of 1 has a stride of 0, but for the numbers' inner one: that is 1.
    """

    tensor: Tensor
    """[row_outer, row_inner, outer, inner]."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.tensor.shape[0] * self.tensor.shape[1]

    @property
    def length(self) -> int:
        """How many numbers a row has."""
        return self.tensor.shape[2] * self.tensor.shape[3]

    @property
    def along(self) -> bool:
        """Whether the numbers of a row lie side by side, or nothing does; else the rows do."""
        stride = self.tensor.stride()
        return stride[3] == 1 or stride[1] != 1

    @property
    def in_pieces(self) -> bool:
        """Whether rows or the numbers of a row lie side by side."""
        stride = self.tensor.stride()
        return stride[3] == 1 or stride[1] == 1

    def split_like(self, other: Rows) -> Rows | None:
        """The same rows with their dimensions split as another's are; None: they cannot be."""
        mine, theirs = self.tensor, other.tensor
        outer, inner = theirs.shape[:2]
        if mine.shape == theirs.shape:
            return self
        if mine.shape[0] != 1 or mine.shape[1] != outer * inner:
            return None
        strides = (mine.stride(1) * inner, mine.stride(1), *mine.stride()[2:])
        sizes = (outer, inner, *mine.shape[2:])
        return Rows(torch.as_strided(mine, sizes, strides, mine.storage_offset()))


def rows_of(x: Tensor, dims: Sequence[int], *, in_pieces: bool = False) -> Rows:
    """The rows of a tensor: one for each combination of indices of the dimensions that are kept.

    Args:
        x: any strides.
        dims: the dimensions that a row runs along, not negative.
        in_pieces: copy a tensor of which neither rows nor the numbers of a row lie side by side.

    Returns:
        Views of x where both the dimensions kept and those of a row fold into two each; else of a
        contiguous copy.
    """
    kept = [(x.shape[d], x.stride(d)) for d in range(x.dim()) if d not in dims]
    # a sum has no order of its own: from the widest stride to the narrowest
    along = sorted(((x.shape[d], x.stride(d)) for d in dims), key=lambda pair: -pair[1])
    folded_kept, folded_along = _fold(kept), _fold(along)
    if len(folded_kept) <= 2 and len(folded_along) <= 2:
        outer, inner = _padded(folded_kept, 0)
        outer_n, inner_n = _padded(folded_along, 1)
        sizes, strides = zip(outer, inner, outer_n, inner_n, strict=True)
        rows = Rows(torch.as_strided(x, sizes, strides, x.storage_offset()))
        if rows.in_pieces or not in_pieces:
            return rows
    order = [d for d in range(x.dim()) if d not in dims] + list(dims)
    count, length = math.prod(s for s, _ in kept), math.prod(s for s, _ in along)
    return Rows(x.permute(order).contiguous().view(1, count, 1, length))


def _fold(dims: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Dimensions, (size, stride), joined where one continues the other; sizes of 1 left out."""
    folded: list[tuple[int, int]] = []
    for size, stride in dims:
        if size == 1:
            continue
        if folded and folded[-1][1] == size * stride:
            folded[-1] = (folded[-1][0] * size, stride)
        else:
            folded.append((size, stride))
    return folded


def _padded(dims: list[tuple[int, int]], stride: int) -> list[tuple[int, int]]:
    return [(1, 0), (1, stride), *dims][-2:] if len(dims) != 1 else [(1, 0), *dims]


def rows_of_both(x: Tensor, out: Tensor, dims: int) -> tuple[Rows, Rows]:
    """The rows of an input and of its contiguous output, along the last `dims` dimensions.

    Returns:
        Both split alike, the numbers of a row side by side in each; x's rows are those of a
        contiguous copy where its strides do not allow it.
    """
    last = tuple(range(x.dim() - dims, x.dim()))
    theirs = rows_of(out, last)
    flat = _flat(x, dims)
    if flat is not None:
        mine = rows_of(flat, (flat.dim() - 1,))
        if mine.tensor.stride(3) == 1 and mine.tensor.shape[2] == 1:
            if (split := theirs.split_like(mine)) is not None:
                return mine, split
            if (split := mine.split_like(theirs)) is not None:
                return split, theirs
    return rows_of(x.contiguous(), last), theirs


def _flat(x: Tensor, dims: int) -> Tensor | None:
    """A view of x whose last `dims` dimensions are one; None where they do not fold in order."""
    folded = _fold([(x.shape[d], x.stride(d)) for d in range(x.dim() - dims, x.dim())])
    if len(folded) > 1:
        return None
    kept = x.dim() - dims
    size, stride = folded[0] if folded else (1, 1)
    return torch.as_strided(
        x, (*x.shape[:kept], size), (*x.stride()[:kept], stride), x.storage_offset()
    )

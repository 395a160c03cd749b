"""Batches of any number of dimensions, as the few that a kernel counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Batches(NamedTuple):
    """A batch of matrices whose dimensions were joined where strides allow it."""

    sizes: tuple[int, ...]
    rows: int
    """Rows of each matrix of the result."""
    strides: dict[str, tuple[int, ...]]
    """Of each tensor, in elements: one a dimension of the batch, the rows', the columns'."""


def joined(tensors: Mapping[str, Tensor], shared: str) -> Batches:
    """Join the dimensions of a batch, and the batch with the rows where one factor is the same.

    Args:
        tensors: [*batch, rows, columns] each, of one batch (expanded), any strides; the first one's
            rows are those of the result.
        shared: name of the tensor whose rows are not the result's: the right factor.
    """
    first = next(iter(tensors.values()))
    strides = {name: list(x.stride()) for name, x in tensors.items()}
    *sizes, rows, _ = first.shape
    for d in reversed(range(len(sizes))):
        if sizes[d] == 1:
            del sizes[d]
            for steps in strides.values():
                del steps[d]
    # many matrices times one are one tall matrix times that
    while sizes and strides[shared][-3] == 0:
        tall = [steps for name, steps in strides.items() if name != shared]
        if rows == 1:
            for steps in tall:
                steps[-2] = steps[-3]
        elif any(steps[-3] != rows * steps[-2] for steps in tall):
            break
        for steps in strides.values():
            del steps[-3]
        rows *= sizes.pop()
    for d in reversed(range(len(sizes) - 1)):
        if all(steps[d] == sizes[d + 1] * steps[d + 1] for steps in strides.values()):
            sizes[d] *= sizes.pop(d + 1)
            for steps in strides.values():
                del steps[d]
    return Batches(tuple(sizes), rows, {name: tuple(steps) for name, steps in strides.items()})


def by_columns(strides: tuple[int, ...], columns: int) -> bool:
    """Whether a matrix's columns lie in one piece each, and its rows do not."""
    return strides[-2] == 1 and strides[-1] != 1 and columns > 1

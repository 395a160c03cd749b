"""Which slices of a tensor hold what belongs elsewhere: swaps, shifts, stale blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .elementwise import agree

# slices looked at, slices they may come from, and elements that are looked at of each at first
_MOST_BAD, _MOST_SLICES, _SAMPLE = 512, 4096, 16
# with more pairs of like slices it is not clear which is which
_MOST_FOUND = 20_000
# fewer elements than this may be alike by chance
_LEAST = 4


@dataclass(frozen=True)
class Run:
    """Slices `to` ... `to + length` along an axis hold what belongs at `origin` ..."""

    to: int
    origin: int
    length: int

    @property
    def here(self) -> str:
        """Where it is, as an index."""
        return _span(self.to, self.length)

    @property
    def there(self) -> str:
        """Where it belongs, as an index."""
        return _span(self.origin, self.length)


def moved_slices(
    actual: Tensor, expected: Tensor, bad: Tensor, rtol: float, atol: float
) -> tuple[int, list[Run]] | None:
    """Explain every bad element by slices along one axis that hold other slices' values.

    Args:
        actual, expected: [...] one shape and dtype, on the CPU.
        bad: [...] bool, where they do not agree.
        rtol, atol: within which a slice is another one.

    Returns:
        (axis, runs), or None where no axis explains all of it.
    """
    box = bounding_box(bad)
    for axis, size in enumerate(bad.shape):
        if size > _MOST_SLICES:
            continue
        # elsewhere all is well, so what was moved was moved within the box of the other axes
        crop = tuple(slice(None) if d == axis else s for d, s in enumerate(box))
        flat = [
            x[crop].movedim(axis, 0).reshape(x.shape[axis], -1) for x in (actual, expected, bad)
        ]
        runs = _runs(flat[0], flat[1], flat[2], rtol, atol)
        if runs:
            return axis, runs
    return None


def describe(axis: int, runs: list[Run]) -> str:
    """The moves in words."""
    known = set(runs)
    words, told = [], set()
    for run in runs:
        back = Run(run.origin, run.to, run.length)
        if run in told:
            continue
        if back in known and back != run:
            told.add(back)
            words.append(f"{run.here} and {run.there} are swapped")
        else:
            words.append(f"{run.here} holds what belongs at {run.there}")
    shown = "; ".join(words[:6]) + ("; ..." if len(words) > 6 else "")
    return f"misplaced along axis {axis}: {shown}"


def bounding_box(bad: Tensor) -> tuple[slice, ...]:
    """The smallest box of indices that holds every True."""
    box = []
    for axis in range(bad.dim()):
        others = [d for d in range(bad.dim()) if d != axis]
        there = (bad.any(dim=others) if others else bad).nonzero()[:, 0]
        box.append(slice(int(there[0]), int(there[-1]) + 1))
    return tuple(box)


def _runs(
    actual: Tensor, expected: Tensor, bad: Tensor, rtol: float, atol: float
) -> list[Run] | None:
    """[n, m] each. The runs that explain every bad row, or None."""
    rows = bad.any(1).nonzero()[:, 0]
    n, m = actual.shape
    if len(rows) > _MOST_BAD:
        return None
    alike = _alike(actual[rows], expected, rtol, atol)
    # bad where it is: at most a zero of the other sign
    alike[torch.arange(len(rows)), rows] = False
    # how many rows from here on are found one after the other
    length = alike.to(torch.int64)
    for i in range(len(rows) - 2, -1, -1):
        if rows[i + 1] == rows[i] + 1:
            length[i, :-1] += torch.where(alike[i, :-1], length[i + 1, 1:], 0)
    runs, i = [], 0
    while i < len(rows):
        if not bool(alike[i].any()):
            return None
        # of several equally good origins the nearest
        distance = (torch.arange(n) - rows[i]).abs()
        longest = int(length[i].max())
        origin = int(distance.masked_fill(length[i] < longest, n).argmin())
        if longest * m < _LEAST:
            return None
        runs.append(Run(int(rows[i]), origin, longest))
        i += longest
    return runs


def _alike(rows: Tensor, expected: Tensor, rtol: float, atol: float) -> Tensor:
    """[b, m], [n, m] -> [b, n]: which rows agree whole; a few columns are tried first."""
    columns = torch.linspace(0, expected.shape[1] - 1, _SAMPLE).long().unique()
    alike = torch.ones(len(rows), len(expected), dtype=torch.bool)
    for column in columns.tolist():
        a, e = torch.broadcast_tensors(rows[:, None, column], expected[None, :, column])
        alike &= agree(a, e, rtol, atol, True)
    if expected.shape[1] <= len(columns):
        return alike
    found = alike.nonzero().tolist()
    if len(found) > _MOST_FOUND:
        return torch.zeros_like(alike)
    for i, j in found:
        alike[i, j] = bool(agree(rows[i], expected[j], rtol, atol, True).all())
    return alike


def _span(start: int, length: int) -> str:
    return f"[{start}:{start + length}]" if length > 1 else f"[{start}]"

"""The worst elements of a comparison, with what lies around them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .elementwise import unravel


@dataclass(frozen=True)
class Neighbour:
    """An element next to a bad one, along one axis."""

    index: tuple[int, ...]
    actual: float
    expected: float


@dataclass(frozen=True)
class Element:
    """One of the worst elements.

    Attributes:
        index: its coordinates.
        actual, expected: the values; expected is in the result's dtype.
        truth: the golden value before it was rounded, or `expected` again.
        error: actual - truth.
        ulps: |error| in units in the last place of the truth; of integers and bool, |error|.
        allowed: how far from `expected` it may be.
        agrees: whether it is accepted.
        neighbours: the elements before and after it along each axis.
    """

    index: tuple[int, ...]
    actual: float
    expected: float
    truth: float
    error: float
    ulps: float
    allowed: float
    agrees: bool
    neighbours: tuple[Neighbour, ...]


class Ranking:
    """Keeps the places of the largest scores seen."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._found: list[tuple[float, int]] = []

    def add(self, scores: Tensor, first: int) -> None:
        """Look at a chunk: [n] float64, larger is worse; its place in the flat tensor."""
        count = min(self._keep, scores.numel())
        values, places = scores.topk(count)
        # of equals the first
        new = [(v, -(first + p)) for v, p in zip(values.tolist(), places.tolist()) if v > 0]
        self._found = heapq.nlargest(self._keep, self._found + new)

    def places(self) -> list[int]:
        """The flat places, the worst first."""
        return [-place for _, place in self._found]


def scores(good: Tensor, error: Tensor, allowed: Tensor) -> Tensor:
    """How bad each element is: the error over what is allowed, or the error where nothing is.

    Args:
        good: [n] bool. What agrees scores less than what does not.
        error: [n] float64, not negative; NaN where one side alone is not finite.
        allowed: [n] float64.
    """
    strict = not bool((allowed > 0).any())
    score = error if strict else error / allowed.clamp(min=1e-300)
    score = score.nan_to_num(nan=torch.inf)
    least = torch.finfo(torch.float64).smallest_normal
    return torch.where(good, score.nan_to_num(posinf=0.0), score.clamp(min=least))


def neighbours(actual: Tensor, expected: Tensor, index: tuple[int, ...]) -> tuple[Neighbour, ...]:
    """The elements before and after along each axis, the last axis first."""
    found = []
    for axis in reversed(range(len(index))):
        for step in (-1, 1):
            place = index[axis] + step
            if 0 <= place < actual.shape[axis]:
                near = (*index[:axis], place, *index[axis + 1 :])
                found.append(Neighbour(near, value(actual, near), value(expected, near)))
    return tuple(found)


def value(tensor: Tensor, index: Sequence[int]) -> float:
    """One element as a number; True is 1."""
    return +tensor[tuple(index)].item()


def indices(places: Sequence[int], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Coordinates of flat places."""
    return [unravel(place, shape) for place in places]

"""How far a result is from the truth, in every measure at once, a chunk at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .elementwise import unravel
from .rounding import round_once, unit_in_last_place

ULP_EDGES = (0.0, 0.5, *(2.0**k for k in range(11)))
"""Upper ends of the bins of a histogram of errors in ulps; one more bin is open."""


@dataclass(frozen=True)
class Errors:
    """Errors of one floating tensor against the truth, over the elements finite in both.

    Where a tensor has elements but none of these, no error is known: sizes and biases are NaN.

    Attributes:
        elements: how many these are.
        max_abs: largest |error|.
        mean_abs: mean |error|.
        rmse: root of the mean squared error.
        relative: norm of the error over the norm of the truth.
        mare: largest |error| / |truth|, over elements that are not small.
        mere: mean |error| / |truth|, over the same.
        small_elements: elements with |truth| below the small-value threshold, or 0.
        small_max_abs: largest |error| of these.
        bias: mean signed error; of a result that is on average too small, negative.
        too_small, too_large: elements that are that.
        relative_bias: sum of the signed errors over the sum of |truth|.
        correctly_rounded: share of the elements, finite or not, that are the truth rounded once;
            those that are NaN on both sides do not count.
        max_ulps: largest |error| in units in the last place of the truth.
        ulp_histogram: number of elements by |error| in ulps; the bins end at `ULP_EDGES`.
    """

    elements: int
    max_abs: float
    mean_abs: float
    rmse: float
    relative: float
    mare: float
    mere: float
    small_elements: int
    small_max_abs: float
    bias: float
    too_small: int
    too_large: int
    relative_bias: float
    correctly_rounded: float
    max_ulps: float
    ulp_histogram: tuple[int, ...]


_SIZES = (
    "max_abs",
    "mean_abs",
    "rmse",
    "relative",
    "mare",
    "mere",
    "small_max_abs",
    "max_ulps",
)


@dataclass(frozen=True)
class NonFinite:
    """NaN and infinities of both sides.

    Attributes:
        actual_nan, actual_inf, expected_nan, expected_inf: how many elements are that.
        mismatched: elements not finite on one side at least that do not agree.
        first: coordinates of the first of these.
    """

    actual_nan: int
    actual_inf: int
    expected_nan: int
    expected_inf: int
    mismatched: int
    first: tuple[int, ...] | None


class Tally:
    """Adds up the errors of one tensor."""

    def __init__(self, dtype: torch.dtype, small_value: float) -> None:
        """Start with nothing.

        Args:
            dtype: of the result.
            small_value: elements with |truth| below it (and those of 0) are judged by absolute
                error alone.
        """
        self._dtype, self._small_value = dtype, small_value
        self._count = self._all = self._right = self._small = 0
        self._below = self._above = self._neither = 0
        self._largest = dict.fromkeys(("abs", "relative", "small", "ulps"), 0.0)
        self._sums: dict[str, list[float]] = {
            name: [] for name in ("abs", "square", "signed", "relative", "truth", "truth_square")
        }
        self._histogram = torch.zeros(len(ULP_EDGES) + 1, dtype=torch.int64)

    def add(self, actual: Tensor, truth: Tensor) -> None:
        """Count a chunk: [n] in the result's dtype, and [n] the truth in any."""
        exact = truth.double()
        rounded, a = round_once(exact, self._dtype).double(), actual.double()
        self._all += actual.numel()
        self._right += int((a == rounded).sum())
        self._neither += int((a.isnan() & rounded.isnan()).sum())
        finite = a.isfinite() & exact.isfinite()
        if not bool(finite.all()):
            a, exact = a[finite], exact[finite]
        self._count += a.numel()
        if not a.numel():
            return
        error, size = a - exact, exact.abs()
        distance = error.abs()
        small = (size < self._small_value) | (size == 0)
        large = ~small
        few = bool(small.any())
        relative = distance[large] / size[large] if few else distance / size
        units = distance / unit_in_last_place(exact, self._dtype)
        self._small += int(small.sum())
        self._below += int((error < 0).sum())
        self._above += int((error > 0).sum())
        for name, values in (
            ("abs", distance),
            ("relative", relative),
            ("small", distance[small] if few else distance[:0]),
            ("ulps", units),
        ):
            if values.numel():
                self._largest[name] = max(self._largest[name], values.max().item())
        for name, values in (
            ("abs", distance),
            ("square", distance.square()),
            ("signed", error),
            ("relative", relative),
            ("truth", size),
            ("truth_square", size.square()),
        ):
            self._sums[name].append(values.sum().item())
        edges = torch.tensor(ULP_EDGES, dtype=torch.float64)
        self._histogram += torch.bincount(torch.bucketize(units, edges), minlength=len(edges) + 1)

    def errors(self) -> Errors:
        """What came of it; 0 everywhere for a tensor without elements."""
        # within a chunk PyTorch adds pairwise; between chunks exactly
        sums = {name: math.fsum(values) for name, values in self._sums.items()}
        count, large = max(self._count, 1), max(self._count - self._small, 1)
        numbers = self._all - self._neither
        found = Errors(
            elements=self._count,
            max_abs=self._largest["abs"],
            mean_abs=sums["abs"] / count,
            rmse=math.sqrt(sums["square"] / count),
            relative=_ratio(math.sqrt(sums["square"]), math.sqrt(sums["truth_square"])),
            mare=self._largest["relative"],
            mere=sums["relative"] / large,
            small_elements=self._small,
            small_max_abs=self._largest["small"],
            bias=sums["signed"] / count,
            too_small=self._below,
            too_large=self._above,
            relative_bias=_ratio(sums["signed"], sums["truth"]),
            correctly_rounded=self._right / numbers if numbers else 1.0,
            max_ulps=self._largest["ulps"],
            ulp_histogram=tuple(self._histogram.tolist()),
        )
        if self._count or not self._all:
            return found
        unknown: dict[str, Any] = dict.fromkeys((*_SIZES, "bias", "relative_bias"), math.nan)
        return replace(
            found, **unknown, correctly_rounded=self._right / numbers if numbers else math.nan
        )


class NonFiniteTally:
    """Counts NaN and infinities."""

    def __init__(self) -> None:
        self._counts = (0, 0, 0, 0)
        self._mismatched = 0
        self._first: int | None = None

    def add(self, actual: Tensor, target: Tensor, good: Tensor, first: int) -> None:
        """Look at a chunk: [n] each, and where it starts."""
        if not actual.is_floating_point():
            return
        a, t = actual.double(), target.double()
        an, ai, tn, ti = self._counts
        self._counts = (
            an + int(a.isnan().sum()),
            ai + int(a.isinf().sum()),
            tn + int(t.isnan().sum()),
            ti + int(t.isinf().sum()),
        )
        wrong = ~(a.isfinite() & t.isfinite()) & ~good
        if bool(wrong.any()):
            self._mismatched += int(wrong.sum())
            if self._first is None:
                self._first = first + int(wrong.to(torch.uint8).argmax())

    def found(self, shape: tuple[int, ...]) -> NonFinite:
        """What came of it."""
        first = None if self._first is None else unravel(self._first, shape)
        return NonFinite(*self._counts, mismatched=self._mismatched, first=first)


def judged(errors: Errors, mismatched: int) -> Errors:
    """The errors that rules and sweeps go by: of all elements, not of the finite ones alone.

    Args:
        errors: over the elements finite in both.
        mismatched: others, that do not agree: their error has no bound.

    Returns:
        Sizes of errors infinite where there are such elements; 0 where no element is finite and all
        agree.
    """
    if mismatched:
        unbounded: dict[str, Any] = dict.fromkeys(_SIZES, math.inf)
        return replace(errors, **unbounded, bias=math.nan, relative_bias=math.nan)
    if errors.elements:
        return errors
    none: dict[str, Any] = dict.fromkeys((*_SIZES, "bias", "relative_bias"), 0.0)
    return replace(errors, **none)


def _ratio(part: float, whole: float) -> float:
    """Their quotient; an error where nothing was expected is infinitely large."""
    if part == 0.0:
        return 0.0
    return part / whole if whole else math.copysign(math.inf, part)


def ratio(ours: float, theirs: float) -> float:
    """How many times as large our error is; 1 where neither has one."""
    if ours == theirs:
        return 1.0
    return ours / theirs if theirs else math.inf

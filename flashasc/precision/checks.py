"""The rules of acceptance, applied to what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .report import Check
from .statistics import Errors, ratio
from .tolerances import FLASH_FACTOR, LEVELS, SINGLE_STANDARD, Level


def agreement(name: str, mismatched: int, elements: int, rule: str, *, gates: bool) -> Check:
    """No element breaks the rule."""
    detail = f"{mismatched} of {elements} elements differ; {rule}"
    return Check(name, mismatched == 0, gates, float(mismatched), 0.0, detail)


def single_standard(
    errors: Errors, dtype: torch.dtype, small_value: float | None, *, gates: bool
) -> Iterator[Check]:
    """Ascend's standard for a result alone: MERE < t, MARE < 10 t, small elements by size."""
    t = SINGLE_STANDARD.get(dtype)
    if t is None:
        return
    for name, measured, limit in (("MERE", errors.mere, t), ("MARE", errors.mare, 10 * t)):
        detail = f"below t = {t:.4g}" if name == "MERE" else f"below 10 t, t = {t:.4g}"
        yield Check(f"single standard: {name}", measured < limit, gates, measured, limit, detail)
    if small_value is not None:
        limit = t * small_value
        yield _small("single standard: small values", errors, limit, gates, "t * small_value")


def dual_standard(
    ours: Errors, theirs: Errors, level: Level, small_value: float | None, *, gates: bool
) -> Iterator[Check]:
    """Ascend's standard beside another implementation: ratios of errors against float64."""
    limits = LEVELS[level]
    for name, mine, other, limit in (
        ("MARE", ours.mare, theirs.mare, limits.mare),
        ("MERE", ours.mere, theirs.mere, limits.mere),
        ("RMSE", ours.rmse, theirs.rmse, limits.rmse),
    ):
        measured = ratio(mine, other)
        detail = f"ours {mine:.3g}, theirs {other:.3g}"
        yield Check(f"{level}: {name}", measured <= limit, gates, measured, limit, detail)
    if small_value is not None:
        limit = limits.mare * theirs.small_max_abs
        yield _small(f"{level}: small values", ours, limit, gates, "the MARE ratio * theirs")


def best_level(ours: Errors, theirs: Errors) -> Level | None:
    """The tightest level that the three ratios reach."""
    for level in reversed(LEVELS):
        if all(c.passed for c in dual_standard(ours, theirs, level, None, gates=False)):
            return level
    return None


def flash_rule(ours: Errors, theirs: Errors, *, gates: bool) -> Check:
    """flash-attention's: our largest error is at most twice that of the other implementation."""
    limit = FLASH_FACTOR * theirs.max_abs
    detail = f"largest error; theirs {theirs.max_abs:.3g}"
    return Check("flash-attention 2x", ours.max_abs <= limit, gates, ours.max_abs, limit, detail)


def _small(name: str, errors: Errors, limit: float, gates: bool, which: str) -> Check:
    measured = errors.small_max_abs
    detail = f"largest error of {errors.small_elements} small elements, at most {which}"
    return Check(name, measured <= limit, gates, measured, limit, detail)

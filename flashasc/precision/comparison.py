"""Compare what an operator returned with what it should have, and report everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import torch

from .leaves import leaves, same_leaves
from .report import Report
from .rules import Rules
from .tensors import compare_tensor
from .tolerances import LEVELS, Level, tolerance_for


def compare(
    actual: Any,
    expected: Any = None,
    *,
    golden: Any = None,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    strict: bool = False,
    level: Level | None = None,
    small_value: float | Mapping[torch.dtype, float] | None = None,
    flash_rule: bool = False,
    worst: int = 5,
    title: str = "",
) -> Report:
    """Compare trees of tensors, an operator's results, in every measure at once.

    Args:
        actual: what is judged: a tensor, or nested tuples, lists and dicts of tensors, arrays and
            numbers, on any device.
        expected: another implementation's result, built alike, in the same dtypes; with `golden`
            it may be in others.
        golden: the exact result, built alike, in float64 or float32: `golden(...)`. Given, it is
            what decides: rounded once to the dtype of `actual`. Then `expected` is the other
            implementation whose error against `golden` ours is measured by.
        rtol, atol: accept floats where |actual - expected| <= atol + rtol * |expected|; None: the
            tolerance table's. Needed for float dtypes that it lacks. Integers and bool must be
            equal.
        equal_nan: whether NaN equals NaN.
        strict: the same bits instead of the tolerances, for inputs whose result is exact.
        level: "L0", "L1" or "L2": the ratios of our error to that of `expected` that Ascend
            accepts. None: those of the tightest level reached. Needs `expected` and `golden`.
        small_value: with it Ascend's standards gate, the ratios of `level`, or without one the
            single standard; elements whose exact size is below it are judged by absolute error. For
            each dtype apart, give a mapping (`SMALL_VALUES` is Ascend's own). None: these figures
            are for information.
        flash_rule: whether flash-attention's rule gates: the largest error is at most twice that of
            `expected`, which is then eager PyTorch's result in the same dtype. Needs both.
        worst: how many of the worst elements to show.
        title: stands at the top of the report.

    Returns:
        The report. `report.ok` is the verdict; `report.assert_ok()` raises.

    Raises:
        ValueError: trees, shapes or dtypes differ, a dtype has no tolerance, or an option lacks
            what it needs.
        TypeError: a leaf that is no tensor.
    """
    _check_call(expected, golden, level=level, flash_rule=flash_rule, strict=strict,
                rtol=rtol, atol=atol, worst=worst, small_value=small_value)  # fmt: skip
    ours = leaves(actual, "actual")
    theirs = None if expected is None else leaves(expected, "expected")
    exact = None if golden is None else leaves(golden, "golden")
    for name, others in (("expected", theirs), ("golden", exact)):
        if others is not None:
            same_leaves(ours, others, name)
    rules = Rules(rtol, atol, equal_nan, strict, level, small_value, flash_rule, worst)
    found = []
    for name, tensor in ours.items():
        other = theirs[name] if theirs else None
        found.append(compare_tensor(name, tensor, other, exact[name] if exact else None, rules))
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    return Report(title, tuple(found), versions)


def _check_call(
    expected: Any,
    golden: Any,
    *,
    level: str | None,
    flash_rule: bool,
    strict: bool,
    rtol: float | None,
    atol: float | None,
    worst: int,
    small_value: float | Mapping[torch.dtype, float] | None,
) -> None:
    """What can be wrong with a call, whatever the tensors are."""
    if expected is None and golden is None:
        raise ValueError("expected, golden: give one at least, there is nothing to compare with")
    both = expected is not None and golden is not None
    if level is not None and level not in get_args(Level):
        raise ValueError(f"level: expected one of {', '.join(LEVELS)}; got {level!r}")
    for name, given in (("level", level is not None), ("flash_rule", flash_rule)):
        if given and not both:
            raise ValueError(
                f"{name}: needs expected (the other implementation) and golden, to compare their "
                "errors; give both"
            )
    if strict and (rtol is not None or atol is not None):
        raise ValueError("strict: compares bits and knows no rtol or atol; leave one of them out")
    tolerance_for(torch.float32, rtol, atol)
    if worst < 0:
        raise ValueError(f"worst: expected 0 or more, got {worst}")
    sizes = small_value.values() if isinstance(small_value, Mapping) else [small_value]
    for size in sizes:
        if size is not None and not 0 < size < float("inf"):
            raise ValueError(f"small_value: expected a positive finite number, got {size!r}")

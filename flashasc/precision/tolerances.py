"""What is accepted: the tolerance table, and the ratios of the acceptance levels."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch

Level = Literal["L0", "L1", "L2"]


class Tolerance(NamedTuple):
    """Accept where |actual - expected| <= atol + rtol * |expected|."""

    rtol: float
    atol: float


class Ratios(NamedTuple):
    """How many times another implementation's error ours may be, each against float64."""

    mare: float
    """Of the largest relative error."""
    mere: float
    """Of the mean relative error."""
    rmse: float
    """Of the root of the mean squared error."""


TOLERANCES = {
    torch.float32: Tolerance(1e-5, 1e-5),
    torch.float16: Tolerance(1e-3, 1e-3),
    torch.bfloat16: Tolerance(5e-3, 5e-3),
}
"""Loose comparison with another library's result, by output dtype; the strict one is bitwise."""

EXACT_DTYPES = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.bool})
"""What the table compares for equality."""

LEVELS: dict[Level, Ratios] = {
    "L0": Ratios(10.0, 2.0, 2.0),
    "L1": Ratios(5.0, 1.5, 1.5),
    "L2": Ratios(2.0, 1.2, 1.2),
}
"""Ascend's levels of acceptance, from loose to tight."""

SINGLE_STANDARD = {
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
    torch.float32: 2.0**-13,
}
"""t of Ascend's standard without a second implementation: MERE < t and MARE < 10 * t."""

SMALL_VALUES = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-14,
}
"""Below which Ascend's standard calls a value small, and its relative error meaningless."""

FLASH_FACTOR = 2.0
"""flash-attention's rule: an error at most so many times that of eager PyTorch, same dtype."""


def name_of(dtype: torch.dtype) -> str:
    """Name of a dtype, without its "torch."."""
    return str(dtype).removeprefix("torch.")


def tolerance_for(
    dtype: torch.dtype, rtol: float | None = None, atol: float | None = None
) -> Tolerance:
    """What a float dtype is allowed: as given, the rest from the table.

    Args:
        dtype: float16, bfloat16 or float32; another one only with both tolerances given.
        rtol, atol: not negative, finite; None: the table's.

    Raises:
        ValueError: a tolerance that is negative or not finite, or a dtype that the table lacks.
    """
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{name}: expected a finite number, not negative; got {value!r}")
    table = TOLERANCES.get(dtype)
    if table is None:
        if rtol is None or atol is None:
            raise ValueError(
                f"dtype: {name_of(dtype)} is not in the tolerance table "
                f"({', '.join(map(name_of, TOLERANCES))}); give both rtol and atol"
            )
        return Tolerance(rtol, atol)
    return Tolerance(table.rtol if rtol is None else rtol, table.atol if atol is None else atol)

"""How a comparison judges: the options of `compare`, together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .tolerances import Level, Tolerance, name_of, tolerance_for


@dataclass(frozen=True)
class Rules:
    """The options of `compare`, under the same names."""

    rtol: float | None = None
    atol: float | None = None
    equal_nan: bool = True
    strict: bool = False
    level: Level | None = None
    small_value: float | Mapping[torch.dtype, float] | None = None
    flash_rule: bool = False
    worst: int = 5

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """What a dtype is allowed; nothing, where results must be equal."""
        if self.strict or not dtype.is_floating_point:
            return Tolerance(0.0, 0.0)
        return tolerance_for(dtype, self.rtol, self.atol)

    def small(self, dtype: torch.dtype) -> float | None:
        """The small-value threshold of a dtype.

        Raises:
            ValueError: there is one for each dtype, and none for this.
        """
        if not isinstance(self.small_value, Mapping):
            return self.small_value
        if dtype not in self.small_value:
            listed = ", ".join(map(name_of, self.small_value))
            raise ValueError(
                f"small_value: has none for {name_of(dtype)}, only for {listed}; add one"
            )
        return self.small_value[dtype]

    def words(self, dtype: torch.dtype) -> str:
        """How elements of a dtype are compared."""
        if self.strict:
            return "bit for bit"
        if not dtype.is_floating_point:
            return "must be equal"
        rtol, atol = self.tolerance(dtype)
        nan = "equals" if self.equal_nan else "differs from"
        return f"rtol {rtol:g}, atol {atol:g}, NaN {nan} NaN"

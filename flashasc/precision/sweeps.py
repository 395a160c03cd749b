"""Errors against length: does an operator get worse as its sums get longer?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .comparison import compare
from .golden import golden
from .json_codec import decode, encode
from .plots import draw_sweep
from .statistics import judged


@dataclass(frozen=True)
class SweepRow:
    """One operator at one length; the worst over the tensors that it returns.

    Attributes:
        name: of the operator.
        length: of the inputs.
        relative: norm of the error over the norm of the exact result.
        rmse: root of the mean squared error.
        max_abs: largest error.
        relative_bias: sum of the signed errors over the sum of the exact sizes.
        correctly_rounded: share of outputs that are the exact result, rounded once; the smallest.
        non_finite: elements that are NaN or infinite, in the result or in the exact one. Where the
            two differ the errors are infinite and the bias is NaN; where no element is finite and
            they do not differ, no error is known, and all are NaN.
    """

    name: str
    length: int
    relative: float
    rmse: float
    max_abs: float
    relative_bias: float
    correctly_rounded: float
    non_finite: int


@dataclass(frozen=True)
class Sweep:
    """Errors of one or several operators at several lengths.

    Attributes:
        rows: operator by operator, in the order of the lengths.
    """

    rows: tuple[SweepRow, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The operators."""
        return tuple(dict.fromkeys(row.name for row in self.rows))

    def of(self, name: str) -> tuple[SweepRow, ...]:
        """The rows of one operator.

        Raises:
            KeyError: there is none of this name.
        """
        if name not in self.names:
            raise KeyError(f"{name!r} is none of {list(self.names)}")
        return tuple(row for row in self.rows if row.name == name)

    def growth(self, name: str) -> float:
        """Exponent p of an error that grows like length ** p: fitted to the relative errors.

        Near 0 for compensated sums, about 0.5 where rounding errors of a plain sum are random, 1
        where they have one sign. NaN where fewer than two lengths have an error.
        """
        points = [
            (math.log(row.length), math.log(row.relative))
            for row in self.of(name)
            if 0 < row.relative < math.inf
        ]
        middle = sum(x for x, _ in points) / max(len(points), 1)
        spread = sum((x - middle) ** 2 for x, _ in points)
        return sum((x - middle) * y for x, y in points) / spread if spread else math.nan

    def text(self) -> str:
        """The table as plain text."""
        width = max(map(len, self.names), default=0)
        lines = [
            f"{'':{width}}  {'length':>9} {'relative':>9} {'max error':>9} {'bias':>9} "
            f"{'rounded right':>13} {'not finite':>10}"
        ]
        lines += [
            f"{row.name:{width}}  {row.length:9d} {row.relative:9.2e} {row.max_abs:9.2e} "
            f"{row.relative_bias:+9.1e} {row.correctly_rounded:13.2%} {row.non_finite:10d}"
            for row in self.rows
        ]
        lines += [f"{name}: grows like length ** {self.growth(name):.2f}" for name in self.names]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        found: dict[str, Any] = encode(self)
        return found

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Sweep:
        """The sweep that `to_json` made this of.

        Raises:
            ValueError: something else.
        """
        return decode(cls, found)

    def save_plot(self, path: str | Path) -> None:
        """Draw relative errors against lengths, both logarithmic: .svg, .png or .pdf.

        Raises:
            ImportError: matplotlib is missing; the message says what to install.
        """
        draw_sweep(
            {
                name: ([r.length for r in self.of(name)], [r.relative for r in self.of(name)])
                for name in self.names
            },
            path,
        )


def sweep(
    operators: Mapping[str, Callable[..., Any]],
    make: Callable[[int], Sequence[Any]],
    lengths: Sequence[int],
    *,
    exact: Callable[..., Any] | None = None,
) -> Sweep:
    """Measure operators against the exact result, at several lengths.

    Args:
        operators: by name; each takes what `make` returns.
        make: length -> the arguments, seeded: each operator gets the same.
        lengths: to measure at, 1 or more each.
        exact: takes the same arguments and returns the exact result, in float64. None: the first
            operator, on float64 arguments (`golden`).

    Returns:
        The sweep: print its `text()`, keep its `to_json()`, draw it with `save_plot(file)`.

    Raises:
        ValueError: nothing to measure, or no length; results that are integers.
    """
    if not operators or not lengths:
        raise ValueError("operators, lengths: expected one at least of each")
    if wrong := [length for length in lengths if length < 1]:
        raise ValueError(f"lengths: expected 1 or more, got {wrong[0]}")
    first = next(iter(operators.values()))
    found: dict[str, list[SweepRow]] = {name: [] for name in operators}
    for length in lengths:
        arguments = tuple(make(length))
        truth = exact(*arguments) if exact else golden(first, *arguments)
        for name, operator in operators.items():
            found[name].append(_row(name, length, operator(*arguments), truth))
    return Sweep(tuple(row for rows in found.values() for row in rows))


def _row(name: str, length: int, result: Any, truth: Any) -> SweepRow:
    # only the statistics are wanted: any tolerance will do
    report = compare(result, golden=truth, rtol=0.0, atol=0.0, worst=0)
    floating = [tensor for tensor in report.tensors if tensor.errors]
    if not floating:
        raise ValueError(f"operators: {name} returns no floating tensor, so it has no error")
    wrong = [tensor.non_finite.mismatched for tensor in floating]
    found = [tensor.errors for tensor in floating if tensor.errors]
    # with NaN for the exact result, no error is known: what is NaN there stays it
    errors = [judged(e, bad) if bad else e for e, bad in zip(found, wrong, strict=True)]
    return SweepRow(
        name,
        length,
        relative=_worst([e.relative for e in errors]),
        rmse=_worst([e.rmse for e in errors]),
        max_abs=_worst([e.max_abs for e in errors]),
        relative_bias=_worst([e.relative_bias for e in errors]),
        correctly_rounded=_least([e.correctly_rounded for e in errors]),
        non_finite=sum(t.elements - e.elements for t, e in zip(floating, errors, strict=True)),
    )


def _worst(sizes: list[float]) -> float:
    """The largest in size; NaN where one is."""
    return next((size for size in sizes if math.isnan(size)), max(sizes, key=abs))


def _least(shares: list[float]) -> float:
    return next((share for share in shares if math.isnan(share)), min(shares))

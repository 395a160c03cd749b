"""Plots of a report: speed against length, error against length, speed against error."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .suite import OURS

if TYPE_CHECKING:
    from .report import Point

COLUMNS = 3
"""Plots beside each other; one a family of cases."""


def plots(members: list[Point], folder: Path, stem: str) -> Iterator[tuple[str, str]]:
    """Draw what the points of one group allow; yields (title, file name)."""
    stem = re.sub(r"\W+", "-", stem)
    for name, wanted, draw in (
        ("speed against length", _by_length(members, "rate"), _speed_against_length),
        ("error against length", _by_length(members, "error"), _error_against_length),
        ("speed against error", _longest(members), _speed_against_error),
    ):
        if wanted:
            file = f"{stem}-{name.replace(' ', '-')}.png"
            _figure(wanted, draw, folder / file)
            yield name, file


def _figure(families: dict[str, list[Point]], draw: Any, file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(families))
    rows = math.ceil(len(families) / columns)
    figure = Figure(figsize=(5.5 * columns, 4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(p.implementation for ps in families.values() for p in ps))
    # a name has one colour in every plot
    colours = {name: f"C{number % 10}" for number, name in enumerate(names)}
    for number, (family, points) in enumerate(families.items()):
        axes = figure.add_subplot(rows, columns, number + 1)
        draw(axes, points, colours)
        axes.set_title(family)
        axes.grid(alpha=0.3)
    keys = {
        key: line for axes in figure.axes for line, key in zip(*axes.get_legend_handles_labels())
    }
    figure.legend(keys.values(), keys.keys(), loc="outside lower center", ncols=2 * columns)
    figure.savefig(file, dpi=110)


def _by_length(members: list[Point], quantity: str) -> dict[str, list[Point]]:
    """Families with a quantity at several lengths."""
    found: dict[str, list[Point]] = {}
    for point in members:
        if point.length is not None and getattr(point, quantity) is not None:
            found.setdefault(point.family, []).append(point)
    return {family: ps for family, ps in found.items() if len({p.length for p in ps}) > 1}


def _longest(members: list[Point]) -> dict[str, list[Point]]:
    """The longest case of each family that has both a speed and an error."""
    found: dict[str, list[Point]] = {}
    for point in members:
        if not point.rate or not point.error:
            continue
        best = found.setdefault(point.family, [])
        if best and (point.length or 0) > (best[0].length or 0):
            best.clear()
        if not best or point.case == best[0].case:
            best.append(point)
    return {points[0].case: points for points in found.values()}


def _lines(axes: Any, points: list[Point], colours: dict[str, str], quantity: str) -> None:
    for name in dict.fromkeys(point.implementation for point in points):
        mine = sorted(
            (p.length or 0, getattr(p, quantity)) for p in points if p.implementation == name
        )
        # what lies under another line shows through a dashed one
        style = "-" if name.startswith(OURS) else "--"
        axes.plot(*zip(*mine), style, marker="o", label=name, color=colours[name])
    axes.set_xscale("log", base=2)
    axes.set_xlabel("keys")


def _speed_against_length(axes: Any, points: list[Point], colours: dict[str, str]) -> None:
    _lines(axes, points, colours, "rate")
    _speed_axis(axes, points)


def _error_against_length(axes: Any, points: list[Point], colours: dict[str, str]) -> None:
    _lines(axes, points, colours, "error")
    axes.set_ylabel("relative error")
    axes.set_yscale("log")


def _speed_against_error(axes: Any, points: list[Point], colours: dict[str, str]) -> None:
    for point in points:
        axes.plot(
            point.error,
            point.rate,
            "o",
            label=point.implementation,
            color=colours[point.implementation],
        )
    axes.set_xscale("log")
    axes.set_xlabel("relative error")
    errors = [point.error for point in points if point.error]
    # errors that are alike lie close together
    axes.set_xlim(min(errors) / 2, max(errors) * 2)
    _speed_axis(axes, points)


def _speed_axis(axes: Any, points: list[Point]) -> None:
    axes.set_ylabel(points[0].unit)
    axes.set_ylim(0, 1.08 * max(point.rate or 0.0 for point in points))

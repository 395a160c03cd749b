"""Plots, drawn by matplotlib without a display and without touching its settings."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from .statistics import ULP_EDGES


def draw_sweep(
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], path: str | Path
) -> None:
    """Errors against lengths, a curve each, to a file whose ending says the format.

    Raises:
        ImportError: matplotlib is missing; the message says what to install.
    """
    figure = _figure((6.4, 4.0))
    axes = figure.subplots()
    for name, (lengths, errors) in curves.items():
        # neither no error nor an unknown or infinite one has a place on the axis
        shown = [(x, y) for x, y in zip(lengths, errors) if 0 < y < math.inf]
        axes.plot([x for x, _ in shown], [y for _, y in shown], marker="o", label=name)
    axes.set_xscale("log", base=2)
    if any(0 < y < math.inf for _, errors in curves.values() for y in errors):
        axes.set_yscale("log")
    axes.set_xlabel("length")
    axes.set_ylabel("relative error against float64")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path)


def ulp_labels() -> list[str]:
    """The bins of a histogram of errors in ulps."""
    ends = [f"{edge:g}" for edge in ULP_EDGES]
    return [ends[0], *(f"{low} – {high}" for low, high in pairwise(ends)), f"> {ends[-1]}"]


def ulp_svg(ours: Sequence[int], theirs: Sequence[int] | None) -> str:
    """A histogram of errors in ulps as SVG, another implementation's beside it.

    Args:
        ours, theirs: number of elements in each bin of `ULP_EDGES`.

    Raises:
        ImportError: matplotlib is missing; the message says what to install.
    """
    figure = _figure((7.2, 2.8))
    axes = figure.subplots()
    sides = [("actual", ours), *([("expected", theirs)] if theirs else [])]
    width = 0.8 / len(sides)
    for place, (name, counts) in enumerate(sides):
        total = max(sum(counts), 1)
        left = [i + place * width for i in range(len(counts))]
        axes.bar(left, [100 * n / total for n in counts], width, label=name, align="edge")
    labels = ulp_labels()
    axes.set_xticks([i + 0.4 for i in range(len(labels))], labels, rotation=45, ha="right")
    axes.set_ylabel("% of elements")
    axes.set_xlabel("error in ulps")
    if theirs:
        axes.legend()
    from matplotlib import rc_context

    text = io.StringIO()
    # the same names inside for the same figures, so that a report's page is always the same
    with rc_context({"svg.hashsalt": "flashasc"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _figure(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib, which is not installed; run: pip install 'flashasc[precision]'"
        ) from error
    return Figure(figsize=size, layout="constrained")

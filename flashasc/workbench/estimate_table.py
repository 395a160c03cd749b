"""Estimates as a table for a terminal, and as JSON. Both say that they are estimates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from flashasc.workbench.checks import Verdict
from flashasc.workbench.estimates import Estimated, whole_kernel
from flashasc.workbench.table import groups


@dataclass(frozen=True)
class Problem:
    """A whole attention call: batch, heads, queries, keys, and whether causal."""

    B: int
    Hq: int
    Sq: int
    Sk: int
    causal: bool


def estimate_table(
    verdicts: Sequence[Verdict],
    estimates: Sequence[Estimated | None],
    problem: Problem | None,
    *,
    each_use: bool,
) -> Table:
    """Time per iteration, and of a whole call; the slowest of a configuration's uses."""
    # only attention has rows of queries and keys
    in_pairs = any(item is not None and item.pair_ps is not None for item in estimates)
    caption = "us per iteration of the main loop: all overlapping - nothing overlapping"
    table = Table(
        title="ESTIMATES on paper: nothing was run or measured",
        caption=caption + ("; ps of one core per query row and key" if in_pairs else ""),
        header_style="bold",
    )
    table.add_column("target")
    table.add_column("kernel", overflow="fold")
    for name in ("cube us", "vector us", "transfer us", "bound by", "iteration us", "of peak"):
        table.add_column(name, justify="right")
    if in_pairs:
        table.add_column("ps per pair", justify="right")
    if problem:
        table.add_column("whole call", justify="right")
    found = {id(verdict): item for verdict, item in zip(verdicts, estimates, strict=True)}
    for group in groups(verdicts, each_use=each_use):
        known = [(v, e) for v in group.verdicts if (e := found[id(v)]) is not None]
        head = (group.arch.removeprefix("Ascend"), group.title)
        if not known:
            table.add_row(*head, *["-"] * 3, group.verdicts[0].verdict)
            continue
        verdict, slowest = max(known, key=lambda pair: pair[1].iteration.iteration_us)
        table.add_row(
            *head, *_cells(slowest, in_pairs=in_pairs), *_whole(verdict, slowest, problem)
        )
    return table


def _cells(estimated: Estimated, *, in_pairs: bool) -> list[str]:
    it = estimated.iteration
    cells = [
        f"{it.cube_us:.2f}",
        f"{it.vector_us:.2f}",
        f"{it.transfer_us:.2f} ({it.busiest_route})",
        it.bound_by,
        f"{it.iteration_us:.2f} - {it.serial_us:.2f}",
        f"{100 * it.fraction_of_peak:.0f}%",
    ]
    if in_pairs:
        cells.append("-" if estimated.pair_ps is None else f"{estimated.pair_ps:.0f}")
    return cells


def _whole(verdict: Verdict, estimated: Estimated, problem: Problem | None) -> list[str]:
    if problem is None:
        return []
    fast, slow = _both_ends(verdict, estimated, problem)
    return [
        f"{fast['us']:,.0f} - {slow['us']:,.0f} us, "
        f"{slow['tflop_per_s']:.1f} - {fast['tflop_per_s']:.1f} TFLOP/s"
    ]


def _both_ends(verdict: Verdict, estimated: Estimated, problem: Problem) -> list[dict[str, float]]:
    """A whole call with all of an iteration overlapping, and with nothing."""
    return [
        dataclasses.asdict(
            whole_kernel(
                verdict,
                estimated,
                B=problem.B,
                Hq=problem.Hq,
                Sq=problem.Sq,
                Sk=problem.Sk,
                overlap=overlap,
            )
        )
        for overlap in (True, False)
    ]


def estimate_json(
    verdict: Verdict, estimated: Estimated | None, problem: Problem | None
) -> dict[str, Any]:
    """A verdict as JSON, with its estimate; `estimate` is null for what does not fit."""
    data = verdict.to_json()
    if estimated is None:
        return {**data, "estimate": None}
    found: dict[str, Any] = {
        "what": "an estimate on paper; nothing was run or measured",
        "iteration": dataclasses.asdict(estimated.iteration),
        "pair_ps": estimated.pair_ps,
        "serial_pair_ps": estimated.serial_pair_ps,
    }
    if problem:
        fast, slow = _both_ends(verdict, estimated, problem)
        found["whole_call"] = {**dataclasses.asdict(problem), "overlapping": fast, "serial": slow}
    return {**data, "estimate": found}

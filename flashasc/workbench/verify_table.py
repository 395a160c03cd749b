"""What `verify` found, as a table: rank by layer by check."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from flashasc.distributed.verify import LAYERS, Outcome, Report


def verify_table(report: Report) -> Table:
    """A row for each check, a column for each rank."""
    table = Table(title=f"{report.world} ranks: rank x layer x check")
    table.add_column("layer")
    table.add_column("check")
    for rank in range(report.world):
        table.add_column(f"rank {rank}", justify="center")
    rows: dict[tuple[str, str], dict[int, list[Outcome]]] = {}
    for outcome in sorted(report.outcomes, key=lambda o: (LAYERS.index(o.layer), o.number)):
        row = rows.setdefault((outcome.layer, outcome.check), {})
        row.setdefault(outcome.rank, []).append(outcome)
    before = ""
    for (layer, check), found in rows.items():
        if layer != before:
            table.add_section()
        marks = [_mark(found.get(rank)) for rank in range(report.world)]
        table.add_row(layer if layer != before else "", check, *marks)
        before = layer
    return table


def failure_lines(failures: Sequence[Outcome], most: int = 12) -> list[str]:
    """What went wrong, in the order in which it did."""
    lines = [
        f"{failure.layer}: rank {failure.rank}: {failure.check}: {failure.detail}"
        for failure in failures[:most]
    ]
    more = len(failures) - len(lines)
    return [*lines, f"... and {more} more"] if more else lines


def _mark(outcomes: Sequence[Outcome] | None) -> str:
    """Of all runs of a check on a rank."""
    if not outcomes:
        return "[red]silent[/red]"
    if failed := sum(outcome.ok is False for outcome in outcomes):
        return "[red]FAILED[/red]" + (f" {failed}/{len(outcomes)}" if len(outcomes) > 1 else "")
    missing = sum(outcome.ok is None for outcome in outcomes)
    passed = len(outcomes) - missing
    if missing:
        return f"ok {passed}, then not run" if passed else "not run"
    return "[green]ok[/green]" + (f" {passed}x" if passed > 1 else "")

"""Verdicts as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from flashasc.ascend import CompileReport, Product, Workload
from flashasc.workbench.checks import Verdict

_MEMORIES = ("UB", "L1", "L0C")
# facts that say which row of a tile table a case is of; the rest tells its uses apart
_ROW = ("operation", "dtype", "precision", "max_head", "block_m", "block_n")


@dataclass(frozen=True)
class Group:
    """Verdicts shown on one line: the uses of one configuration on one processor."""

    arch: str
    title: str
    verdicts: tuple[Verdict, ...]


def groups(verdicts: Iterable[Verdict], *, each_use: bool) -> list[Group]:
    """Put together the verdicts of one configuration, unless each use is to have its line."""
    found: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        case = verdict.case
        found.setdefault((case.arch, _title(verdict, each_use=each_use)), []).append(verdict)
    return [Group(arch, title, tuple(members)) for (arch, title), members in found.items()]


def check_table(verdicts: Sequence[Verdict], *, each_use: bool = False) -> Table:
    """Whether each configuration fits, and what it would do; the worst of its uses."""
    table = Table(
        title="What the open Ascend compiler makes of it (compiled, not run)",
        caption="per iteration of the main loop: vector repeats (256 bytes; + in branches), KiB "
        "moved by the cube core / by each vector core, waits on another core",
        header_style="bold",
    )
    for name in ("target", "kernel"):
        table.add_column(name, overflow="fold")
    table.add_column("verdict")
    for name in _MEMORIES:
        table.add_column(f"{name} bytes", justify="right")
    table.add_column("doubled")
    table.add_column("products", overflow="fold")
    for name in ("repeats", "KiB", "syncs"):
        table.add_column(name, justify="right")
    for group in groups(verdicts, each_use=each_use):
        reports = [v.report for v in group.verdicts if v.report]
        loads = [report.workload for report in reports if report.workload]
        table.add_row(
            group.arch.removeprefix("Ascend"),
            group.title,
            _verdicts(group.verdicts),
            *(_memory(reports, name) for name in _MEMORIES),
            _doubled(group.verdicts, loads),
            _worst(loads, lambda load: sum(_flop(p) for p in load.products), _products),
            _worst(loads, _repeats, lambda load: _plus(load.vector_repeats, load.branch_repeats)),
            _worst(loads, lambda load: sum(load.bytes_moved.values()), _moved),
            _worst(loads, lambda load: load.core_syncs, lambda load: str(load.core_syncs)),
        )
    return table


def _title(verdict: Verdict, *, each_use: bool) -> str:
    facts = verdict.case.facts
    if "row" in facts:
        title = f"{facts['operation']} {facts['dtype']} {facts['row']}"
        title += f" {facts['block_m']}x{facts['block_n']}"
        return f"{title}, {facts['use']}" if each_use else title
    if not all(name in facts for name in _ROW):
        return verdict.case.name
    title = (
        f"{facts['operation']} {facts['dtype']} {facts['precision']} D<={facts['max_head']} "
        f"{facts['block_m']}x{facts['block_n']}"
    )
    return f"{title}, {facts['use']}" if each_use else title


def _verdicts(verdicts: Sequence[Verdict]) -> Text:
    counts = Counter(verdict.verdict for verdict in verdicts if not verdict.ok)
    if not counts:
        return Text("fits", "green")
    parts = [f"{name} ({count} of {len(verdicts)})" for name, count in counts.items()]
    single = len(verdicts) == 1
    return Text(next(iter(counts)) if single else ", ".join(parts), "bold red")


def _memory(reports: Sequence[CompileReport], name: str) -> str:
    found = [report.memory[name] for report in reports if name in report.memory]
    if not found:
        return "-"
    worst = max(found, key=lambda use: use.used)
    return f"{worst.used:,} {100 * worst.used / worst.available:.0f}%"


def _doubled(verdicts: Sequence[Verdict], loads: Sequence[Workload]) -> str:
    """How many buffers of the loop's transfers are kept twice, in the use that doubles fewest."""
    if not loads:
        return "-"
    if not any(verdict.multibuffer for verdict in verdicts):
        return "off"
    fewest = min(loads, key=lambda load: len(load.doubled))
    total = len(fewest.doubled) + len(fewest.loop_buffers_single)
    lost = any(verdict.report and verdict.report.retried for verdict in verdicts)
    return f"{len(fewest.doubled)} of {total}" + (" (lost)" if lost and not fewest.doubled else "")


def _worst(
    loads: Sequence[Workload], size: Callable[[Workload], float], show: Callable[[Workload], str]
) -> str:
    return show(max(loads, key=size)) if loads else "-"


def _repeats(load: Workload) -> int:
    return load.vector_repeats + load.branch_repeats


def _flop(product: Product) -> float:
    return 2 * product.m * product.n * product.k * product.count


def _products(load: Workload) -> str:
    shapes = (
        f"{p.m}x{p.n}x{p.k} {p.dtype}" + (f" *{p.count:g}" if p.count != 1 else "")
        for p in load.products
    )
    return ", ".join(shapes) or "-"


def _plus(always: int, in_branches: int) -> str:
    return f"{always:,}" + (f" + {in_branches:,}" if in_branches else "")


def _moved(load: Workload) -> str:
    cube, vector = split_by_core(load.bytes_moved)
    return f"{cube / 1024:.0f} / {vector / 1024:.0f}"


def split_by_core(bytes_moved: Mapping[str, int]) -> tuple[int, int]:
    """Bytes that one cube core and one vector core move, from a workload's routes."""
    cube = vector = 0
    for route, size in bytes_moved.items():
        # a vector core's memory is UB; what comes straight from L0C is the cube core's transfer
        if "UB" in route and not route.startswith("L0C"):
            vector += size
        else:
            cube += size
    return cube, vector

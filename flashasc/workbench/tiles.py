"""The search for tiles: candidates through the compiler and the estimate, best first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from flashasc._configs import TileConfig, ascend
from flashasc._problem import Precision
from flashasc.ascend import CompileReport
from flashasc.workbench.case import Case
from flashasc.workbench.checks import Verdict, check
from flashasc.workbench.estimates import Estimated, estimate_all
from flashasc.workbench.shipped import DTYPES, Use, attention_case, uses
from flashasc.workbench.tile_evidence import OPTION_BUCKETS, SEARCHED, Record, Slot

SHAPES = (
    *((64, 512), (128, 256)),
    *((64, 256), (128, 128)),
    # the compiler takes any multiple of 16
    *((48, 256), (64, 192), (96, 128)),
    *((32, 256), (64, 128), (128, 64)),
    *((32, 128), (64, 64)),
    *((16, 128), (32, 64), (64, 32)),
    *((16, 64), (32, 32)),
    *((16, 32),),
)
"""(block_m, block_n), those of one area in a line."""
_START = 64 * 128


def search(
    slot: Slot,
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    start: int = _START,
    further: int | None = None,
    timeout: float = 60,
    workers: int | None = None,
    done: Callable[[str], None] = lambda what: None,
) -> list[Record]:
    """Try tiles for a slot, until the best by estimate is known to fit in every use.

    Candidates are compiled in the row's first use, from tiles of a middling area on: larger ones
    until none of an area fits, smaller ones only where not all larger ones do, as a larger tile
    shares out its fixed work over more pairs of query and key. Those at least as large both ways as
    one that overflowed are skipped. From the best estimate on, the further uses are compiled, the
    first one also for the processors that share the slot's memories, until one candidate passes
    all. Compilations come out of the cache where they were made before, so a search that was
    stopped goes on quickly.

    Args:
        slot: what to search for.
        shapes: (block_m, block_n) to try.
        start: area, queries x keys, of the first candidates.
        further: how many further uses are compiled; all by default.
        timeout: seconds for one compilation; one that takes longer does not fit.
        workers: as `flashasc.workbench.check`.
        done: told of every compilation that ended.

    Raises:
        ToolchainError: a package is missing.
    """

    def compiled(cases: Sequence[Case]) -> list[Verdict]:
        return check(
            cases, timeout=timeout, workers=workers, done=lambda verdict: done(verdict.case.name)
        )

    records: list[Record] = []
    too_large: dict[tuple[int, int], str] = {}
    larger_fit = squeezed = True
    for wave in _waves(shapes, start):
        area = wave[0][0] * wave[0][1]
        if area > start and not larger_fit:
            continue
        if area < start and not squeezed and any(record.chosen_if_best for record in records):
            break
        tried = []
        for shape in wave:
            if smaller := _dominated(shape, too_large):
                why = f"skipped: {smaller[0]}x{smaller[1]} {too_large[smaller]}"
                records.append(Record(slot, *shape, candidate(slot, *shape).segment, why))
            else:
                tried.append(candidate(slot, *shape))
        verdicts = compiled([use_case(row, 0, slot.arch) for row in tried])
        estimates = estimate_all(verdicts, timeout=timeout, workers=workers)
        for row, verdict, estimated in zip(tried, verdicts, estimates, strict=True):
            if verdict.verdict.startswith("overflows"):
                too_large[_shape(row)] = verdict.verdict
            records.append(_record(slot, row, verdict, estimated))
        larger_fit = any(verdict.fits for verdict in verdicts)
        squeezed = not all(verdict.fits for verdict in verdicts) or len(tried) < len(wave)
        if area <= start or not larger_fit:
            _confirm(records, further, compiled)
    if larger_fit:
        _confirm(records, further, compiled)
    return records


def _confirm(
    records: list[Record],
    further: int | None,
    compiled: Callable[[Sequence[Case]], list[Verdict]],
) -> None:
    """Compile the further uses of candidates, from the best on, until one passes in all of them."""
    ranked = sorted((r for r in records if r.eligible and not r.uses), key=lambda r: r.rank)
    for record in ranked:
        if any(known.chosen_if_best and known.rank < record.rank for known in records):
            break
        slot = record.slot
        row = candidate(slot, record.block_m, record.block_n)
        numbers = range(1, len(_uses(row)) if further is None else 1 + further)
        verdicts = compiled(
            [use_case(row, number, slot.arch) for number in numbers]
            + [use_case(row, 0, arch) for arch in SEARCHED[slot.arch]]
        )
        found = {
            f"{verdict.case.arch}, {verdict.case.facts['use']}": verdict.verdict
            for verdict in verdicts
        }
        records[records.index(record)] = dataclasses.replace(record, uses=found)


def candidate(slot: Slot, block_m: int, block_n: int) -> TileConfig:
    """A row of the table for a slot, with this tile."""
    return ascend.row(
        (slot.arch,),
        DTYPES[slot.dtype],
        cast(Precision, slot.precision),
        slot.max_head,
        slot.options,
        block_m,
        block_n,
        "a candidate",
    )


def use_case(row: TileConfig, number: int, arch: str) -> Case:
    """One of the uses of a row, as a case."""
    return attention_case(row, _uses(row)[number], arch)


def _uses(row: TileConfig) -> tuple[Use, ...]:
    buckets = OPTION_BUCKETS["reach" if row.options else "none"]
    return uses(row, max((size for size in buckets if size < row.max_head), default=0))


def _shape(row: TileConfig) -> tuple[int, int]:
    return row.block_m, row.block_n


def _waves(shapes: Sequence[tuple[int, int]], start: int) -> Iterator[list[tuple[int, int]]]:
    """Shapes of equal area together: `start`, the larger ones, then the smaller ones."""
    areas = sorted({m * n for m, n in shapes})
    larger = [area for area in areas if area >= start]
    for area in (*larger, *reversed(areas[: len(areas) - len(larger)])):
        yield [shape for shape in shapes if shape[0] * shape[1] == area]


def _dominated(
    shape: tuple[int, int], too_large: dict[tuple[int, int], str]
) -> tuple[int, int] | None:
    for smaller in too_large:
        if smaller[0] <= shape[0] and smaller[1] <= shape[1]:
            return smaller
    return None


def _record(slot: Slot, row: TileConfig, verdict: Verdict, estimated: Estimated | None) -> Record:
    report = verdict.report
    record = Record(slot, *_shape(row), row.segment, verdict.verdict)
    if report is None or report.workload is None or estimated is None:
        return record
    load = report.workload
    assert estimated.pair_ps is not None and estimated.serial_pair_ps is not None
    return dataclasses.replace(
        record,
        memory={
            name: round(100 * use.used / use.available, 1) for name, use in report.memory.items()
        },
        repeats=(load.vector_repeats, load.branch_repeats),
        doubled=(len(load.doubled), len(load.loop_buffers_single)),
        buffers_kept=buffers_kept(report, multibuffer=verdict.multibuffer),
        estimate_ps=round(estimated.pair_ps, 4),
        serial_ps=round(estimated.serial_pair_ps, 4),
        bound_by=estimated.iteration.bound_by,
        compiler=report.compiler,
    )


def buffers_kept(report: CompileReport, *, multibuffer: bool) -> bool:
    """Whether the loop's tiles are double-buffered, where the target does that by default."""
    if not multibuffer:
        return True
    return not report.retried and report.workload is not None and bool(report.workload.doubled)

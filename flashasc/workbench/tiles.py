"""The search for tiles: candidates through the compiler and the estimate, best first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import product
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
    *product((16, 32, 64, 128), (32, 64, 128, 256, 512)),
    # the compiler takes any multiple of 16
    *((48, 256), (64, 192), (96, 128)),
)
_START = 64 * 128


def search(
    slot: Slot,
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    timeout: float = 60,
    workers: int | None = None,
    done: Callable[[str], None] = lambda what: None,
) -> list[Record]:
    """Try tiles for a slot, until the best by estimate is known to fit in every use.

    Candidates are compiled in the row's first use, from tiles of a middling area on: larger ones
    until none of an area fits, smaller ones only where no larger one does, as a larger tile shares
    out its fixed work over more pairs of query and key. Those at least as large both ways as one
    that overflowed are skipped. From the best estimate on, the further uses are compiled, also on
    the processors that share the slot's memories, until one candidate passes all. Compilations come
    out of the cache where they were made before, so a search that was stopped goes on quickly.

    Args:
        slot: what to search for.
        shapes: (block_m, block_n) to try.
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
    fitted: list[bool] = []
    for wave in _waves(shapes):
        area = wave[0][0] * wave[0][1]
        if fitted and not fitted[-1] and area > _START:
            continue
        if any(fitted) and area < _START:
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
        fitted.append(any(verdict.fits for verdict in verdicts))
    ranked = sorted(
        (record for record in records if record.eligible), key=lambda record: record.rank
    )
    for record in ranked:
        row = candidate(slot, record.block_m, record.block_n)
        further = [
            use_case(row, number, arch)
            for arch in (slot.arch, *SEARCHED[slot.arch])
            for number in range(len(_uses(row)))
            if (arch, number) != (slot.arch, 0)
        ]
        found = {
            f"{verdict.case.arch}, {verdict.case.facts['use']}": verdict.verdict
            for verdict in compiled(further)
        }
        confirmed = dataclasses.replace(record, uses=found)
        records[records.index(record)] = confirmed
        if confirmed.chosen_if_best:
            break
    return records


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


def _waves(shapes: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Shapes of equal area together: a middling area, the larger ones, then the smaller ones."""
    areas = sorted({m * n for m, n in shapes})
    larger = [area for area in areas if area >= _START]
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

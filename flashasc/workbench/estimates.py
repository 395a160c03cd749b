"""Estimated time of what was compiled: on paper, from static counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from flashasc.ascend import Estimate, KernelEstimate, Workload, attention_time, estimate
from flashasc.workbench.checks import Verdict, check


@dataclasses.dataclass(frozen=True)
class Estimated:
    """An estimate, and the workload that it is of: nothing was measured.

    Attributes:
        workload: of one iteration, with what happens once in several counted as its share.
        iteration: time of one iteration.
        pair_ps: picoseconds of one core per query row and key; None where that has no meaning.
        serial_pair_ps: the same if nothing within an iteration overlaps.
    """

    workload: Workload
    iteration: Estimate
    pair_ps: float | None
    serial_pair_ps: float | None


def estimate_all(
    verdicts: Sequence[Verdict],
    *,
    timeout: float = 180,
    workers: int | None = None,
    cache: bool = True,
) -> list[Estimated | None]:
    """Estimate one iteration of each kernel's main loop; None for those that don't fit.

    Compiles what it needs to tell branches apart: a compensated sum over segments of several tiles
    is compared with the plain sum at the same tile.
    """
    others = [v.case.plainly for v in verdicts if v.fits and v.case.plainly is not None]
    found = check(others, timeout=timeout, workers=workers, cache=cache) if others else []
    loads = {id(verdict.case): _workload(verdict) for verdict in found}
    return [_estimate(verdict, loads.get(id(verdict.case.plainly))) for verdict in verdicts]


def amortised(load: Workload, segment: int, plainly: Workload | None) -> Workload:
    """A workload in which the fold at the end of a segment counts once in `segment` iterations.

    The compiler's output has the fold in a branch, as it has the mask. What the branches hold
    beyond those of the plain sum at the same tile is the fold; all of it, where that is not known.
    """
    if segment == 1:
        return load
    mask = plainly.branch_repeats if plainly else 0
    fold = max(0, load.branch_repeats - mask)
    always = load.vector_repeats + round(fold / segment)
    return dataclasses.replace(
        load, vector_repeats=always, branch_repeats=load.branch_repeats - fold
    )


def whole_kernel(
    verdict: Verdict, estimated: Estimated, *, B: int, Hq: int, Sq: int, Sk: int, overlap: bool
) -> KernelEstimate:
    """Estimate a whole attention kernel from the estimate of its loop; see `attention_time`."""
    facts = verdict.case.facts
    return attention_time(
        estimated.workload,
        verdict.case.arch,
        B=B,
        Hq=Hq,
        Sq=Sq,
        Sk=Sk,
        D=int(str(facts["max_head"])),
        block_m=int(str(facts["block_m"])),
        causal=bool(facts["causal"]),
        overlap=overlap,
    )


def _workload(verdict: Verdict) -> Workload | None:
    return verdict.report.workload if verdict.report and verdict.fits else None


def _estimate(verdict: Verdict, plainly: Workload | None) -> Estimated | None:
    load = _workload(verdict)
    if load is None:
        return None
    facts = verdict.case.facts
    load = amortised(load, int(str(facts.get("segment", 1))), plainly)
    iteration = estimate(load, verdict.case.arch)
    if "block_m" not in facts or "block_n" not in facts:
        return Estimated(load, iteration, None, None)
    pairs = int(str(facts["block_m"])) * int(str(facts["block_n"]))
    return Estimated(
        load, iteration, 1e6 * iteration.iteration_us / pairs, 1e6 * iteration.serial_us / pairs
    )

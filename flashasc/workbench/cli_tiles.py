"""`python -m flashasc ascend tiles`: search for the tiles of the tile table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flashasc.workbench.checks import require_toolchain
from flashasc.workbench.console import progress_bar, usage_errors
from flashasc.workbench.options import Target, Timeout, Workers
from flashasc.workbench.shipped import full_name
from flashasc.workbench.tile_evidence import (
    ALL_SLOTS,
    BUCKETS,
    SEARCHED,
    Record,
    Slot,
    merged,
    missing,
    read_evidence,
    select,
    table_text,
    write_evidence,
)
from flashasc.workbench.tiles import SHAPES, search

_ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = _ROOT / "bench" / "results" / "ascend_tiles.json"
TABLE = _ROOT / "flashasc" / "_configs" / "ascend_tiles.py"


def tiles_command(
    target: Target = None,
    dtype: Annotated[str | None, typer.Option(help="Only rows of this dtype.")] = None,
    precision: Annotated[str | None, typer.Option(help="Only rows of this precision.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Only rows of this largest head.")] = None,
    search_none: Annotated[
        bool, typer.Option("--from-evidence", help="Search nothing: only write the table anew.")
    ] = False,
    evidence: Annotated[
        Path, typer.Option(help="Every candidate; what is searched now is replaced in it.")
    ] = EVIDENCE,
    table: Annotated[Path, typer.Option(help="The table; written once every row has a tile.")] = (
        TABLE
    ),
    timeout: Timeout = 60,
    workers: Workers = None,
) -> None:
    """Search for the tiles of the tile table, and write it and the evidence for it.

    Ends with status 1 while a row of the table has no tile.
    """
    with usage_errors():
        for path in (evidence, table):
            if not path.parent.is_dir():
                raise ValueError(f"{path}: no such folder; run this in a source checkout")
        known = read_evidence(evidence)
        slots = [] if search_none else _slots(target, dtype, precision, head_dim)
        if slots:
            tools = require_toolchain(sorted({slot.arch for slot in slots}))
            known = _search(slots, known, evidence, tools, timeout=timeout, workers=workers)
    chosen = select(known)
    if lacking := missing(chosen):
        print(f"{table.name} is not written; no tile yet for {len(lacking)} of its rows:")
        print("\n".join(f"  {slot}" for slot in lacking))
        raise typer.Exit(1)
    table.write_text(table_text(chosen))
    print(f"{table}: {len(merged(chosen))} rows written, from {len(known)} candidates")


def _slots(
    target: Sequence[str] | None, dtype: str | None, precision: str | None, head_dim: int | None
) -> list[Slot]:
    """The rows that are asked for."""
    asked = {
        "arch": [full_name(name) for name in target] if target else None,
        "dtype": [dtype] if dtype else None,
        "precision": [precision] if precision else None,
        "max_head": [head_dim] if head_dim else None,
    }
    found = list(ALL_SLOTS)
    for name, wanted in asked.items():
        if wanted is None:
            continue
        there = list(dict.fromkeys(getattr(slot, name) for slot in ALL_SLOTS))
        if unknown := [value for value in wanted if value not in there]:
            option = {"arch": "target", "max_head": "head-dim"}.get(name, name)
            listed = ", ".join(map(str, there))
            raise ValueError(f"--{option}: {unknown[0]} is not searched; expected {listed}")
        found = [slot for slot in found if getattr(slot, name) in wanted]
    return found


def _search(
    slots: Sequence[Slot],
    known: Sequence[Record],
    evidence: Path,
    tools: Mapping[str, str],
    *,
    timeout: float,
    workers: int | None,
) -> list[Record]:
    """Search slot by slot, writing the evidence after each."""
    records = list(known)
    started = time.monotonic()
    for number, slot in enumerate(slots, 1):
        with progress_bar(f"{slot}", None) as advance:
            limits: dict[str, Any] = {"timeout": timeout, "workers": workers, "done": advance}
            found = search(slot, **_narrowed(slot, records), **limits)
            if not select(found).get(slot):
                found = search(slot, **limits)
        records = [record for record in records if record.slot != slot] + found
        write_evidence(evidence, records, tools)
        best = select(found).get(slot)
        spent = (time.monotonic() - started) / 60
        left = spent / number * (len(slots) - number)
        print(
            f"{number}/{len(slots)} {slot}: "
            + (f"{best.block_m}x{best.block_n}" if best else "no tile fits in every use")
            + f"; {spent:.1f} min, about {left:.0f} to go",
            flush=True,
        )
    return records


def _narrowed(slot: Slot, records: Sequence[Record]) -> dict[str, Any]:
    """Where to begin, from what is chosen for a slot that needs no more room.

    That is one of the next smaller head size: a tile that did not fit there does not fit here. For
    bfloat16 float16's tile is tried: it takes the same room.
    """
    chosen = select(records)
    if slot.dtype == "bfloat16":
        if alike := chosen.get(dataclasses.replace(slot, dtype="float16")):
            return {
                "shapes": [(alike.block_m, alike.block_n)],
                "further": 0 if SEARCHED[slot.arch] else 1,
            }
        return {}
    if slot.options != "none":
        # a mask, a bias and a cap at once take several tiles of scores: only small ones are tried
        shapes = [(m, n) for m, n in SHAPES if m <= 32 and m * n <= 32 * 64]
        return {"shapes": shapes, "start": 32 * 64, "further": 2}
    place = BUCKETS.index(slot.max_head)
    smaller = chosen.get(dataclasses.replace(slot, max_head=BUCKETS[place - 1])) if place else None
    if smaller is None:
        return {}
    area = smaller.block_m * smaller.block_n
    return {"shapes": [(m, n) for m, n in SHAPES if m * n <= area], "start": area}

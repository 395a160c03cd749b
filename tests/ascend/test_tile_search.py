"""The search for tiles, the choice among what it found, and the table made of the choice."""

from __future__ import annotations

import dataclasses
import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)
pytest.importorskip("typer")

import itertools

from typer.testing import CliRunner

from flashasc.ascend import Workload
from flashasc.workbench import tiles
from flashasc.workbench.cli import app
from flashasc.workbench.estimates import amortised
from flashasc.workbench.tile_evidence import (
    ALL_SLOTS,
    SEARCHED,
    Record,
    Slot,
    missing,
    read_evidence,
    select,
    table_text,
    write_evidence,
)
from tests.conftest import ROOT

SLOT = Slot("Ascend910B3", "float16", "standard", 32)
GOOD = Record(
    slot=SLOT,
    block_m=64,
    block_n=128,
    segment=1,
    verdict="fits",
    memory={"UB": 80.0},
    repeats=(400, 30),
    doubled=(3, 6),
    buffers_kept=True,
    estimate_ps=50.0,
    serial_ps=100.0,
    bound_by="vector",
    uses={"Ascend910B3, D=31": "fits", "Ascend910_9392, D=32": "fits"},
    compiler="bishengir-compile 1.2.0",
)
FASTER = dataclasses.replace(GOOD, block_n=256, estimate_ps=40.0)


def complete() -> list[Record]:
    return [dataclasses.replace(GOOD, slot=slot) for slot in ALL_SLOTS]


@pytest.mark.parametrize(
    "faster, why",
    [
        ({"verdict": "overflows UB"}, "it does not fit"),
        ({"verdict": "retried"}, "the compiler gave something up"),
        ({"verdict": "timed out"}, "it was not compiled to the end"),
        ({"buffers_kept": False}, "double buffers were lost"),
        ({"uses": {}}, "its other uses were not tried"),
        ({"uses": {"D=31": "fits", "D=1": "overflows UB"}}, "one use does not fit"),
        ({"estimate_ps": None}, "there is no estimate"),
        ({"estimate_ps": 60.0}, "it is slower by estimate"),
        ({"estimate_ps": 50.0, "serial_ps": 101.0}, "as fast, but slower where nothing overlaps"),
        ({"estimate_ps": 50.0, "memory": {"UB": 81.0}}, "as fast, and leaves less room"),
    ],
)
def test_what_is_not_chosen(faster: dict, why: str) -> None:
    other = dataclasses.replace(FASTER, **faster)
    assert select([GOOD, other]) == select([other, GOOD]) == {SLOT: GOOD}, why


def test_the_fastest_is_chosen_in_any_order() -> None:
    assert select([GOOD, FASTER]) == select([FASTER, GOOD]) == {SLOT: FASTER}


def test_slots_cover_every_row_once() -> None:
    assert len(ALL_SLOTS) == len(set(ALL_SLOTS)) == 2 * 3 * 2 * 7
    assert {*SEARCHED, *sum(SEARCHED.values(), ())} == {
        "Ascend910B3",
        "Ascend910_9392",
        "Ascend950PR_9589",
    }
    # a smaller head size comes before a larger, as the table is read
    for before, after in itertools.pairwise(ALL_SLOTS):
        if dataclasses.replace(before, max_head=after.max_head) == after:
            assert before.max_head < after.max_head


def test_evidence_survives_being_written(tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    skipped = Record(SLOT, 128, 512, 1, "skipped: 64x512 overflows UB")
    records = [skipped, *reversed(complete()), FASTER]
    write_evidence(file, records, {"ascendnpu-ir": "1.2.0"})
    again = read_evidence(file)
    assert len(again) == len(records)
    assert all(record in again for record in records)
    assert select(again) == select(records)
    assert list(select(again)) == list(ALL_SLOTS)


def test_damaged_evidence_is_named(tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    assert read_evidence(file) == []
    file.write_text('{"records": [{}]}')
    with pytest.raises(ValueError, match=r"evidence\.json cannot be read"):
        read_evidence(file)


def test_the_table_says_what_was_chosen(tmp_path: Path) -> None:
    """And a row that the next larger one stands for, having the same tile, is left out."""
    wider = {64, 256}
    records = [
        dataclasses.replace(record, block_n=256, estimate_ps=record.slot.max_head / 2)
        if record.slot.max_head in wider
        else record
        for record in complete()
    ]
    file = tmp_path / "ascend_tiles.py"
    file.write_text(table_text(select(records)))
    rows = runpy.run_path(str(file))["ROWS"]
    slots = [slot for slot in ALL_SLOTS if slot.max_head in (32, 64, 192, 256)]
    assert len(rows) == len(slots) == 12 * 4
    for row, slot in zip(rows, slots, strict=True):
        assert row.targets == (slot.arch, *SEARCHED[slot.arch])
        assert (row.dtype, row.precision, row.max_head) == (
            slot.dtype,
            slot.precision,
            slot.max_head,
        )
        wide = slot.max_head in wider
        assert (row.block_m, row.block_n, row.segment) == (64, 256 if wide else 128, 1)
        assert (row.ub_percent, row.estimate_ps) == (80.0, slot.max_head / 2 if wide else 50.0)
        assert row.compiler == "bishengir-compile 1.2.0"


def test_the_table_is_written_as_lint_wants_it(tmp_path: Path) -> None:
    file = tmp_path / "ascend_tiles.py"
    file.write_text(table_text(select(complete())))
    for verb in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *verb, "--config", str(ROOT / "pyproject.toml")]
        done = subprocess.run([*command, str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def tiles_command(tmp_path: Path, *arguments: str):
    where = ("--evidence", str(tmp_path / "evidence.json"), "--table", str(tmp_path / "table.py"))
    return CliRunner().invoke(app, ["ascend", "tiles", *where, *arguments])


def test_the_command_writes_the_table_from_evidence(tmp_path: Path) -> None:
    write_evidence(tmp_path / "evidence.json", complete(), {})
    result = tiles_command(tmp_path, "--from-evidence")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "table.py").read_text() == table_text(select(complete()))


def test_no_table_while_a_row_has_no_tile(tmp_path: Path) -> None:
    write_evidence(tmp_path / "evidence.json", complete()[1:], {})
    result = tiles_command(tmp_path, "--from-evidence")
    assert result.exit_code == 1
    assert str(ALL_SLOTS[0]) in result.stdout
    assert not (tmp_path / "table.py").exists()
    assert missing(select(complete()[1:])) == [ALL_SLOTS[0]]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--target", "910_9392"), "--target: Ascend910_9392 is not searched; expected Ascend910B"),
        (("--head-dim", "48"), "--head-dim: 48 is not searched; expected 32, 64, 80"),
        (("--dtype", "float64"), "--dtype: float64 is not searched"),
    ],
)
def test_wrong_calls_are_status_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = tiles_command(tmp_path, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


LOAD = Workload(
    loop_step=128,
    products=(),
    vector_ops={},
    vector_repeats=400,
    branch_repeats=180,
    bytes_moved={},
    core_syncs=3,
    local_syncs=10,
    doubled=(),
    loop_buffers_single=(),
)


def test_a_fold_counts_once_in_a_segment() -> None:
    plainly = dataclasses.replace(LOAD, vector_repeats=350, branch_repeats=100)
    load = amortised(LOAD, 4, plainly)
    assert (load.vector_repeats, load.branch_repeats) == (400 + 80 / 4, 100)
    # nothing to compare with: all branches count as the fold, which is too much and not too little
    assert amortised(LOAD, 4, None).vector_repeats == 400 + 180 / 4
    assert amortised(LOAD, 1, None) == LOAD


def test_larger_tiles_than_one_that_overflowed_are_skipped() -> None:
    too_large = {(64, 256): "overflows UB"}
    assert tiles._dominated((64, 512), too_large) == (64, 256)
    assert tiles._dominated((128, 256), too_large) == (64, 256)
    assert tiles._dominated((32, 512), too_large) is None
    assert tiles._dominated((128, 128), too_large) is None


def test_a_search() -> None:
    shapes = ((16, 32), (32, 64), (128, 512), (128, 1024))
    told: list[str] = []
    records = tiles.search(SLOT, shapes=shapes, done=told.append)
    assert [(r.block_m, r.block_n) for r in records] == list(shapes)
    by_shape = dict(zip(shapes, records, strict=True))
    assert by_shape[128, 512].verdict.startswith("overflows")
    assert by_shape[128, 1024].verdict.startswith("skipped: 128x512 overflows")
    small, best = by_shape[16, 32], by_shape[32, 64]
    assert small.verdict == best.verdict == "fits"
    assert small.estimate_ps > best.estimate_ps > 0
    assert best.buffers_kept
    # the best alone is tried in its other uses, on both processors that share the tile
    assert not small.uses
    assert len(best.uses) == 7
    assert sum(use.startswith("Ascend910_9392, ") for use in best.uses) == 4
    assert select(records) == {SLOT: best}
    assert len(told) == 3 + 7


def test_a_candidate_keeps_the_keys_of_a_segment() -> None:
    slot = dataclasses.replace(SLOT, precision="compensated")
    keys = {c.segment * c.block_n for c in (tiles.candidate(slot, 64, n) for n in (32, 64, 128))}
    assert len(keys) == 1 or all(tiles.candidate(slot, 64, n).segment == 1 for n in (32, 64, 128))
    assert tiles.candidate(SLOT, 64, 32).segment == 1

"""`flashasc verify` finds every fault, in its layer, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from flashasc.distributed.verify import FAULTS, LAYERS, Report, Request
from flashasc.distributed.verify.tags import difference, tagged
from flashasc.workbench.cli import app
from tests.conftest import ROOT
from tests.distributed import verifying
from tests.distributed.ranks import Died, on_ranks, returned

WORLD = 3
QUIET = [name for name, fault in FAULTS.items() if not fault.breaks]
BREAKING = [name for name, fault in FAULTS.items() if fault.breaks]

# where a fault of what arrives is seen: on the rank that has it; others are seen by the others
SEEN_THERE = {
    "swap-blocks",
    "stale-buffer",
    "corrupt",
    "zeros",
    "truncate",
    "count-twice",
    "wrong-diagonal",
    "skip-merge",
    "skip-block",
    "sink-twice",
    "rounded-states",
    "shifted-output",
}


def request_for(name: str, at: int) -> Request:
    layer = FAULTS[name].layer
    return Request(
        # up to the layer that has to find it: those before must not
        layers=LAYERS[: LAYERS.index(layer) + 1],
        ops=("ring", "ulysses") if layer == "comm" else ("ring",),
        dtypes=(torch.float32,),
        # far more than a transfer takes: these faults are found without it
        timeout=60.0,
        inject=name,
        at=at,
    )


@lru_cache
def quiet_reports() -> dict[tuple[str, int], Report]:
    """What rank 1 learns of every fault on every rank, in one group."""
    places = [(name, at) for name in QUIET for at in range(WORLD)]
    requests = [request_for(name, at) for name, at in places]
    results = returned(on_ranks(WORLD, verifying.reports, requests, patience=240))
    # all ranks know the same
    assert [r.verdict for r in results[0]] == [r.verdict for r in results[2]]
    return dict(zip(places, results[1]))


@pytest.mark.parametrize("at", range(WORLD))
@pytest.mark.parametrize("name", QUIET)
def test_a_fault_is_found_in_its_layer(name: str, at: int) -> None:
    report = quiet_reports()[name, at]
    assert not report.ok and not report.silent
    assert report.layer == FAULTS[name].layer, report.verdict
    ranks = {failure.rank for failure in report.failures}
    if name in SEEN_THERE:
        # the ring hands on what it got: later steps of other ranks are wrong in consequence
        first = report.failures[0]
        assert first.rank == at, report.verdict
        if FAULTS[name].layer != "comm":
            assert ranks == {at}
    else:
        assert all(f"of rank {at}" in failure.detail for failure in report.failures)


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("swap-blocks", "where the block of rank 0 belongs: holds the block of rank 1"),
        ("zeros", "all zeros"),
        ("corrupt", "1 of 39 elements differ, the first at 38"),
        ("truncate", "truncated: right up to element"),
        ("count-twice", "holds the sum with rank 2 counted twice"),
        ("wrong-shard", "with shard 2 of rank 2 in place of its shard 0"),
        ("stale-heads", "where query head 0 of rank 2 belongs: holds query head"),
        ("wrong-diagonal", "causal"),
        ("sink-twice", "sinks"),
    ],
)
def test_a_fault_is_named(name: str, phrase: str) -> None:
    assert phrase in quiet_reports()[name, 2].verdict


def test_the_ring_names_its_step() -> None:
    failures = quiet_reports()["zeros", 1].failures
    ring = [failure for failure in failures if failure.check.startswith("ring exchange")]
    assert ring[0].rank == 1
    assert ring[0].detail.startswith("step 1: where the keys of rank 0 belong: all zeros")


@lru_cache
def breaking_results() -> dict[tuple[str, int], list[list[Report] | Exception]]:
    """What every rank learns of faults after which nothing can be moved: a group for each."""
    places = [(name, at) for name in BREAKING for at in range(WORLD)]

    def run(place: tuple[str, int]) -> list[list[Report] | Exception]:
        request = Request(("comm",), ("ring",), (torch.float32,), 1.0, *place)
        return on_ranks(WORLD, verifying.reports, [request], patience=60)

    # they wait most of the time
    with ThreadPoolExecutor(3) as pool:
        return dict(zip(places, pool.map(run, places)))


@pytest.mark.parametrize("at", range(WORLD))
@pytest.mark.parametrize("name", BREAKING)
def test_nothing_hangs_and_the_peer_is_named(name: str, at: int) -> None:
    results = breaking_results()[name, at]
    following = (at + 1) % WORLD
    for rank, result in enumerate(results):
        if name == "kill" and rank == at:
            assert isinstance(result, Died)
            continue
        assert not isinstance(result, Exception), result
        (report,) = result
        assert report.layer == "comm"
        (seen,) = (failure for failure in report.failures if failure.rank == following)
        assert re.search(rf"ring exchange .* step 0: \w+, peer rank {at}: ", seen.detail)
        if name == "kill":
            assert list(report.silent) == [at]
            assert "last at: ring exchange of float32 keys and values, step 0" in report.verdict
        else:
            assert not report.silent


@pytest.mark.parametrize("world", (2, 4))
def test_no_false_alarm(world: int) -> None:
    request = Request(runs=2, timeout=60.0) if world == 2 else Request(timeout=60.0)
    for (report,) in returned(on_ranks(world, verifying.reports, [request], patience=240)):
        assert report.ok, report.verdict
        assert report.verdict == f"ok: every check passed on each of {world} ranks"
        assert {outcome.rank for outcome in report.outcomes} == set(range(world))
        assert {outcome.layer for outcome in report.outcomes} == set(LAYERS)


def test_enough_faults() -> None:
    assert len(FAULTS) >= 10 and {fault.layer for fault in FAULTS.values()} == set(LAYERS)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
def test_tags_tell_blocks_and_positions_apart(dtype: torch.dtype) -> None:
    blocks = {(r, b): tagged(r, b, (40,), dtype) for r in range(4) for b in range(4)}
    for place, block in blocks.items():
        assert torch.equal(block, block.double().to(dtype))
        assert block.unique().numel() == 40
        others = {str(p): other for p, other in blocks.items() if p != place}
        for name, other in others.items():
            assert difference(other, block, others) == f"holds {name}"
        assert not difference(block.clone(), block, others)
    assert "instead of" in difference(block[:20], block, {})
    assert difference(block.roll(20), block, {}) == "its halves are swapped"


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    """`torchrun ... -m flashasc verify`, on two ranks."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"),
            *("-m", "flashasc", "verify", "--dtype", "float32", "--device", "cpu", *arguments),
        ],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    clean = torchrun("--op", "ring", "--layer", "comm", "--report", str(file))
    killed = torchrun("--op", "ring", "--layer", "comm", "--inject", "kill", "--timeout", "2")
    outputs = [process.communicate(timeout=240)[0] for process in (clean, killed)]
    assert clean.returncode == 0, outputs[0]
    assert "every check passed on each of 2 ranks" in outputs[0]
    written = json.loads(file.read_text())
    assert written["ok"] and written["world"] == 2 and len(written["outcomes"]) == 10
    assert written["facts"]["backend"] == "gloo" and written["facts"]["versions"]["torch"]
    # the table comes from the rank that is left
    assert killed.returncode == 1, outputs[1]
    assert "rank 0 gave no result; it was last at: ring exchange" in outputs[1]
    assert "FAILED" in outputs[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "start it with: torchrun"),
        (["--layer", "memory"], "--layer: expected comm, compute, fused, all; got memory"),
        (["--op", "star"], "--op: expected ring, ulysses, hybrid, ulysses-fused; got star"),
        (["--dtype", "int8"], "--dtype: expected float32, float16, bfloat16; got int8"),
        (["--device", "tpu"], "--device: expected auto, cpu, cuda, npu; got tpu"),
        (["--timeout", "0"], "--timeout: expected more than 0"),
        (["--inject", "gremlin"], "--inject: expected swap-blocks"),
    ],
)
def test_wrong_calls_of_the_command(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["verify", *arguments], env={"RANK": None})
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inject", "wrong-peer"], "wrong-peer cannot act in what is asked for"),
        (["--inject", "sink-twice", "--layer", "comm"], "sink-twice cannot act"),
        (["--inject", "lost-signal"], "lost-signal cannot act"),
        (["--report", "/nope/x.json"], "--report: cannot write /nope/x.json"),
        (["--timeout", "inf"], "--timeout: expected more than 0"),
    ],
)
def test_refused_before_the_ranks_meet(arguments: list[str], message: str) -> None:
    started = {"RANK": "0", "WORLD_SIZE": "2"}
    result = CliRunner().invoke(app, ["verify", "--device", "cpu", *arguments], env=started)
    assert result.exit_code == 2
    assert message in result.output

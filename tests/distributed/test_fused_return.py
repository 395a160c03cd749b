"""The way back inside the attention kernel: its bits, its protocol, and what goes wrong with it.

On CPUs peers' memory is emulated: see `flashasc.distributed._emulated`. Kernels are interpreted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from flashasc import _triton
from flashasc.distributed.verify import FUSED_FAULTS, Report, Request
from tests.conftest import ROOT
from tests.distributed import fused_cases, verifying
from tests.distributed.ranks import Died, on_ranks, returned

FUSED: Any = ("ulysses-fused",)
QUIET = [name for name, fault in FUSED_FAULTS.items() if not fault.breaks]
BREAKING = [name for name, fault in FUSED_FAULTS.items() if fault.breaks]


@pytest.mark.parametrize("world", [2, 3])
def test_bits_are_those_of_the_exchange(world: int) -> None:
    assert returned(on_ranks(world, fused_cases.fused_is_unfused)) == [[]] * world


def test_calls_behind_each_other_without_a_barrier() -> None:
    """Random delays, poisoned buffers, and counters that go round."""
    assert returned(on_ranks(2, fused_cases.stress, 1500)) == [""] * 2
    assert returned(on_ranks(4, fused_cases.stress, 150)) == [""] * 4


def test_three_layers_and_no_false_alarm() -> None:
    request = Request(ops=FUSED, dtypes=(torch.bfloat16,), timeout=60.0)
    for (report,) in returned(on_ranks(2, verifying.reports, [request])):
        assert report.ok, report.verdict
        named = {(o.layer, o.check) for o in report.outcomes}
        assert (
            "comm",
            "sequence for heads by stores, zigzag (emulated in shared files), bfloat16",
        ) in named
        assert {layer for layer, _ in named} == {"comm", "compute", "fused"}


def fault(name: str, at: int, timeout: float) -> Request:
    return Request(("comm",), FUSED, (torch.float32,), timeout, name, at)


@lru_cache
def quiet_reports() -> dict[tuple[str, int], Report]:
    places = [(name, at) for name in QUIET for at in (0, 2)]
    results = returned(on_ranks(3, verifying.reports, [fault(n, at, 60.0) for n, at in places]))
    return dict(zip(places, results[1]))


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("name", QUIET)
def test_a_fault_is_found_by_communication_alone(name: str, at: int) -> None:
    report = quiet_reports()[name, at]
    assert not report.silent and report.layer == "comm", report.verdict
    # tags say whose rows are not where they belong
    assert all(f"of rank {at} in call" in failure.detail for failure in report.failures)
    if name == "short-tile":
        # rows that nobody stored are still poison
        assert all("nan instead of" in failure.detail for failure in report.failures)


@lru_cache
def breaking_reports() -> dict[str, Report]:
    """What rank 0 learns of faults after which nothing can be moved: a group for each."""

    def run(name: str) -> Report:
        # far more than a call takes: a slow rank must not look like a silent one
        report: Report = returned(on_ranks(3, verifying.reports, [fault(name, 2, 8.0)]))[0][0]
        return report

    # they wait most of the time
    with ThreadPoolExecutor(len(BREAKING)) as pool:
        return dict(zip(BREAKING, pool.map(run, BREAKING)))


def test_a_lost_signal_ends_in_an_error_that_names_the_peer() -> None:
    report = breaking_reports()["lost-signal"]
    assert report.layer == "comm" and not report.silent
    # the second of five calls is not signalled: from then on rank 2's count is one short
    says = "step tiles of call 4, peer rank 2: has not signalled in 8 s that it stored them here"
    seen = [failure.detail for failure in report.failures if says in failure.detail]
    assert seen and "rank 0: sequence for heads, fused" in seen[0], report.verdict
    assert "use fused=False" in seen[0]


def test_a_stale_signal_is_one_too_many() -> None:
    """It is seen by the call that counts it, or it makes that one read early, and the next sees it.

    Call 1 signals twice.
    """
    report = breaking_reports()["stale-signal"]
    assert report.layer == "comm" and not report.silent
    says = (
        "step tiles of call [0-4], peer rank 2: signalled [23] calls further than it can be",
        "rank 2 signalled 1 calls more than there were",
        # read early, or written over by a rank that was let go early
        r"call [1-4]: where .* of rank \d in call [1-4] belongs: ",
    )
    assert any(re.search("|".join(says), f.detail) for f in report.failures), report.verdict


def test_a_peer_that_dies_is_named_in_time() -> None:
    told, died = on_ranks(2, fused_cases.one_dies)
    assert isinstance(died, Died)
    assert "rank 0: sequence for heads, fused, step tiles of call 1, peer rank 1: has not" in told
    assert "signalled in 1 s" in told and "fused=False" in told


def test_without_a_timeout_the_result_is_nan_and_the_next_call_raises() -> None:
    for nan, told in returned(on_ranks(2, fused_cases.late_failure)):
        assert nan
        assert re.search(r"step tiles of call 0, peer rank 1: has not signalled in 0.3 s", told)


WRONG = {
    "no symmetric memory": ("NotImplementedError", "q, k and v are on cpu: use fused=False"),
    "gradients": ("NotImplementedError", "fused=True computes no gradients.*fused=False"),
    "packed": ("NotImplementedError", "fused=True takes no packed sequences.*fused=False"),
    "one alone": ("ValueError", "fused must be the same on all ranks"),
    "hosts": ("ValueError", "the host must be the same .* has 'host 0', rank 1 has 'host 1'"),
    "shapes": ("ValueError", "D must be the same on all ranks"),
    "silent": ("CommunicationError", "step tiles of call 0, peer rank 1: .*fused=False"),
    "silent, again": ("CommunicationError", "stays closed: use fused=False.*or make a new group"),
}


@lru_cache
def wrong_calls() -> list[dict[str, tuple[str, str]]]:
    return returned(on_ranks(2, fused_cases.wrong_calls))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_raise_on_both_ranks(name: str) -> None:
    kind, message = WRONG[name]
    for rank, found in enumerate(wrong_calls()):
        assert found[name][0] == kind, (rank, found[name])
        assert re.search(message, found[name][1]), (rank, found[name])


def test_the_kernel_takes_what_the_one_that_stores_at_home_takes() -> None:
    """The launcher starts either with the same arguments."""
    pytest.importorskip("triton")
    from flashasc.kernels.attention_fwd import attention_fwd_kernel
    from flashasc.kernels.attention_peers import attention_peers_kernel

    names = attention_peers_kernel.arg_names
    assert [name for name in attention_fwd_kernel.arg_names if name not in names] == []


def test_kernels_store_wait_and_give_up_in_the_interpreter(tmp_path: Path) -> None:
    """The kernels themselves, attention's too, between two processes."""
    if _triton.installed().kind not in ("ascend", "upstream"):
        pytest.skip(_triton.installed().summary)
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.interpreted_peers", str(tmp_path / "store")],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    found = sorted(re.findall(r"^rank (\d), (\w+): ok$", done.stdout, re.M))
    checks = ("attentions", "gives_up", "pushes")
    assert found == [(str(r), c) for r in range(2) for c in checks], done.stdout + done.stderr

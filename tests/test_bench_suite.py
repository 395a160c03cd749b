"""The suites run through pytest as people run them, and what they write becomes a report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import suite, test_attention
from bench.attention_runs import IMPLEMENTATIONS
from bench.check import device as device_of
from bench.check import fallen, ratios
from bench.host_time import host_times, middle_half
from bench.machine import RESULTS
from bench.report import points, report
from bench.timing import npu_clock
from tests.conftest import ROOT

UNUSED = ("cacheprovider", "xdist", "hypothesispytest")
"""Plugins that would only take time."""


def run_suite(*arguments: str) -> str:
    # pytest-benchmark does not measure under xdist, whose workers these tests may run in
    env = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"-pno:{p}" for p in UNUSED), *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    "device, names",
    [
        ("cpu", ["reference_plain", "torch"]),
        pytest.param("cuda", ["flashasc_plain", "torch"], marks=pytest.mark.gpu),
    ],
)
def test_a_case_is_gated_timed_and_reported(device: str, names: list[str], tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    pytest.importorskip("matplotlib")
    file = tmp_path / "out.json"
    chosen = f"gemm and square and {device} and f32 and ({' or '.join(names)})"
    options = [f"--benchmark-json={file}", "--benchmark-max-time=0.01", "--benchmark-min-rounds=3"]
    printed = run_suite("bench/test_gemm.py", "-k", chosen, *options)
    assert "2 passed" in printed
    results = json.loads(file.read_text())
    ours, torchs = results["benchmarks"]
    for one, name in zip((ours, torchs), names):
        info, stats = one["extra_info"], one["stats"]
        assert info["implementation"] == name and 0 < info["error_of_budget"] <= 1
        assert stats["rounds"] >= 3
        size = 256 if device == "cpu" else 4096
        assert info["tflops"] == pytest.approx(2 * size**3 / stats["median"] / 1e12)
        (roof,) = results["flashasc"]["roofs"].values()
        assert info["of_matmul"] == pytest.approx(info["tflops"] * 1e12 / roof)
    ratio = torchs["stats"]["median"] / ours["stats"]["median"]
    assert ours["extra_info"]["speed_over"] == {"torch": pytest.approx(ratio)}

    assert device_of(results) == device
    # against itself nothing has fallen; against a run in which ours was twice as fast, it has
    now = ratios(results)
    assert now == {ours["name"]: {"torch": pytest.approx(ratio)}}
    assert not fallen(now, now, slack=0.1)
    (line,) = fallen(now, {ours["name"]: {"torch": 2 * ratio, "absent": 1.0}}, slack=0.1)
    assert line.startswith(f"{ours['name']}: {ratio:.3f} x torch")
    assert fallen({}, now, slack=0.1) == [f"{ours['name']}: was timed, is not any more"]

    long_rows = RESULTS / "long_rows_h200.json"
    page = report([file, long_rows], tmp_path / "report").read_text()
    machine = results["flashasc"]["machine"]
    computed_by = machine["cpu" if device == "cpu" else "gpu"]
    for fact in (machine["command"], computed_by, machine["versions"]["torch"]):
        assert fact in page
    assert "python -m pytest -q" in machine["command"]
    # the two ratios and errors of this run, and the other file's errors
    assert f"| {names[0]} | {ratio:.2g} |" in page
    assert f"| {torchs['extra_info']['relative_error']:.1e} |" in page
    for there in json.loads(long_rows.read_text())["records"]:
        assert f"{there['relative_error']:.1e}" in page
        if there["dtype"] == "bfloat16":
            assert f"({there['correctly_rounded']:.2%})" in page
    images = {image.name for image in (tmp_path / "report").glob("*.png")}
    assert any("error-against-length" in name for name in images)
    assert any("speed-against-error" in name for name in images)
    assert all(name in page for name in images)


def test_what_is_not_here_is_skipped_with_a_reason() -> None:
    suite.need("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(pytest.skip.Exception, match="no GPU here"):
            suite.need("cuda")
    if not hasattr(torch, "npu"):
        with pytest.raises(pytest.skip.Exception, match="no NPU here"):
            suite.need("npu")


class Event:
    """An NPU's event, on a clock that goes a millisecond a record."""

    now = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at: int | None = None

    def record(self) -> None:
        Event.now += 1
        self.at = Event.now

    def synchronize(self) -> None:
        assert self.at is not None

    def elapsed_time(self, later: Event) -> float:
        assert self.at is not None and later.at is not None
        return float(later.at - self.at)


def test_an_npu_is_timed_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "npu", SimpleNamespace(Event=Event), raising=False)
    start, _, end = npu_clock(), npu_clock(), npu_clock()
    assert end - start == pytest.approx(2e-3)


def test_names_choose_as_people_expect() -> None:
    (marked,) = test_attention.test_attention.pytestmark  # type: ignore[attr-defined]
    rows = {row.id: row for row in marked.args[1]}
    for device, mark in (("cuda", "gpu"), ("npu", "npu")):
        some = [row for name, row in rows.items() if name.startswith(f"{device}-")]
        names = {implementation for _, _, implementation in (row.values for row in some)}
        assert names == set(IMPLEMENTATIONS[device])
        assert all(mark in {m.name for m in row.marks} for row in some)
    assert "cuda-decode-b32-32k-flashasc_compensated" in rows
    assert "npu-packed-causal-npu_fusion_attention" in rows


def test_a_report_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="other.json: no results of bench/"):
        list(points({"benchmarks": []}, tmp_path / "other.json"))


def test_make_test_does_not_collect_the_suites(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getini("testpaths") == ["tests"]


class Benchmark:
    """pytest-benchmark's fixture, as far as it is used."""

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}
        self.timed = False
        self.stats = None

    def pedantic(self, *args: object, **options: object) -> None:
        self.timed = True


@pytest.mark.parametrize("name, outcome", [("fa3", "Skipped"), ("flashasc_high", "WrongResult")])
def test_a_fault_of_ours_fails_and_a_peers_is_skipped(name: str, outcome: str) -> None:
    from bench.gate import WrongResult

    benchmark, session = Benchmark(), suite.Session()
    request: Any = SimpleNamespace(node=SimpleNamespace(name=f"test[{name}]"))
    measure = suite.Measure(benchmark, request, session)

    class Wrong:
        def check(self, out: object) -> tuple[float, float]:
            raise WrongResult("error 2 is over the budget 1")

    arguments: Any = ("cpu", None, name, lambda: lambda: None, Wrong())
    with pytest.raises((pytest.skip.Exception, WrongResult)) as raised:
        measure(*arguments)
    assert raised.type.__name__ == outcome and not benchmark.timed
    assert bool(session.not_timed) == (name == "fa3")


def test_host_times_of_ways_that_take_turns() -> None:
    """Each round times each way once, none always first; a round's noise is all of theirs."""
    seen: list[str] = []
    runs = {name: (lambda name=name: seen.append(name)) for name in ("ours", "theirs", "third")}
    times = host_times(runs, "cpu", rounds=3, calls=2)  # type: ignore[arg-type]
    assert {name: len(seconds) for name, seconds in times.items()} == dict.fromkeys(runs, 3)
    turns = seen[60::2]
    assert seen[60:] == [name for name in turns for _ in range(2)]
    rounds = [turns[i : i + 3] for i in range(0, 9, 3)]
    assert all(set(turn) == set(runs) for turn in rounds)
    assert len({turn[0] for turn in rounds}) == 3
    assert middle_half([1.0, 2.0, 3.0, 4.0, 100.0]) == (2.0, 4.0)

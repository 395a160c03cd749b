"""Runs the blocks' tests on mutants: a fork for each, of a process that has imported the rest.

The tests run in Triton's interpreter, which takes no compiler; `tests/blocks/conftest.py` sees to
that where TRITON_INTERPRET=1.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.mutation.mutants import Mutant, write_package

FOLDER = ROOT / "tests" / "blocks"
_LEFT_OUT = ("test_block_mutants.py", "test_block_readme.py")
# the tests that look at a file first; every other one comes after them
OWN: Mapping[str, Sequence[str]] = {
    "accurate.py": ("accurate", "reduce"),
    "activations.py": ("splits",),
    "compensated.py": ("compensated", "accurate"),
    "constants.py": ("scores", "softmax", "compensated"),
    "gathered.py": ("gathered", "layout"),
    "gemm.py": ("gemm", "guards", "splits", "gemm_tile", "update_variants"),
    "layout.py": ("layout", "gathered", "owner", "gemm_tile"),
    "masking.py": ("masking",),
    "reduce.py": ("reduce", "guards"),
    "scores.py": ("scores", "splits"),
    "softmax.py": ("softmax", "guards", "update_variants", "scores"),
    "splits.py": ("splits", "gemm_tile"),
}


@dataclass
class Baseline:
    """What the tests make of the blocks as they are.

    Attributes:
        seconds: test -> how long it took, of those that pass.
        failed: tests that do not pass; no mutant is judged by them.
        digests: test module -> hash of what was in it.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)

    def add(self, modules: Sequence[Path]) -> None:
        """Run the tests of those modules that changed since, or are not known."""
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in modules}
        new = [path for path in modules if self.digests.get(path.name) != digests[path.name]]
        if not new:
            return
        with tempfile.TemporaryDirectory(prefix="flashasc-mutants-") as home:
            write_package(Path(home), None)
            told = _forked(Path(home), new, None, timeout=3600)
        if told is None:
            raise RuntimeError("the tests of the unchanged blocks did not come to an end")
        names = tuple(f"{path.name}::" for path in new)
        old = {test: t for test, t in self.seconds.items() if not _file_of(test).startswith(names)}
        self.seconds = old | told["seconds"]
        self.failed = [said for said in self.failed if not said.startswith(names)]
        self.failed += told["failed"]
        self.digests |= {path.name: digests[path.name] for path in new}


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        kind: "killed", "timeout", "survived", or "survived its own" tests where no others ran.
        by: the test that failed, and the first line of what it said.
        seconds: how long it took.
    """

    kind: str
    by: str
    seconds: float


def own_modules(file: str) -> list[Path]:
    """The test modules that look at a file of `blocks` first."""
    return [FOLDER / f"test_block_{name}.py" for name in OWN[file]]


def all_modules() -> list[Path]:
    """Every test module that a mutant is judged by."""
    return [path for path in sorted(FOLDER.glob("test_*.py")) if path.name not in _LEFT_OUT]


def is_due(known: Mapping[str, Any] | None, *, own: bool, again: bool) -> bool:
    """Whether a mutant is to be judged, by what a log knows of it.

    Args:
        known: its outcome; None if there is none.
        own: only the tests of its own file are run.
        again: survivors are judged anew.
    """
    if known is None or (again and known["kind"].startswith("survived")):
        return True
    return bool(known["kind"] == "survived its own" and not own)


def judge(
    mutant: Mutant, baseline: Baseline, *, own: bool, slowest: float, timeout: float
) -> Outcome:
    """Run the tests on a mutant until one fails: its file's own first, and the quick ones first.

    Args:
        mutant: the mutant.
        baseline: what the tests make of the blocks as they are; those that fail are left out.
        own: run no others.
        slowest: leave out tests that took longer than this, in seconds.
        timeout: seconds for each of the two runs; a mutant that takes longer counts as caught.
    """
    began = time.monotonic()
    chosen = [name for name, seconds in baseline.seconds.items() if seconds <= slowest]
    quick = sorted(chosen, key=baseline.seconds.__getitem__)
    first = own_modules(mutant.file)
    rounds = [first] if own else [first, [path for path in all_modules() if path not in first]]
    with tempfile.TemporaryDirectory(prefix="flashasc-mutants-") as home:
        write_package(Path(home), mutant)
        for modules in rounds:
            told = _forked(Path(home), modules, quick, timeout)
            spent = round(time.monotonic() - began, 2)
            if told is None:
                return Outcome("timeout", f"no end after {timeout:g} s", spent)
            if told["failed"] or told["status"]:
                by = told["failed"][0] if told["failed"] else "the tests cannot be collected"
                return Outcome("killed", by, spent)
    kind = "survived its own" if own else "survived"
    return Outcome(kind, "", round(time.monotonic() - began, 2))


def _file_of(test: str) -> str:
    """A test's name from its module's on."""
    return test.removeprefix("tests/blocks/")


class _Recorder:
    """A pytest plugin: runs the tests that are asked for, in order, and keeps what they say."""

    def __init__(self, order: Sequence[str] | None) -> None:
        self._order = None if order is None else {name: n for n, name in enumerate(order)}
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._order is not None:
            order = self._order
            items[:] = sorted(
                (item for item in items if item.nodeid in order),
                key=lambda item: order[item.nodeid],
            )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            last = report.longreprtext.strip().splitlines()[-1]
            self.failed.append(f"{Path(report.nodeid).name}: {last}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = (crash.message if crash else report.longreprtext).partition("\n")[0]
            self.failed.append(f"{_file_of(report.nodeid)}: {said}"[:200])
        elif report.when == "call" and report.passed:
            self.seconds[report.nodeid] = round(report.duration, 3)


def _forked(
    home: Path, modules: Sequence[Path], order: Sequence[str] | None, timeout: float
) -> dict[str, Any] | None:
    """Run test modules in a child on the package in `home`; None if it had to be stopped."""
    answer = home / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        # whatever happens, the child never returns into the caller's code
        with contextlib.suppress(BaseException):
            os.setsid()
            answer.write_text(json.dumps(_run(home, modules, order)))
        os._exit(0)
    end = time.monotonic() + timeout
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)
    shutil.rmtree(home / "basetemp", ignore_errors=True)
    told: dict[str, Any] = (
        json.loads(answer.read_text())
        if answer.exists()
        else {"status": 1, "failed": ["the interpreter of Python ended"], "seconds": {}}
    )
    return told


def _run(home: Path, modules: Sequence[Path], order: Sequence[str] | None) -> dict[str, Any]:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sys.path.insert(0, str(home))
    if "blocks" in sys.modules:
        raise RuntimeError("the blocks were imported before the mutant could be")
    try:
        import blocks
        import blocks.softmax
    except Exception as error:
        said = f"import: {type(error).__name__}: {error}"[:200]
        return {"status": 1, "failed": [said], "seconds": {}}
    if not Path(str(blocks.__file__)).is_relative_to(home):
        raise RuntimeError(f"{blocks.__file__} would be tested, which is not in {home}")
    recorder = _Recorder(order)
    stop = [] if order is None else ["--maxfail=1"]
    os.chdir(ROOT)
    status = pytest.main(
        [*map(str, modules), "-q", "-p", "no:cacheprovider", "-p", "no:warnings",
         "-p", "no:faulthandler", f"--rootdir={ROOT}", f"--basetemp={home / 'basetemp'}",
         "-m", "not gpu", *stop],
        plugins=[recorder],
    )  # fmt: skip
    # 5: none of the tests that are asked for is in these modules
    bad = status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return {"status": int(bad), "failed": recorder.failed, "seconds": recorder.seconds}

"""What is kept on disk: found again, whole or not at all, shared by processes that race for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import native_kernels as kernels
import pytest
import torch

from flashasc.native import build, cache, call, host, launch, lowered, program

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

# a process of its own that launches `scaled` and says which steps it ran
CHILD = """
import json, os, sys, time
sys.path[:0] = sys.argv[1:3]
import torch
from flashasc.native import build, launch, lowered
import native_kernels as kernels
steps, original, lower = [], build.Steps.run, lowered.lower
def run(self, step, command):
    steps.append(step)
    if step == os.environ.get("STOP_AT"):
        print("stopped", flush=True)
        time.sleep(60)
    original(self, step, command)
def count(*args):
    steps.append("lower")
    return lower(*args)
build.Steps.run, lowered.lower = run, count
x, y = torch.randn(100), torch.zeros(100)
start = time.perf_counter()
launch(kernels.scaled, (2,), {"x_ptr": x, "y_ptr": y, "n": 100, "factor": 3.0}, {"BLOCK": 64})
seconds = time.perf_counter() - start
assert torch.equal(y, x * 3)
print(json.dumps({"steps": steps, "seconds": seconds}))
"""


def start_child(folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(ROOT), str(HERE)],
        env={**os.environ, "FLASHASC_CACHE_DIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result_of(child: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def in_child(folder: Path, **environment: str) -> dict[str, Any]:
    return result_of(start_child(folder, **environment))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that this process runs from now on."""
    seen: list[str] = []
    original, lower = build.Steps.run, lowered.lower

    def run(self: build.Steps, step: str, command: Any) -> None:
        seen.append(step)
        original(self, step, command)

    def count(*args: Any) -> Any:
        seen.append("lower")
        return lower(*args)

    monkeypatch.setattr(build.Steps, "run", run)
    monkeypatch.setattr(lowered, "lower", count)
    return seen


def run(factor: float = 2.0) -> None:
    x, y = torch.randn(100), torch.zeros(100)
    args = {"x_ptr": x, "y_ptr": y, "n": 100, "factor": factor}
    launch(kernels.scaled, (2,), args, {"BLOCK": 64})
    assert torch.equal(y, x * factor)


def forget() -> None:
    for module in (call, lowered, program):
        module.forget()


BUILD = ["bufferize", "to llvm", "emit", "link"]


def entries(folder: Path, kind: str, pattern: str) -> list[Path]:
    return sorted((folder / kind).glob(f"*/{pattern}"))


def test_nothing_is_made_twice(cold: Path, steps: list[str]) -> None:
    shutil.rmtree(cold / "runtime")
    run()
    assert steps == ["lower", "compile runtime", *BUILD]
    steps.clear()
    run(3.0)
    assert steps == [], "the second call of a process"
    forget()
    run()
    assert steps == [], "what another process would find"


def test_a_second_process_starts_in_milliseconds(cold: Path) -> None:
    first = in_child(cold)
    assert first["steps"] == ["lower", *BUILD]
    later = [in_child(cold) for _ in range(2)]
    assert all(found["steps"] == [] for found in later)
    assert min(found["seconds"] for found in later) < 0.1


def test_processes_that_race_make_one_entry(cold: Path) -> None:
    shutil.rmtree(cold / "runtime")
    children = [start_child(cold) for _ in range(3)]
    made = [result_of(child)["steps"] for child in children]
    # the others waited, then found it
    once = sorted(["lower", "compile runtime", *BUILD])
    assert sorted(step for found in made for step in found) == once
    for kind, pattern in (("kernels", "*.so"), ("lowered", "*.mlir"), ("runtime", "*.so")):
        assert len(entries(cold, kind, pattern)) == 1
    assert not list(cold.rglob(".new-*"))


@pytest.mark.parametrize("step", ["emit", "link"])
def test_an_interrupted_build_is_done_again(cold: Path, step: str, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    child = start_child(cold, STOP_AT=step, TMPDIR=str(temporary))
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "stopped"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    # a write that was cut off
    (cold / "kernels" / "ab").mkdir(exist_ok=True)
    (cold / "kernels" / "ab" / ".new-left").write_bytes(b"half")
    start = time.perf_counter()
    assert in_child(cold)["steps"] == BUILD
    assert time.perf_counter() - start < 60, "waited for the dead"


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


@pytest.mark.parametrize(
    "kind, pattern, damage",
    [
        ("kernels", "*.so", cut_off),
        ("kernels", "*.so", zero),
        ("kernels", "*.so", Path.unlink),
        ("kernels", "*.json", cut_off),
        ("lowered", "*.mlir", cut_off),
        ("lowered", "*.json", zero),
    ],
)
def test_a_damaged_entry_is_made_again(
    cold: Path, steps: list[str], kind: str, pattern: str, damage: Callable[[Path], object]
) -> None:
    again = BUILD if kind == "kernels" else ["lower"]
    run()
    (path,) = entries(cold, kind, pattern)
    steps.clear()
    # a file that is mapped must not change under the process: replace it
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    os.replace(copy, path)
    damage(path)
    forget()
    run()
    assert steps == again
    steps.clear()
    forget()
    run()
    assert steps == []


def test_a_kernel_outlives_its_runtime(cold: Path, steps: list[str]) -> None:
    run()
    steps.clear()
    (runtime,) = entries(cold, "runtime", "*.so")
    runtime.unlink()
    # not in this process, which has the runtime loaded
    assert in_child(cold)["steps"] == ["compile runtime", *BUILD]


def test_a_folder_that_moved(cold: Path, tmp_path: Path) -> None:
    run()
    cold.rename(tmp_path / "elsewhere")
    moved = in_child(tmp_path / "elsewhere")["steps"]
    assert "lower" not in moved and moved in ([], BUILD)


@pytest.mark.parametrize(
    "what, again",
    [
        ("triton-ascend", ["lower", *BUILD]),
        ("ascendnpu-ir", BUILD),
        ("compiler", ["compile runtime", *BUILD]),
        ("processor", BUILD),
        ("own sources", BUILD),
        ("line information", ["lower"]),
    ],
)
def test_what_a_build_depends_on_is_in_its_key(
    cold: Path, steps: list[str], what: str, again: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    steps.clear()
    forget()
    versions = program.distribution_versions()
    match what:
        case "triton-ascend":
            newer = ("99.0", versions[1])
            monkeypatch.setattr(program, "distribution_versions", lambda: newer)
            monkeypatch.setattr(lowered, "distribution_versions", lambda: newer)
        case "ascendnpu-ir":
            monkeypatch.setattr(program, "distribution_versions", lambda: (versions[0], "99.0"))
        case "compiler":
            monkeypatch.setattr(host, "c_compiler_version", lambda: "cc (none) 99.0")
        case "processor":
            machine = host.host()
            older = host.Host(machine.triple, "x86-64-v2", machine.c_options)
            if machine.triple.startswith("aarch64"):
                older = host.Host(machine.triple, "cortex-a53", machine.c_options)
            monkeypatch.setattr(host, "host", lambda: older)
        case "own sources":
            monkeypatch.setattr(build, "source_hash", lambda: "changed")
        case "line information":
            monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")
            again = ["lower", "read", *BUILD]
    monkeypatch.setattr(program, "forget", lambda: None)
    program._build_facts.cache_clear()
    program._programs.clear()
    run()
    assert steps == again


def test_levels_and_processors_have_entries_of_their_own(cold: Path) -> None:
    x, y = torch.randn(64), torch.zeros(64)
    args = {"x_ptr": x, "y_ptr": y, "n": 64, "factor": 2.0}
    for arch in ("Ascend910B3", "Ascend910_9392"):
        for level in ("linalg", "hfusion"):
            launch(kernels.scaled, (1,), args, {"BLOCK": 64}, arch=arch, level=level)
    assert len(entries(cold, "kernels", "*.so")) in (2, 4)  # equal code is one file's content
    assert len(entries(cold, "kernels", "*.json")) == 4
    assert len(entries(cold, "lowered", "*.json")) == 2


def test_two_kernels_of_one_name_stay_apart(cold: Path, tmp_path: Path) -> None:
    import importlib.util

    results = []
    for number in (2, 3):
        path = tmp_path / f"own{number}.py"
        path.write_text(
            "import triton, triton.language as tl\n@triton.jit\ndef own(x_ptr):\n"
            f"    tl.store(x_ptr, tl.load(x_ptr) * {number})\n"
        )
        spec = importlib.util.spec_from_file_location("own", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        x = torch.ones(1)
        launch(module.own, (1,), {"x_ptr": x}, {})
        results.append(x.item())
    assert results == [2, 3]


def test_the_intermediate_files_are_kept_when_asked_for(
    cold: Path, steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    steps.clear()
    forget()
    monkeypatch.setenv("FLASHASC_NATIVE_KEEP", str(tmp_path / "kept"))
    run()
    run()
    assert steps == BUILD, "made anew, once"
    (folder,) = (tmp_path / "kept").iterdir()
    assert folder.name.startswith("scaled-linalg-")
    names = {path.name for path in folder.iterdir()}
    assert {"kernel.ttadapter.mlir", "3-buffers.mlir", "7-program.ll", "9-program.so"} <= names


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASHASC_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache.root() == Path("/home/somebody/.cache/flashasc/native")

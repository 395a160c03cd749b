from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib.util
import json
import os
import re
import time
from pathlib import Path

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import A2, A3, A5, TARGETS, Case, product, reduction, rows

import flashasc.ascend.compile as compile_module
from flashasc.ascend import (
    CompileReport,
    MemoryUse,
    Overflow,
    ToolchainError,
    compile_kernel,
    compiler_flags,
    lower,
)

UB_BYTES = {A2: 192 << 10, A3: 192 << 10, A5: 248 << 10}


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHASC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ascend"


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("case", [rows(), product()], ids=["rows", "product"])
def test_a_kernel_compiles(case: Case, arch: str) -> None:
    report = compile_kernel(lower(*case, arch))
    assert report.ok, report.summary() + "\n" + report.log
    assert report.returncode == 0
    assert (report.notes, report.diagnostics, report.overflow) == ((), (), None)
    assert (report.retried, report.aborted, report.timed_out) == (False, None, False)
    assert f"{report.kernel_name} for {arch}: compiles (" in report.summary()
    for use in report.memory.values():
        assert 0 < use.used <= use.available


def test_memory_is_what_the_tiles_take() -> None:
    # two fp16 operands of 64 x 64, each twice for double buffering, and an fp32 result
    assert compile_kernel(lower(*product(64), A2)).memory == {
        "L0C": MemoryUse(64 * 64 * 4, 128 << 10),
        "L1": MemoryUse(2 * 2 * 64 * 64 * 2, 512 << 10),
    }
    # A5: no double buffers, and the product meets the accumulator in UB
    on_a5 = compile_kernel(lower(*product(64), A5)).memory
    assert on_a5["L1"] == MemoryUse(2 * 64 * 64 * 2, 512 << 10)
    assert on_a5["L0C"] == MemoryUse(64 * 64 * 4, 256 << 10)
    assert on_a5["UB"].available == UB_BYTES[A5]


def test_a_single_buffer_takes_half() -> None:
    single = compile_kernel(lower(*product(64), A2, options={"multibuffer": False}))
    assert single.ok
    assert single.memory["L1"].used == 2 * 64 * 64 * 2


@pytest.mark.parametrize(
    "case, arch, memory, available_bits",
    [
        (rows(block_m=128), A2, "UB", 1_572_864),
        (rows(block_m=128), A3, "UB", 1_572_864),
        (rows(block_m=128), A5, "UB", 2_031_616),
        (product(256), A2, "L0C", 1_048_576),
    ],
)
def test_a_tile_that_is_too_large_overflows(
    case: Case, arch: str, memory: str, available_bits: int
) -> None:
    report = compile_kernel(lower(*case, arch))
    assert not report.ok
    assert report.returncode == 1
    assert report.aborted is None
    assert report.overflow is not None
    assert (report.overflow.memory, report.overflow.available_bits) == (memory, available_bits)
    assert report.overflow.required_bits > available_bits
    assert report.memory == {}
    assert re.search(rf"{memory} overflow: needs \d+ bits, has {available_bits}", report.summary())
    assert any("overflow, requires" in line for line in report.diagnostics)


def test_a_retry_is_not_ok() -> None:
    report = compile_kernel(lower(*rows(block_m=64), A2))
    assert report.returncode == 0
    assert report.retried
    assert not report.ok
    assert any("enable-auto-multi-buffer to false" in note for note in report.notes)
    assert "only after a retry: [NOTE] Ub overflow detected" in report.summary()
    # with double buffers off from the start it is what it is
    assert compile_kernel(lower(*rows(block_m=32), A2, options={"multibuffer": False})).ok


def test_a_compiler_that_aborts_is_reported() -> None:
    report = compile_kernel(lower(*reduction("hypotenuse"), A2))
    assert not report.ok
    assert report.returncode == -6
    assert report.aborted == "SIGABRT"
    assert report.diagnostics == ("LLVM ERROR: Not implemented",)
    assert "the compiler aborted (SIGABRT): LLVM ERROR: Not implemented" in report.summary()


def test_a_kernel_that_is_rejected_says_why() -> None:
    report = compile_kernel(lower(*reduction("two_sum"), A2))
    assert not report.ok
    assert report.returncode == 1
    assert report.overflow is None
    assert re.search(r"reduce_rows\.mlir:\d+:\d+: error: .*unregistered dialect", report.summary())


def test_a_compiler_that_takes_too_long_is_stopped(cache_dir: Path) -> None:
    started = time.monotonic()
    report = compile_kernel(lower(*rows(), A5), timeout=0.01)
    assert time.monotonic() - started < 10
    assert report.timed_out
    assert not report.ok
    assert report.returncode is None
    assert "was stopped after" in report.summary()
    # a busy machine is no property of the kernel
    assert compile_kernel(lower(*rows(), A5)).ok


def test_options_reach_the_compiler() -> None:
    options = {"multibuffer": False, "unit_flag": True, "set_workspace_multibuffer": 2}
    flags = compiler_flags(lower(*product(), A2, options={**options, "sync_solver": True}))
    assert {
        f"--target={A2}",
        "--enable-auto-multi-buffer=False",
        "--enable-auto-bind-sub-block=True",
        "--enable-hivm-unit-flag-sync=True",
        "--set-workspace-multibuffer=2",
        "--enable-hivm-graph-sync-solver=True",
        "--enable-hivm-compile=true",
    } <= set(flags)
    assert not any("tile-mix" in flag for flag in flags)


def test_an_option_without_effect_is_refused() -> None:
    lowered = lower(*product(), A5, options={"sync_solver": True})
    with pytest.raises(ValueError, match=rf"\['sync_solver'\] have no effect on {A5}"):
        compile_kernel(lowered)


def test_an_unknown_flag_is_reported_by_the_compiler() -> None:
    report = compile_kernel(lower(*rows(), A2), extra_flags=["--no-such-flag"], cache=False)
    assert not report.ok
    assert "--no-such-flag" in report.log
    assert "--no-such-flag" in report.flags


def test_a_real_assembler_is_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    installed = tmp_path / "cann" / "bin"
    installed.mkdir(parents=True)
    for name in ("hivmc", "hivmc-a5"):
        (installed / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexit 1\n")
        (installed / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{installed}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("BISHENG_INSTALL_PATH", str(installed))
    for arch in (A2, A5):
        assert compile_kernel(lower(*rows(), arch)).ok
    assert not (tmp_path / "called").exists()


def test_the_second_report_comes_from_disk(cache_dir: Path) -> None:
    lowered = lower(*rows(), A2)
    first, second = compile_kernel(lowered), compile_kernel(lowered)
    assert (first.cached, second.cached) == (False, True)
    assert second == first
    assert second.log == first.log
    assert hash(second) == hash(first)
    assert [path.suffix for path in cache_dir.iterdir()] == [".json"]
    assert not compile_kernel(lowered, cache=False).cached


@pytest.mark.parametrize("how", ["overflow", "abort", "retry"])
def test_a_bad_outcome_is_kept_too(how: str, cache_dir: Path) -> None:
    case = {"overflow": product(256), "abort": reduction("hypotenuse"), "retry": rows(block_m=64)}
    first = compile_kernel(lower(*case[how], A2))
    second = compile_kernel(lower(*case[how], A2))
    assert second.cached
    assert second == first
    assert not second.ok


def test_the_key_covers_text_target_flags_and_versions(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = lower(*rows(), A2)
    compile_kernel(lowered)
    assert compile_kernel(lowered).cached
    commented = dataclasses.replace(lowered, linalg=lowered.linalg + "// changed\n")
    for other in (commented, lower(*rows(), A3), lower(*rows(), A2, options={"unit_flag": True})):
        assert not compile_kernel(other).cached
    assert not compile_kernel(lowered, extra_flags=["--enable-ops-reorder=false"]).cached
    now = compile_module.versions()
    monkeypatch.setattr(compile_module, "versions", lambda: {**now, "ascendnpu-ir": "1.2.1"})
    assert not compile_kernel(lowered).cached


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"kernel_name": "rows"}', "null"])
def test_a_damaged_entry_is_compiled_again(damage: str, cache_dir: Path) -> None:
    lowered = lower(*rows(), A2)
    first = compile_kernel(lowered)
    (entry,) = cache_dir.iterdir()
    entry.write_text(damage)
    again = compile_kernel(lowered)
    assert not again.cached
    assert dataclasses.replace(again, seconds=first.seconds) == first
    assert compile_kernel(lowered).cached


def test_a_cache_that_cannot_be_written_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLASHASC_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="not cached: .*set FLASHASC_CACHE_DIR"):
        assert compile_kernel(lower(*rows(), A2)).ok


def test_many_threads_share_the_cache(cache_dir: Path) -> None:
    lowered = [lower(*case, A2) for case in (rows(), product(), reduction("sum"))]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        reports = list(pool.map(compile_kernel, lowered * 4))
    assert all(report.ok for report in reports)
    assert len(list(cache_dir.iterdir())) == 3
    assert all(json.loads(path.read_text()) for path in cache_dir.iterdir())


def fake_compiler(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = folder / "bishengir-compile"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(compile_module, "bishengir_tool", lambda name, arch: fake)


def test_nothing_is_left_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    fake_compiler(
        tmp_path, 'echo $TMPDIR; touch "$TMPDIR/left" "./left-too"; kill -6 $$', monkeypatch
    )
    report = compile_kernel(lower(*rows(), A2), cache=False)
    assert report.aborted == "SIGABRT"
    assert report.log.startswith(str(temporary))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "script, message",
    [
        ("echo all is well; exit 0", "No such file"),
        ('echo odd > "$FLASHASC_HIVM_TEXT"; echo all is well', "no size for UB, L1, L0C"),
    ],
)
def test_a_success_that_cannot_be_read_is_shown_raw(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path, script, monkeypatch)
    with pytest.raises(ToolchainError, match=message) as raised:
        compile_kernel(lower(*rows(), A2), cache=False)
    said = str(raised.value)
    assert "all is well" in said
    assert compile_module.versions()["bishengir-compile"] in said
    assert raised.value.step == "bishengir-compile"


def test_a_silent_retry_is_not_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the A5 compiler prints the overflow that made it retry and no note
    hivm = tmp_path / "hivm.mlir"
    spec = ", ".join(
        f'#dlti.dl_entry<"{name}_SIZE", 1048576 : i32>' for name in ("UB", "L1", "L0C")
    )
    hivm.write_text(f"module attributes {{spec<{spec}>}} {{}}")
    fake_compiler(
        tmp_path,
        f'cp {hivm} "$FLASHASC_HIVM_TEXT"\n'
        "echo 'error: ub overflow, requires 2000000 bits while 1048576 bits available!' >&2",
        monkeypatch,
    )
    report = compile_kernel(lower(*rows(), A2), cache=False)
    assert report.returncode == 0
    assert report.overflow == Overflow("UB", 2_000_000, 1_048_576)
    assert report.retried
    assert not report.ok


def test_a_report_survives_json() -> None:
    report = compile_kernel(lower(*product(256), A2))
    copy = CompileReport.from_json(json.loads(json.dumps(report.to_json())))
    assert copy == report
    assert copy.cached


def test_an_interrupted_write_leaves_nothing(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    lowered = lower(*rows(), A2)
    monkeypatch.setattr(json, "dump", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_kernel(lowered)
    monkeypatch.undo()
    assert list(cache_dir.iterdir()) == []

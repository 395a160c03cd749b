from __future__ import annotations

import importlib.util
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
    MemoryUse,
    Overflow,
    ToolchainError,
    compile_kernel,
    compiler_flags,
    lower,
)

UB_BYTES = {A2: 192 << 10, A3: 192 << 10, A5: 248 << 10}


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
        "echo 'error: ub overflow, requires 2000000 bits while 1048576 bits available!' >&2\n"
        "echo '// -----// IR Dump Before X (hivm-enable-multi-buffer) //----- //' >&2\n"
        "printf 'func.func @normalise_rows() {\\n}\\n' >&2",
        monkeypatch,
    )
    report = compile_kernel(lower(*rows(), A2), cache=False)
    assert report.returncode == 0
    assert report.overflow == Overflow("UB", 2_000_000, 1_048_576)
    assert report.retried
    assert not report.ok

"""Each step that can fail names itself, the reason, and the folder where its files lie."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import native_kernels as kernels
import pytest
import torch

from flashasc.ascend.toolchain import ToolchainError
from flashasc.native import NativeError, build, host, launch, lowering, passes

pytestmark = pytest.mark.usefixtures("cold")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the intermediate files of these tests go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def run(level: str = "linalg") -> None:
    x, y = torch.randn(64), torch.zeros(64)
    args = {"x_ptr": x, "y_ptr": y, "n": 64, "factor": 2.0}
    launch(kernels.scaled, (1,), args, {"BLOCK": 64}, level=level)


def failure(level: str = "linalg") -> NativeError:
    with pytest.raises(NativeError) as caught:
        run(level)
    error = caught.value
    assert str(error).startswith(f"native CPU route, step '{error.step}'")
    assert error.reason in str(error)
    return error


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def assert_kept(error: NativeError, *names: str) -> None:
    assert error.folder is not None and f"intermediate files: {error.folder}" in str(error)
    for name in names:
        assert (error.folder / name).stat().st_size, name


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    original = build.importlib.util.find_spec
    monkeypatch.setattr(
        build.importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "triton" else original(name, *rest),
    )
    error = failure()
    assert error.step == "find tools"
    assert "triton-ascend is not installed" in error.reason and "flashasc[offline]" in error.reason


def test_another_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "triton" / "_C").mkdir(parents=True)
    (tmp_path / "triton" / "_C" / "libtriton.so").touch()
    original = build.importlib.util.find_spec

    class Spec:
        submodule_search_locations = (str(tmp_path / "triton"),)

    monkeypatch.setattr(
        build.importlib.util,
        "find_spec",
        lambda name, *rest: Spec if name == "triton" else original(name, *rest),
    )
    error = failure()
    assert error.step == "find tools" and "is not triton-ascend" in error.reason
    assert str(tmp_path) in error.reason


def test_no_ascendnpu_ir(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, arch: str) -> Path:
        raise ToolchainError("bishengir-opt comes with the package ascendnpu-ir, not installed")

    monkeypatch.setattr(build, "bishengir_tool", missing)
    error = failure()
    assert error.step == "find tools" and "ascendnpu-ir" in error.reason


def test_no_c_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(host.shutil, "which", lambda name: None)
    error = failure()
    assert error.step == "find tools" and "no C compiler" in error.reason
    assert "apt-get install gcc" in error.reason


def test_a_wrong_cc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler --fast")
    error = failure()
    assert error.step == "find tools"
    assert "CC is set to 'no-such-compiler --fast'" in error.reason


def test_a_c_compiler_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cold: Path
) -> None:
    text = 'case "$1" in --version) echo mycc 1.0;; *) echo "error: no headers" >&2; exit 3;; esac'
    monkeypatch.setenv("CC", str(script(tmp_path / "mycc", text)))
    error = failure()
    assert error.step == "compile runtime" and "mycc ended with status 3" in error.reason
    assert "error: no headers" in error.reason and error.log == "error: no headers\n"


def test_an_unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.platform, "machine", lambda: "riscv64")
    error = failure()
    assert error.step == "find tools" and "riscv64" in error.reason


@pytest.mark.parametrize(
    "step, level, name",
    [
        ("hfusion", "hfusion", "0-linalg.mlir"),
        ("bufferize", "linalg", "2-linalg.mlir"),
        ("to llvm", "linalg", "4-calls.mlir"),
    ],
)
def test_a_pass_that_fails(
    step: str, level: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if step == "hfusion":
        original = lowering._without_locations
        monkeypatch.setattr(
            lowering,
            "_without_locations",
            lambda *args: original(*args).replace("return", "no.such_operation"),
        )
    else:
        which = "TO_BUFFERS" if step == "bufferize" else "TO_LLVM"
        monkeypatch.setattr(passes, which, (*getattr(passes, which), "--no-such-pass"))
    error = failure(level)
    assert error.step == step and error.kernel == "scaled"
    assert "bishengir-opt ended with status" in error.reason
    assert "no-such-pass" in error.log or "no.such_operation" in error.log
    assert_kept(error, "kernel.ttadapter.mlir", name, f"{step.replace(' ', '-')}.log")


def test_a_crash_in_llvm_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    original = lowering._finish
    # LLVM's optimiser ends the process when no machine is named
    monkeypatch.setattr(
        lowering,
        "_finish",
        lambda *args: original(*args).replace("llvm.target_triple = ", "llvm.no_triple = "),
    )
    error = failure()
    assert error.step == "emit" and "was killed by SIG" in error.reason
    assert_kept(error, "6-program.mlir")
    monkeypatch.undo()


def test_a_module_that_llvm_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    original = lowering._finish
    monkeypatch.setattr(lowering, "_finish", lambda *args: original(*args) + "nonsense")
    error = failure()
    assert error.step == "emit" and "ended with status 1" in error.reason
    assert "6-program.mlir" in error.reason


def test_a_function_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    original = lowering._finish

    def call_unknown(*args: Any) -> str:
        text = original(*args)
        end = text.rindex("llvm.return")
        declared = "  llvm.func @no_such_function()\n}\n"
        text = f"{text[:end]}llvm.call @no_such_function() : () -> ()\n    {text[end:]}"
        return text[: text.rindex("}")] + declared

    monkeypatch.setattr(lowering, "_finish", call_unknown)
    error = failure()
    assert error.step == "link" and "no_such_function" in error.reason
    assert_kept(error, "8-program.o")


def test_a_step_that_never_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "_SECONDS", 0.2)
    sleeper = script(tmp_path / "bishengir-opt", "exec sleep 30")
    monkeypatch.setattr(build, "bishengir_opt", lambda arch: sleeper)
    error = failure()
    assert error.step == "bufferize" and "did not end within 0.2 s" in error.reason


def test_a_tool_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bishengir-opt").write_text("not a program")
    monkeypatch.setattr(build, "bishengir_opt", lambda arch: tmp_path / "bishengir-opt")
    error = failure()
    assert error.step == "bufferize" and "cannot be started" in error.reason


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLASHASC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    error = failure()
    assert error.step == "cache" and "set FLASHASC_CACHE_DIR" in error.reason


def test_code_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    original = build.build_kernel

    def broken(*args: Any) -> build.Built:
        built = original(*args)
        return build.Built(built.code[:200], built.arguments, built.atomic)

    monkeypatch.setattr(build, "build_kernel", broken)
    error = failure()
    assert error.step == "load" and "cannot be loaded" in error.reason


def test_nothing_is_left_behind_by_a_build(temporary: Path) -> None:
    run()
    assert list(temporary.iterdir()) == []


def test_an_interrupt_leaves_nothing(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build.Steps, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert list(temporary.iterdir()) == []


X, Y = torch.zeros(8), torch.zeros(8)
REFUSED: list[tuple[Any, dict[str, Any], str, str, str]] = [
    (kernels.printing, {"x_ptr": X}, "linalg", "check", "tl.device_print"),
    (kernels.printing, {"x_ptr": X}, "hfusion", "check", "hfusion.print"),
    (kernels.sorting, {"x_ptr": X, "y_ptr": Y}, "linalg", "check", "tl.sort"),
    (kernels.sorting, {"x_ptr": X, "y_ptr": Y}, "hfusion", "check", "hfusion.sort"),
    (kernels.reducing_pairs, {"x_ptr": X, "y_ptr": Y}, "linalg", "check", "over several values"),
    (kernels.inline_assembly, {"x_ptr": X, "y_ptr": Y}, "linalg", "check", "inline assembly"),
    (kernels.misspelt, {"x_ptr": X}, "linalg", "triton front end", "no_such_function"),
]


@pytest.mark.parametrize(
    "kernel, args, level, step, reason",
    REFUSED,
    ids=[f"{kernel.__name__}-{level}" for kernel, _, level, _, _ in REFUSED],
)
def test_what_cannot_be_run(
    kernel: Any, args: dict[str, Any], level: str, step: str, reason: str
) -> None:
    constants = {"N": 8} if "N" in kernel.arg_names else {}
    with pytest.raises(NativeError) as caught:
        launch(kernel, (1,), args, constants, level=level)
    error = caught.value
    assert (error.step, error.kernel) == (step, kernel.__name__)
    assert reason in error.reason
    if step == "check":
        assert_kept(error, "kernel.ttadapter.mlir")


def test_an_error_does_not_stick(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(passes, "TO_LLVM", ("--no-such-pass",))
        assert failure().step == "to llvm"
    run()


def test_switches_for_llvm_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
    monkeypatch.setenv("MLIR_ENABLE_DUMP", "1")
    given: list[dict[str, str]] = []
    original = subprocess.run

    def spy(words: Any, **options: Any) -> Any:
        if "env" in options:
            given.append(options["env"])
        return original(words, **options)

    monkeypatch.setattr(build.subprocess, "run", spy)
    run()
    assert len(given) >= 4 and all(environment.get("PATH") for environment in given)
    assert not any({"DISABLE_LLVM_OPT", "MLIR_ENABLE_DUMP"} & set(e) for e in given)

"""Run the open part of the Ascend compiler over a lowered kernel.

`bishengir-compile` lowers Linalg through its HFusion and HIVM passes, plans on-chip memory and
inserts synchronisation; then it calls `hivmc`, which is closed and not on PyPI. Here a stand-in
takes hivmc's place, keeps what it is given and succeeds, so the exit status tells whether all
passes before it did.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from flashasc.ascend import hivm as hivm_text
from flashasc.ascend import report as reports
from flashasc.ascend.frontend import Lowered
from flashasc.ascend.library import undefined_library_calls
from flashasc.ascend.plan import MemoryUse, memory_use
from flashasc.ascend.report import CompileReport
from flashasc.ascend.toolchain import ToolchainError, bishengir_tool, family, versions
from flashasc.ascend.workload import Workload

# triton-ascend's option -> bishengir-compile's, as its linalg_to_bin_enable_npu_compile_* pass it
# (backends/ascend/compiler.py, 3.2.0). An option left at None is not passed.
_FLAGS = {
    "multibuffer": "enable-auto-multi-buffer",
    "unit_flag": "enable-hivm-unit-flag-sync",
    "inject_barrier_all": "enable-hivm-inject-barrier-all-sync",
    **{
        name: name.replace("_", "-")
        for name in (
            "enable_auto_bind_sub_block",
            "enable_hivm_auto_cv_balance",
            "limit_auto_multi_buffer_only_for_local_buffer",
            "limit_auto_multi_buffer_of_local_buffer",
            "set_workspace_multibuffer",
            "tile_mix_vector_loop",
            "tile_mix_cube_loop",
        )
    },
}
_FLAGS_A2_A3 = {
    "sync_solver": "enable-hivm-graph-sync-solver",
    "inject_block_all": "enable-hivm-inject-block-all-sync",
    "disable_auto_inject_block_sync": "disable-auto-inject-block-sync",
}

# It answers the version query in the form the compiler looks for, and keeps its input.
_HIVMC = """#!/bin/sh
if [ "$1" = --version ]; then echo "hivmc $FLASHASC_HIVMC_VERSION"; exit 0; fi
cp "$1" "$FLASHASC_HIVM_TEXT"
"""

# Raised whenever a cached report would come out differently from the same compiler's output.
_CACHE_FORMAT = 3


def compile_kernel(
    lowered: Lowered, *, timeout: float = 180, extra_flags: Sequence[str] = (), cache: bool = True
) -> CompileReport:
    """Compile a lowered kernel as far as the open compiler goes.

    Args:
        lowered: what `flashasc.ascend.lower` returned.
        timeout: seconds after which the compiler is stopped; the report then says so.
        extra_flags: more options for bishengir-compile, as on its command line.
        cache: look the report up on disk first and store it there, under
            $FLASHASC_CACHE_DIR/ascend or ~/.cache/flashasc/ascend. The key is the Linalg text,
            the flags and the tools' versions. A compilation that ran out of time is not stored.

    Returns:
        The report. A kernel that does not compile is an answer and not an error: see its `ok`.
        "Compiles for" a processor is all it says; nothing ran on one.

    Raises:
        ValueError: the kernel was lowered with an option that its processor's compiler lacks.
        ToolchainError: the compiler is missing, or its output can't be understood.

    May be called from several threads and processes at once.
    """
    tool = bishengir_tool("compile", lowered.arch)
    version = versions()[tool.name]
    flags = (*compiler_flags(lowered), *extra_flags)
    entry = _cache_entry(lowered, flags, f"{tool.name} {version}") if cache else None
    if entry and (known := _read(entry)):
        return known
    fresh = _run(lowered, tool, version, flags, timeout)
    if entry and not fresh.timed_out:
        _write(entry, fresh)
    return fresh


def compiler_flags(lowered: Lowered) -> tuple[str, ...]:
    """Return the options that triton-ascend passes to bishengir-compile for this kernel.

    Raises:
        ValueError: an option is set that the compiler of this generation does not have.
    """
    is_a5 = family(lowered.arch) == "A5"
    if is_a5 and (
        unusable := [name for name in _FLAGS_A2_A3 if lowered.options.get(name) is not None]
    ):
        raise ValueError(
            f"options: {unusable} have no effect on {lowered.arch} (triton-ascend passes them for "
            "A2 and A3 only); leave them out"
        )
    table = _FLAGS if is_a5 else {**_FLAGS, **_FLAGS_A2_A3}
    chosen = [
        f"--{flag}={lowered.options[name]}"
        for name, flag in table.items()
        if lowered.options.get(name) is not None
    ]
    return (
        f"--target={lowered.arch}",
        *chosen,
        "--enable-hfusion-compile=true",
        *(() if is_a5 else ("--enable-hivm-compile=true",)),
        "--enable-triton-kernel-compile=true",
    )


def _run(
    lowered: Lowered, tool: Path, version: str, flags: tuple[str, ...], timeout: float
) -> CompileReport:
    with tempfile.TemporaryDirectory(prefix="flashasc-ascend-") as folder:
        work = Path(folder)
        source, hivm = work / f"{lowered.kernel_name}.mlir", work / "final-hivm.mlir"
        source.write_text(lowered.linalg)
        for name in ("hivmc", "hivmc-a5"):
            (work / name).write_text(_HIVMC)
            (work / name).chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{work}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            # the compiler's own temporary files; it leaves them behind when it aborts
            "TMPDIR": folder,
            "FLASHASC_HIVMC_VERSION": _hivmc_version(version),
            "FLASHASC_HIVM_TEXT": str(hivm),
        }
        # the compiler would prefer the hivmc of an installed CANN
        environment.pop("BISHENG_INSTALL_PATH", None)
        started = time.monotonic()
        try:
            done = subprocess.run(
                [tool, source, *flags, hivm_text.DUMP_FLAG, "-o", work / "kernel"],
                capture_output=True,
                timeout=timeout,
                env=environment,
                cwd=work,
            )
            returncode, output = done.returncode, done.stderr + b"\n" + done.stdout
        except subprocess.TimeoutExpired as error:
            returncode, output = None, (error.stderr or b"") + b"\n" + (error.stdout or b"")
        seconds = time.monotonic() - started
        said = output.decode(errors="replace").replace(f"{folder}{os.sep}", "")
        log, functions = hivm_text.split_dumps(said)
        log = log.strip()
        memory: dict[str, MemoryUse] = {}
        work_per_iteration: Workload | None = None
        undefined: tuple[str, ...] = ()
        if returncode == 0:
            compiler = f"{tool.name} {version}"
            memory = _memory(lowered, hivm, compiler, log)
            undefined = undefined_library_calls(hivm.read_text(errors="replace"), lowered.arch)
            work_per_iteration = _workload(lowered, functions, compiler, log)
    return CompileReport(
        kernel_name=lowered.kernel_name,
        arch=lowered.arch,
        flags=flags,
        compiler=f"{tool.name} {version}",
        returncode=returncode,
        notes=reports.notes(log),
        diagnostics=reports.diagnostics(log),
        overflow=reports.worst_overflow(log),
        memory=memory,
        seconds=round(seconds, 3),
        log=log,
        workload=work_per_iteration,
        undefined_calls=undefined,
    )


def _hivmc_version(version: str) -> str:
    """Return what hivmc of the same release answers: "1.2.0 (revision date)"."""
    number, _, rest = version.partition(" ")
    return f"{number} ({rest})"


def _memory(lowered: Lowered, hivm: Path, compiler: str, log: str) -> dict[str, MemoryUse]:
    """Read the memory plan of a compilation that succeeded."""
    try:
        return memory_use(hivm.read_text(errors="replace"))
    except (OSError, ValueError) as error:
        raise _unreadable(lowered, compiler, log, "what it hands to hivmc", error) from error


def _workload(lowered: Lowered, functions: Mapping[str, str], compiler: str, log: str) -> Workload:
    """Count the work of a compilation that succeeded."""
    try:
        return hivm_text.workload(functions)
    except ValueError as error:
        raise _unreadable(lowered, compiler, log, "what it prints of the kernel", error) from error


def _unreadable(
    lowered: Lowered, compiler: str, log: str, what: str, error: Exception
) -> ToolchainError:
    return ToolchainError(
        f"kernel {lowered.kernel_name}, {lowered.arch}: {compiler} reported success, but {what} "
        f"can't be read: {error}\nIt printed:\n{log or '(nothing)'}",
        step="bishengir-compile",
        kernel=lowered.kernel_name,
        log=log,
    )


def _cache_entry(lowered: Lowered, flags: tuple[str, ...], compiler: str) -> Path | None:
    """Return the file that holds the report of this very compilation; None without a home."""
    key = json.dumps([_CACHE_FORMAT, lowered.linalg, lowered.arch, flags, compiler, versions()])
    try:
        base = Path(os.environ.get("FLASHASC_CACHE_DIR") or "~/.cache/flashasc").expanduser()
    except RuntimeError as error:
        _warn_uncached(error)
        return None
    return base / "ascend" / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _read(entry: Path) -> CompileReport | None:
    try:
        return CompileReport.from_json(json.loads(entry.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # damaged: compile again and write over it
        return None


def _write(entry: Path, report: CompileReport) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=entry.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(report.to_json(), file)
            os.replace(temporary, entry)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        _warn_uncached(error)


def _warn_uncached(error: Exception) -> None:
    warnings.warn(
        f"compile reports are not cached: {error}; set FLASHASC_CACHE_DIR to a writable folder",
        stacklevel=4,
    )

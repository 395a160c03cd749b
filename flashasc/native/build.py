"""Build a kernel's shared object; a failing step names itself and keeps its files."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flashasc.ascend.toolchain import ToolchainError, bishengir_tool
from flashasc.native import host, lowering
from flashasc.native.errors import NativeError, shorten
from flashasc.native.settings import Target, keep_folder

_RUNTIME = Path(__file__).with_name("runtime")
_EMIT = Path(__file__).with_name("emit.py")

# No fused multiply-add and no reassociation, whatever the compiler's defaults are.
C_OPTIONS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden")

_DECISIVE = (
    "build.py",
    "elementwise.py",
    "emit.py",
    "generic.py",
    "hfusion.py",
    "libdevice.py",
    "lowering.py",
    "mathfunctions.py",
    "mlir.py",
    "passes.py",
    "structured.py",
)

_SECONDS = 600

# what a tool needs to run; switches that change what LLVM does stay out
_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "CCACHE_DIR")


@dataclass(frozen=True)
class Built:
    """A kernel's machine code.

    Attributes:
        code: content of the shared object.
        arguments: MLIR type of each kernel argument, "ptr" for a pointer.
        atomic: whether its programs must run one after another.
    """

    code: bytes
    arguments: tuple[str, ...]
    atomic: bool


class Steps:
    """Runs the commands of one build in one folder."""

    def __init__(self, kernel: str, folder: Path) -> None:
        self.kernel = kernel
        self.folder = folder

    def run(self, step: str, command: Sequence[str | Path]) -> None:
        """Run a command.

        Raises:
            NativeError: it cannot be started, fails, is killed or does not end.
        """
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self.error(step, f"{words[0]} did not end within {_SECONDS} s") from None
        except OSError as error:
            raise self.error(step, f"{words[0]} cannot be started: {error}") from None
        if done.returncode:
            log = done.stdout + done.stderr
            (self.folder / f"{step.replace(' ', '-')}.log").write_text(
                f"$ {' '.join(words)}\n{log}"
            )
            reason = f"{Path(words[0]).name} {_ending(done.returncode)}: {shorten(log)}"
            raise self.error(step, reason, log)

    def error(self, step: str, reason: str, log: str = "") -> NativeError:
        """Return the exception of a failed step."""
        return NativeError(reason, step=step, kernel=self.kernel, folder=self.folder, log=log)


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def libtriton() -> Path:
    """Find triton-ascend's extension module, without importing Triton.

    Raises:
        NativeError: no Triton is installed, or it is not triton-ascend.
    """
    try:
        spec = importlib.util.find_spec("triton")
    except (ImportError, ValueError):
        spec = None
    where = list(spec.submodule_search_locations or []) if spec else []
    advice = "run: pip install 'flashasc[offline]' in an environment without another Triton"
    if not where:
        raise NativeError(f"triton-ascend is not installed; {advice}", step="find tools")
    found = sorted(Path(where[0], "_C").glob("libtriton*.so"))
    if not Path(where[0], "backends", "ascend").is_dir() or not found:
        raise NativeError(
            f"the module `triton` in {where[0]} is not triton-ascend; {advice}", step="find tools"
        )
    return found[0]


def bishengir_opt(arch: str) -> Path:
    """Find the `bishengir-opt` of a processor.

    Raises:
        NativeError: ascendnpu-ir is not installed.
    """
    try:
        return bishengir_tool("opt", arch)
    except ToolchainError as error:
        raise NativeError(str(error), step="find tools") from error


def build_runtime() -> bytes:
    """Compile the C runtime and return the shared object's content.

    Raises:
        NativeError: there is no C compiler, or it fails; its output is kept.
    """
    folder = Path(tempfile.mkdtemp(prefix="flashasc-native-"))
    result = folder / "runtime.so"
    options = [*C_OPTIONS, *host.host().c_options]
    sources = sorted(_RUNTIME.glob("*.c"))
    command: list[str | Path] = [*host.c_compiler(), *options, *sources, "-o", result]
    command += ["-lm", "-lpthread"]
    Steps("", folder).run("compile runtime", command)
    content = result.read_bytes()
    shutil.rmtree(folder, ignore_errors=True)
    return content


def build_kernel(linalg: str, name: str, target: Target, runtime: Path, key: str) -> Built:
    """Make a shared object of a kernel's Linalg text.

    Args:
        linalg: what `bishengir-compile` is given.
        name: the kernel's name, for messages.
        target: processor and level.
        runtime: shared object of the C runtime, which the kernel's is linked with.
        key: what tells this build's folder from others, under FLASHASC_NATIVE_KEEP.

    Raises:
        NativeError: a step failed; its files are kept.
    """
    keep = keep_folder()
    if keep is not None:
        folder = keep / f"{re.sub(r'[^A-Za-z0-9_]', '_', name)[:80]}-{target.level}-{key[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix="flashasc-native-"))
    try:
        built = _build(linalg, name, target, runtime, folder)
    except NativeError as error:
        if error.folder is None:
            raise Steps(name, folder).error(error.step, error.reason, error.log) from error
        raise
    except BaseException:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return built


def _build(linalg: str, name: str, target: Target, runtime: Path, folder: Path) -> Built:
    steps, machine = Steps(name, folder), host.host()
    tool, library, compiler = bishengir_opt(target.arch), libtriton(), host.c_compiler()
    (folder / "kernel.ttadapter.mlir").write_text(linalg)

    def run_opt(step: str, source: Path, options: Sequence[str], result: Path) -> None:
        steps.run(step, [tool, source, *options, "-o", result])

    program = lowering.to_llvm(linalg, target, folder, run_opt, machine.triple)
    source, text, code = (folder / f for f in ("6-program.mlir", "7-program.ll", "8-program.o"))
    python: list[str | Path] = [sys.executable, "-I", "-S", _EMIT]
    steps.run("emit", [*python, library, source, text, code, machine.triple, machine.cpu])
    result = folder / "9-program.so"
    # every name must be found now, and not when the kernel first calls it
    strict = ["-Wl,-z,defs", "-Wl,-z,now", "-Wl,--no-as-needed"]
    steps.run("link", [*compiler, "-shared", *strict, code, runtime, "-lm", "-o", result])
    return Built(result.read_bytes(), program.arguments, program.atomic)


def runtime_source() -> str:
    """Return the text of the C runtime, header included."""
    return "".join(path.read_text() for path in sorted(_RUNTIME.glob("*.[ch]")))


def source_hash() -> str:
    """Return a hash of those of this package's sources that decide what a build makes."""
    digest = hashlib.sha256()
    for name in _DECISIVE:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()

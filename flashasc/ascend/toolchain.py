"""Where the offline Ascend compiler lives on this machine, and which processors it knows.

Two pip packages make it up: `triton-ascend` (a kernel's source to Linalg) and `ascendnpu-ir` (the
`bishengir` binaries that lower Linalg for an NPU). Nothing here imports either of them.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import Literal

Family = Literal["A2", "A3", "A5"]
ToolName = Literal["compile", "opt"]


def _names(prefix: str, suffixes: str) -> tuple[str, ...]:
    return tuple(prefix + suffix for suffix in suffixes.split())


# The processors that bishengir 1.2.0 accepts for --target, by the generation they belong to. Its
# Ascend310B1-B4 are left out: nothing here was tried on them.
_ARCHS: dict[Family, tuple[str, ...]] = {
    "A2": _names("Ascend910B", "1 2 3 4 4-1 2C"),
    "A3": _names("Ascend910_", "9362 9372 9381 9382 9391 9392"),
    "A5": (
        *_names("Ascend910_", "950z 9579 957b 957d 9581 9589 958a 958b 9599"),
        *_names("Ascend950PR_", "950z 9579 957a 957b 957c 957d"),
        *_names("Ascend950PR_", "9589 958a 958b 958c 958d 9599 959a 959b"),
        *_names("Ascend950DT_", "950x 950y 9571 9572 9573 9574 9575 9576 9577 9578"),
        *_names("Ascend950DT_", "9581 9582 9583 9584 9585 9586 9587 9588"),
        *_names("Ascend950DT_", "9591 9592 9595 9596 95A1 95A2"),
    ),
}

_INSTALL = "pip install 'flashasc[offline]'"
_DISTRIBUTIONS = ("triton-ascend", "ascendnpu-ir")


class ToolchainError(RuntimeError):
    """A step of the offline Ascend compiler is missing or failed.

    Attributes:
        step: which step ("find tools", "triton front end", "triton-adapter-opt", ...).
        kernel: name of the kernel that was being compiled, "" when none was.
        log: what the step printed, whole; "" when it printed nothing.
    """

    def __init__(self, message: str, *, step: str = "", kernel: str = "", log: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.kernel = kernel
        self.log = log


def known_archs() -> tuple[str, ...]:
    """Return every processor name that can be compiled for, A2 first, then A3 and A5."""
    return tuple(arch for archs in _ARCHS.values() for arch in archs)


def family(arch: str) -> Family:
    """Return the generation a processor belongs to: "A2", "A3" or "A5".

    Raises:
        ValueError: `arch` is not a processor name that the compiler knows.
    """
    for name, archs in _ARCHS.items():
        if arch in archs:
            return name
    lines = "".join(f"\n  {name}: {', '.join(archs)}" for name, archs in _ARCHS.items())
    raise ValueError(f"arch: expected an Ascend processor name, got {arch!r}; known ones:{lines}")


def bishengir_tool(name: ToolName, arch: str) -> Path:
    """Find the `bishengir` binary that serves a processor.

    Args:
        name: "compile" (the whole compiler) or "opt" (single passes).
        arch: processor name, e.g. "Ascend910B3". The A5 generation has binaries of its own.

    Returns:
        Path of an executable file inside the ascendnpu-ir wheel.

    Raises:
        ValueError: `name` or `arch` is not known.
        ToolchainError: the wheel is not installed, or lacks the binary.
    """
    if name not in ("compile", "opt"):
        raise ValueError(f"name: expected 'compile' or 'opt', got {name!r}")
    file = f"bishengir-{name}" + ("-a5" if family(arch) == "A5" else "")
    spec = importlib.util.find_spec("ascendnpuir")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError(
            f"{file} comes with the package ascendnpu-ir, which is not installed here; "
            f"run: {_INSTALL}",
            step="find tools",
        )
    path = Path(spec.submodule_search_locations[0], "bin", file)
    if not os.access(path, os.X_OK):
        raise ToolchainError(
            f"{path} is missing or not executable, although ascendnpu-ir "
            f"{_installed('ascendnpu-ir')} is installed; reinstall it: {_INSTALL}",
            step="find tools",
        )
    return path


def versions() -> dict[str, str]:
    """Return the version of each package and binary of the toolchain.

    Returns:
        name -> version, for "triton-ascend", "ascendnpu-ir", "bishengir-compile" and
        "bishengir-compile-a5" (the last two with their source revision); "not installed" where
        one is absent. Equal answers mean the same compiler: use it in cache keys.
    """
    found = {name: _installed(name) for name in _DISTRIBUTIONS}
    for arch in ("Ascend910B3", "Ascend950PR_9589"):
        try:
            tool = bishengir_tool("compile", arch)
        except ToolchainError:
            found["bishengir-compile" + ("-a5" if family(arch) == "A5" else "")] = "not installed"
        else:
            stat = tool.stat()
            found[tool.name] = _binary_version(tool, stat.st_size, stat.st_mtime_ns)
    return found


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.lru_cache(maxsize=8)
def _binary_version(tool: Path, size: int, mtime_ns: int) -> str:
    """Ask a binary for its version; size and time make a replaced binary be asked again."""
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, errors="replace")
    first = re.search(r"^bishengir-compile (\S+) \((.*)\)", done.stdout, re.MULTILINE)
    if done.returncode or first is None:
        raise ToolchainError(
            f"{tool} --version ended with status {done.returncode} and said "
            f"{(done.stdout + done.stderr).strip()[:300]!r}; the binary does not run here (its "
            "wheel needs x86-64 or aarch64 Linux with glibc)",
            step="find tools",
            log=done.stdout + done.stderr,
        )
    # the parenthesis holds a build path, a revision and a date
    return " ".join([first[1], *first[2].split()[1:]])

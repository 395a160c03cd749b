"""What this machine is and which C compiler it has."""

from __future__ import annotations

import functools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from flashasc.native.errors import NativeError

# /proc/cpuinfo flags that each level of the x86-64 psABI adds; the levels are LLVM processor names
_X86_LEVELS: tuple[tuple[str, str], ...] = (
    ("x86-64-v2", "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"),
    ("x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"),
    ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"),
)

# What the C runtime uses of a level, in options that every GCC and Clang knows. AVX-512 is left
# out: its tiles are 256 bits wide.
_X86_OPTIONS: dict[str, tuple[str, ...]] = {
    "x86-64": (),
    "x86-64-v2": ("-msse4.2", "-mpopcnt"),
    "x86-64-v3": ("-mavx2", "-mf16c", "-mbmi2", "-mpopcnt"),
    "x86-64-v4": ("-mavx2", "-mf16c", "-mbmi2", "-mpopcnt"),
}

# (implementer, part) of /proc/cpuinfo -> LLVM processor name
_ARM_PARTS: dict[tuple[int, int], str] = {
    (0x41, 0xD08): "cortex-a72",
    (0x41, 0xD0C): "neoverse-n1",
    (0x41, 0xD40): "neoverse-v1",
    (0x41, 0xD49): "neoverse-n2",
    (0x41, 0xD4F): "neoverse-v2",
    (0x48, 0xD01): "tsv110",  # Kunpeng 920
}


@dataclass(frozen=True)
class Host:
    """The machine that code is made for.

    Attributes:
        triple: LLVM target triple.
        cpu: LLVM processor name ("native" is not one).
        c_options: options that make a C compiler use what the processor has.
    """

    triple: str
    cpu: str
    c_options: tuple[str, ...]


def x86_cpu(flags: set[str]) -> str:
    """Return the highest x86-64 level whose flags are all there."""
    name = "x86-64"
    for level, added in _X86_LEVELS:
        if not flags.issuperset(added.split()):
            break
        name = level
    return name


def arm_cpu(cpuinfo: str) -> str:
    """Return LLVM's name of the one kind of core in /proc/cpuinfo, "generic" for mixed ones."""
    implementers = re.findall(r"^CPU implementer\s*:\s*(\w+)", cpuinfo, re.MULTILINE)
    parts = re.findall(r"^CPU part\s*:\s*(\w+)", cpuinfo, re.MULTILINE)
    kinds = {(int(who, 16), int(part, 16)) for who, part in zip(implementers, parts)}
    return _ARM_PARTS.get(kinds.pop(), "generic") if len(kinds) == 1 else "generic"


@functools.lru_cache(maxsize=1)
def host() -> Host:
    """Find out what this machine is.

    Raises:
        NativeError: it is neither x86-64 nor aarch64 Linux.
    """
    machine = platform.machine().lower()
    if sys.platform != "linux" or machine not in ("x86_64", "amd64", "aarch64", "arm64"):
        raise NativeError(
            f"expected Linux on x86-64 or aarch64 (triton-ascend and ascendnpu-ir have wheels for "
            f"these), this is {sys.platform} on {machine}",
            step="find tools",
        )
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        cpuinfo = ""
    if machine in ("aarch64", "arm64"):
        return Host("aarch64-unknown-linux-gnu", arm_cpu(cpuinfo), ())
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    cpu = x86_cpu(set(found[1].split()) if found else set())
    return Host("x86_64-unknown-linux-gnu", cpu, _X86_OPTIONS[cpu])


def c_compiler() -> list[str]:
    """Return the command of the C compiler: CC, or the first of cc, gcc, clang on PATH.

    Raises:
        NativeError: there is none.
    """
    if chosen := os.environ.get("CC"):
        words = shlex.split(chosen)
        if words and shutil.which(words[0]):
            return words
        raise NativeError(
            f"CC is set to {chosen!r}, which is not an executable; unset it or name a C compiler",
            step="find tools",
        )
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    raise NativeError(
        "no C compiler: cc, gcc and clang are not on PATH and CC is not set; install one "
        "(Debian, Ubuntu: apt-get install gcc libc6-dev)",
        step="find tools",
    )


def c_compiler_version() -> str:
    """Return the first line of the C compiler's own version text."""
    return _version_of(tuple(c_compiler()))


@functools.lru_cache(maxsize=8)
def _version_of(command: tuple[str, ...]) -> str:
    done = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, errors="replace", check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise NativeError(
            f"{shlex.join(command)} --version ended with status {done.returncode}",
            step="find tools",
            log=done.stdout + done.stderr,
        )
    return lines[0]

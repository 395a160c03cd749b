"""A kernel's machine code, loaded: pack the arguments, run the grid."""

from __future__ import annotations

import ctypes
import functools
import json
import struct
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from flashasc.native import build, cache, host, lowering
from flashasc.native.errors import NativeError
from flashasc.native.settings import Target, keep_folder

# MLIR type -> 8-byte slot, little-endian; the lower-case letter is the signed form
_SLOTS = {
    "ptr": "Q",
    "i1": "?7x",
    "i8": "b7x",
    "i16": "h6x",
    "i32": "i4x",
    "i64": "q",
    "f32": "f4x",
    "f64": "d",
}

# by content and target; entries stay, for machine code cannot be unloaded safely
_programs: dict[tuple[str, Target], Program] = {}


class Program:
    """A loaded kernel.

    Attributes:
        name: the kernel's name.
        arguments: MLIR type of each argument, "ptr" for a pointer.
        atomic: whether its programs run one after another, on one thread.
    """

    def __init__(self, path: Path, name: str, arguments: Sequence[str], atomic: bool) -> None:
        library = ctypes.CDLL(str(path))
        # found through what the kernel is linked with, so both use the same pool and memory
        run = library.flashasc_run
        run.restype = ctypes.c_int
        run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3 + [ctypes.c_int]
        self._run = run
        self._entry = ctypes.cast(getattr(library, lowering.ENTRY), ctypes.c_void_p)
        self.name = name
        self.arguments = tuple(arguments)
        self.atomic = atomic

    def packer(self, types: Sequence[str]) -> struct.Struct:
        """Return what packs values of these Triton types ("*fp16", "i32", "u8", ...).

        Raises:
            NativeError: a type that has no slot, or types that are not the kernel's.
        """
        slots = []
        for mlir, triton in zip(self.arguments, types):
            slot = _SLOTS.get(mlir)
            if slot is None or triton.startswith("*") != (mlir == "ptr"):
                raise NativeError(
                    f"an argument of type {triton} arrives as {mlir}, which cannot be passed",
                    step="check",
                    kernel=self.name,
                )
            unsigned = triton.startswith("u") and mlir != "i1"
            slots.append(slot[0].upper() + slot[1:] if unsigned else slot)
        if len(types) != len(self.arguments):
            raise NativeError(
                f"{len(types)} arguments for a kernel that takes {len(self.arguments)}",
                step="check",
                kernel=self.name,
            )
        return struct.Struct("<" + "".join(slots))

    def run(self, packed: bytes, grid: tuple[int, int, int], threads: int) -> None:
        """Run every program of the grid; Python's lock is released meanwhile.

        Raises:
            NativeError: a program needed more memory than there is.
        """
        # atomics are plain reads and writes
        status = self._run(self._entry, packed, *grid, 1 if self.atomic else threads)
        if status:
            raise NativeError(
                f"out of memory on a grid of {grid} with {threads} threads; each thread holds the "
                "tiles of one program: use smaller tiles or fewer threads",
                step="run",
                kernel=self.name,
            )


def get_program(linalg: str, name: str, target: Target) -> Program:
    """Return the loaded machine code of a kernel's Linalg text, from memory, disk, or made now.

    Raises:
        NativeError: a step failed.
    """
    found = _programs.get((linalg, target))
    if found is None:
        found = _programs.setdefault((linalg, target), _obtain(linalg, name, target))
    return found


def _obtain(linalg: str, name: str, target: Target) -> Program:
    key = cache.make_key([linalg, target.arch, target.level, _build_facts(target.arch)])
    # who asks for the intermediate files gets them
    if keep_folder() is None and (program := _load(key, name)) is not None:
        return program
    with cache.building("kernels", key):
        if keep_folder() is None and (program := _load(key, name)) is not None:
            return program
        built = build.build_kernel(linalg, name, target, _runtime(), key)
        info = {"arguments": list(built.arguments), "atomic": built.atomic}
        path = cache.store("kernels", key, built.code, ".so", info)
    try:
        return Program(path, name, built.arguments, built.atomic)
    except (OSError, AttributeError) as error:
        raise NativeError(
            f"{path} was built but cannot be loaded: {error}; if its file system forbids "
            "executing, set FLASHASC_CACHE_DIR to another one",
            step="load",
            kernel=name,
        ) from error


def _load(key: str, name: str) -> Program | None:
    """Load a kernel from the cache; None when it is not there, or not whole."""
    entry = cache.load("kernels", key)
    if entry is None:
        return None
    path, info = entry
    try:
        return Program(path, name, info["arguments"], info["atomic"])
    except (OSError, AttributeError, KeyError):
        # a runtime it was linked with may be gone; what is broken is built anew
        return None


def _runtime() -> Path:
    """Return the C runtime's shared object, compiled if it must be."""
    machine = host.host()
    key = cache.make_key(
        [
            build.runtime_source(),
            host.c_compiler_version(),
            machine.triple,
            machine.c_options,
            build.C_OPTIONS,
        ]
    )
    if entry := cache.load("runtime", key):
        return entry[0]
    with cache.building("runtime", key):
        if entry := cache.load("runtime", key):
            return entry[0]
        return cache.store("runtime", key, build.build_runtime(), ".so", {})


@functools.lru_cache(maxsize=8)
def _build_facts(arch: str) -> str:
    """Everything but the text that decides what a build makes."""
    machine = host.host()
    return json.dumps(
        [
            build.source_hash(),
            machine.triple,
            machine.cpu,
            host.c_compiler_version(),
            *distribution_versions(),
            build.bishengir_opt(arch).stat().st_size,
            build.libtriton().stat().st_size,
        ]
    )


@functools.lru_cache(maxsize=1)
def distribution_versions() -> tuple[str, ...]:
    """Return the versions of triton-ascend and ascendnpu-ir, "" for one that is not installed."""

    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return ""

    return version("triton-ascend"), version("ascendnpu-ir")


def forget() -> None:
    """Drop what this process has found out about tools; loaded programs are looked up again."""
    for function in (_build_facts, distribution_versions, host.host):
        function.cache_clear()
    _programs.clear()

"""On-chip memory of a compiled kernel, read from the text that the compiler hands to its assembler.

`bishengir-compile` plans every local buffer itself; what it passes on (HIVM, MLIR text) holds each
as `hivm.hir.pointer_cast(%offset) : memref<..., #hivm.address_space<ub>>`. L0A and L0B are not in
it: the device library splits operands into those.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

# MLIR's address space -> (the hardware's name, the key of its size in the module's device spec)
_SPACES = {"ub": ("UB", "UB_SIZE"), "cbuf": ("L1", "L1_SIZE"), "cc": ("L0C", "L0C_SIZE")}
_BITS = {"f8E4M3FN": 8, "f8E5M2": 8, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "index": 64}

_CAPACITY = re.compile(r'#dlti\.dl_entry<"(\w+_SIZE)", (\d+) : i\d+>')
_CONSTANT = re.compile(
    r"(%\w+) = (?:arith\.constant|llvm\.mlir\.constant)\(?\s*(-?\d+) : i(?:64|32)"
)
_BUFFER = re.compile(
    r"hivm\.hir\.pointer_cast\(([^)]*)\).* : memref<([\dx]*)(\w+)"
    r"(?:, strided<\[([\d, ]*)\][^>]*>)?, #hivm\.address_space<(\w+)>>"
)


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of one on-chip memory: the highest that a buffer reaches, and how many there are."""

    used: int
    available: int


def memory_use(hivm: str) -> dict[str, MemoryUse]:
    """Read the memory plan out of HIVM text.

    Args:
        hivm: MLIR text as `hivmc` is given it.

    Returns:
        "UB" (of one vector core), "L1", "L0C" (of one cube core) -> bytes; a memory that the
        kernel does not touch is absent. Double buffers count twice, as they are laid out.

    Raises:
        ValueError: the text has no device spec, or places a buffer where this can't read it.
    """
    capacity = {name: int(bits) // 8 for name, bits in _CAPACITY.findall(hivm)}
    used: dict[str, int] = {}
    constants: dict[str, int] = {}
    for line in hivm.splitlines():
        if "func.func" in line:
            constants = {}
        elif constant := _CONSTANT.search(line):
            constants[constant[1]] = int(constant[2])
        elif "hivm.hir.pointer_cast" in line:
            name, end = _buffer_end(line, constants)
            used[name] = max(used.get(name, 0), end)
    known = {name: capacity.get(key) for name, key in _SPACES.values()}
    if missing := [name for name in used or known if known[name] is None]:
        raise ValueError(f"the module's device spec gives no size for {', '.join(missing)}")
    return {name: MemoryUse(end, known[name] or 0) for name, end in sorted(used.items())}


def _buffer_end(line: str, constants: dict[str, int]) -> tuple[str, int]:
    """Return the memory that a pointer_cast is in, and the first byte after its last buffer."""
    match = _BUFFER.search(line)
    offsets = [constants.get(name.strip()) for name in match[1].split(",")] if match else [None]
    if match is None or None in offsets or match[5] not in _SPACES:
        raise ValueError(f"a buffer without a fixed place: {line.strip()}")
    shape = [int(size) for size in match[2].split("x") if size]
    strides = [int(stride) for stride in match[4].split(",")] if match[4] else _dense(shape)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    bits = _BITS.get(match[3]) or int(match[3].lstrip("iu"))
    return _SPACES[match[5]][0], max(o for o in offsets if o is not None) + math.ceil(
        extent * bits / 8
    )


def _dense(shape: list[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]

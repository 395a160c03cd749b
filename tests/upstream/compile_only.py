"""Compile kernels for NVIDIA GPUs with upstream Triton, where there is no GPU.

Triton's wheel brings the whole way down: LLVM to PTX, `ptxas` to machine code (cubin), and
`cuobjdump`, which reads registers and spills out of that. Works with Triton 3.2 to 3.6.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10}
SHARED_BYTES[120] = 99 << 10
"""Shared memory that one block may have, by compute capability (CUDA C++ Programming Guide)."""


@dataclass(frozen=True)
class Compiled:
    """Machine code of a kernel, and what it takes of a multiprocessor."""

    ptx: str
    cubin: bytes
    shared_bytes: int
    """Shared memory of a block."""
    registers: int
    """Registers of a thread."""
    stack_bytes: int
    """Local memory of a thread. Tiles live in registers, so this is what was spilled."""


def compile_only(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    capability: int,
    *,
    divisible_by_16: Collection[str] = (),
    **options: object,
) -> Compiled:
    """Compile one specialisation of a kernel.

    Args:
        kernel: a function decorated with `@triton.jit`.
        signature: runtime argument name -> Triton type, e.g. "*fp16", "i32".
        constants: name -> value of constexprs, and of runtime arguments fixed to a value.
        capability: compute capability, 80 for sm_80.
        divisible_by_16: runtime arguments that the JIT would find aligned.
        options: what a launch takes beside the arguments: num_warps, num_stages, ...

    Raises whatever Triton raises for a kernel that does not compile.
    """
    names = list(kernel.arg_names)
    runtime = {name: signature[name] for name in names if name not in constants}
    assert runtime.keys() == signature.keys(), "a name in both, or one that the kernel lacks"
    aligned = [names.index(name) for name in divisible_by_16]
    if "constexprs" in inspect.signature(ASTSource.__init__).parameters:
        source = ASTSource(
            kernel,
            {name: runtime.get(name, "constexpr") for name in names},
            dict(constants),
            {(position,): [["tt.divisibility", 16]] for position in aligned},
        )
    else:  # up to Triton 3.2
        from triton.backends.compiler import AttrsDescriptor

        attrs = AttrsDescriptor.from_hints(dict.fromkeys(aligned, 16))
        source = ASTSource(kernel, runtime, dict(constants), attrs)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack = _resources(built.asm["cubin"], built.metadata.name)
    return Compiled(built.asm["ptx"], built.asm["cubin"], built.metadata.shared, registers, stack)


def newest_capability() -> int:
    """Return the newest compute capability that the installed Triton compiles for."""
    return 90 if triton.__version__.startswith("3.2.") else 120


def _resources(cubin: bytes, name: str) -> tuple[int, int]:
    """Return registers and stack bytes of a thread, as cuobjdump reads them from machine code."""
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [cuobjdump, "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = re.search(rf"Function {re.escape(name)}:\s+REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])

"""From the text the Ascend compiler is given to LLVM's dialect, with an entry for the C runtime.

Everything here is MLIR's own passes, run by the Ascend compiler's `bishengir-opt`, and small edits
of the text between them. Sums keep their order and products are never fused with sums: the only
freedom taken is in which order independent elements are visited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashasc.ascend.toolchain import family
from flashasc.native import hfusion, libdevice, passes, structured
from flashasc.native.errors import NativeError
from flashasc.native.mathfunctions import use_definitions
from flashasc.native.mlir import element, kernel_function
from flashasc.native.settings import Target

# runs bishengir-opt: (step, input file, options, output file) -> None
RunOpt = Callable[[str, Path, Sequence[str], Path], None]

KERNEL = "flashasc_kernel"
ENTRY = "flashasc_program"

# after each kernel argument: 3 x i32 grid size, 3 x i32 program id
_TRAILING = 6

_SCALARS = ("i1", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64")


@dataclass(frozen=True)
class LLVMProgram:
    """A kernel in LLVM's dialect.

    Attributes:
        text: module whose `flashasc_program` runs one program.
        arguments: MLIR type of each kernel argument, "ptr" for a pointer, in 8-byte slots.
        atomic: whether it has atomics, which are plain reads and writes here.
    """

    text: str
    arguments: tuple[str, ...]
    atomic: bool


def to_llvm(linalg: str, target: Target, folder: Path, run_opt: RunOpt, triple: str) -> LLVMProgram:
    """Lower a kernel's Linalg text.

    Args:
        linalg: what `bishengir-compile` is given.
        target: processor and level.
        folder: where each intermediate text is written.
        run_opt: runs one `bishengir-opt` command.
        triple: LLVM target triple of this machine.

    Raises:
        NativeError: a construct that cannot be run here, or a step that fails.
    """
    _check(linalg)
    atomic = "GenericAtomicRMW" in linalg or ".atomic" in linalg
    text = _without_locations(linalg, folder, run_opt)
    if target.level == "hfusion":
        text = _run_hfusion(text, target, folder, run_opt)
    text = hfusion.translate(hfusion.open_calls(text), a5=family(target.arch) == "A5")
    text = structured.start_reductions(libdevice.define(text))
    # hints: one that bufferization cannot place, one (on tiles whose columns are not adjacent in
    # memory) that only the Ascend compiler knows
    hints = r"^ *(\"?llvm\.intr\.assume\b|annotation\.mark\b).*\n"
    text = re.sub(hints, "", text, flags=re.MULTILINE)
    text, arguments, hidden = _rename_kernel(text)
    # Loads from the buffer of a `to_tensor .. restrict writable` follow it in scans; bufferization,
    # which cannot see them, must not write there.
    text = text.replace(" restrict writable : memref", " restrict : memref")
    source, buffers, calls, result = (
        folder / f"{name}.mlir" for name in ("2-linalg", "3-buffers", "4-calls", "5-llvm")
    )
    transforms = folder / "transforms.mlir"
    transforms.write_text(passes.TRANSFORMS)
    library = f"--transform-preload-library=transform-library-paths={transforms}"
    source.write_text(text)
    run_opt("bufferize", source, [library, *passes.TO_BUFFERS], buffers)
    calls.write_text(_call_matmuls(buffers.read_text()))
    run_opt("to llvm", calls, [library, *passes.TO_LLVM], result)
    program = _finish(result.read_text(), arguments, hidden, triple)
    (folder / "6-program.mlir").write_text(program)
    return LLVMProgram(program, arguments, atomic)


def _without_locations(linalg: str, folder: Path, run_opt: RunOpt) -> str:
    """Drop source locations, which triton-ascend adds under TRITON_DISABLE_LINE_INFO=0."""
    if not re.search(r"\bloc\(", linalg):
        return linalg
    source, result = folder / "located.mlir", folder / "unlocated.mlir"
    source.write_text(linalg)
    run_opt("read", source, [], result)
    return result.read_text()


def _check(linalg: str) -> None:
    """Refuse what MLIR's own dialects have no word for, before a pass fails on it."""
    for pattern, reason in (
        (r'"tt\.reduce"', "a tl.reduce over several values"),
        (r'"tt\.scan"', "a scan that triton-adapter-opt does not lower"),
        (r"\bllvm\.inline_asm\b", "inline assembly"),
    ):
        if re.search(pattern, linalg):
            raise NativeError(
                f"the lowered kernel has {reason}; it cannot be run here", step="check"
            )


def _run_hfusion(text: str, target: Target, folder: Path, run_opt: RunOpt) -> str:
    source, result = folder / "0-linalg.mlir", folder / "1-hfusion.mlir"
    source.write_text(text)
    options = [
        "--canonicalize-module",
        f"--hacc-append-device-spec=target={target.arch}",
        "--lower-hfusion-pipeline=enable-triton-kernel-compile=true",
    ]
    run_opt("hfusion", source, options, result)
    return result.read_text()


def _rename_kernel(text: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Give the kernel a fixed name and a bare header.

    Returns:
        (text, types of the kernel's own arguments, types of the hidden ones before them).
    """
    function = kernel_function(text)
    types = [type_ for _, type_ in function.args]
    # after HFusion an i64, then always two memrefs: sync-block lock, workspace
    hidden = 3 if types[0] == "i64" else 2
    own = types[hidden:-_TRAILING]
    body = text[function.body :]
    for name, type_ in function.args[:hidden]:
        if re.search(re.escape(name) + r"\b", body):
            raise NativeError(
                f"the lowered kernel uses its hidden argument {name}: {type_} (a lock or a "
                "workspace in device memory), which does not exist here",
                step="check",
            )
    for name, type_ in function.args[hidden:]:
        if not type_.startswith("memref<?x") and type_ not in _SCALARS:
            raise NativeError(f"argument {name} has the type {type_}", step="check")
    header = ", ".join(f"{name}: {type_}" for name, type_ in function.args)
    text = f"{text[: function.start]}func.func @{KERNEL}({header}) {body}"
    arguments = tuple("ptr" if type_.startswith("memref") else type_ for type_ in own)
    return text, arguments, tuple(types[:hidden])


_MATMUL = re.compile(
    r"^(?P<indent> *)linalg\.matmul (?:\{[^}]*\} )?"
    r"ins\((?P<a>%[\w#]+), (?P<b>%[\w#]+) : (?P<ta>memref<.*>), (?P<tb>memref<.*>)\) "
    r"outs\((?P<c>%[\w#]+) : (?P<tc>memref<.*>)\)$",
    re.MULTILINE,
)
_STRIDED = "memref<?x?x{}, strided<[?, ?], offset: ?>>"


def _call_matmuls(text: str) -> str:
    """Turn products of fp32, fp16 and bf16 matrices into calls of the C runtime."""
    used: dict[str, None] = {}
    counter = 0

    def call(match: re.Match[str]) -> str:
        nonlocal counter
        a, b, c = (element(match[name]) for name in ("ta", "tb", "tc"))
        if a != b or c != "f32" or a not in ("f32", "f16", "bf16"):
            return match[0]
        used[a] = None
        counter += 1
        types = [_STRIDED.format(a), _STRIDED.format(a), _STRIDED.format(c)]
        names = [f"%fa_{name}{counter}" for name in ("a", "b", "c")]
        casts = [
            f"{match['indent']}{new} = memref.cast {match[old]} : {match['t' + old]} to {type_}\n"
            for new, old, type_ in zip(names, ("a", "b", "c"), types)
        ]
        return (
            f"{''.join(casts)}{match['indent']}func.call @flashasc_matmul_{a}({', '.join(names)}) "
            f": ({', '.join(types)}) -> ()"
        )

    text = _MATMUL.sub(call, text)
    declared = "".join(
        f"  func.func private @flashasc_matmul_{a}"
        f"({', '.join(_STRIDED.format(type_) for type_ in (a, a, 'f32'))})\n"
        for a in used
    )
    end = text.rindex("}")
    return f"{text[:end]}{declared}{text[end:]}"


def _finish(text: str, arguments: Sequence[str], hidden: Sequence[str], triple: str) -> str:
    """Add the entry and the math functions, and name the machine."""
    # from the module's brace on, past its attributes if it has any
    body = text[text.index("{\n") :]
    body = use_definitions(body.replace(f"llvm.func @{KERNEL}(", f"llvm.func internal @{KERNEL}("))
    end = body.rindex("}")
    return (
        # without a triple LLVM's optimiser ends the process
        f'module attributes {{llvm.target_triple = "{triple}"}} {body[:end]}'
        f"{_entry(arguments, hidden)}}}\n"
    )


def _entry(arguments: Sequence[str], hidden: Sequence[str]) -> str:
    """Write the function that reads arguments from 8-byte slots and calls the kernel."""
    loads: list[str] = []
    values: list[str] = []
    types: list[str] = []

    def give(type_: str, value: str) -> None:
        if type_ == "ptr":
            # a rank-1 memref: allocated and aligned pointer, offset, size, stride. Its size is
            # not known here, and nothing in a kernel asks for it.
            values.extend([value, value, "%zero", "%any", "%one"])
            types.extend(["!llvm.ptr", "!llvm.ptr", "i64", "i64", "i64"])
        else:
            values.append(value)
            types.append(type_)

    for type_ in hidden:
        give(*(("i64", "%zero") if type_ == "i64" else ("ptr", "%null")))
    for slot, type_ in enumerate(arguments):
        loads += [
            f"%p{slot} = llvm.getelementptr %args[{slot}] : (!llvm.ptr) -> !llvm.ptr, i64",
            f"%v{slot} = llvm.load %p{slot} : !llvm.ptr -> "
            f"{'!llvm.ptr' if type_ == 'ptr' else type_}",
        ]
        give(type_, f"%v{slot}")
    places = ("%grid_x", "%grid_y", "%grid_z", "%x", "%y", "%z")
    for place in places:
        give("i32", place)
    lines = [
        "%null = llvm.mlir.zero : !llvm.ptr",
        "%zero = llvm.mlir.constant(0 : i64) : i64",
        "%one = llvm.mlir.constant(1 : i64) : i64",
        "%any = llvm.mlir.constant(4611686018427387904 : i64) : i64",
        *loads,
        f"llvm.call @{KERNEL}({', '.join(values)}) : ({', '.join(types)}) -> ()",
        "llvm.return",
    ]
    inner = "".join(f"    {line}\n" for line in lines)
    return (
        f"  llvm.func @{ENTRY}(%args: !llvm.ptr, {', '.join(f'{p}: i32' for p in places)}) {{\n"
        f"{inner}  }}\n"
    )

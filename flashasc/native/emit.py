"""Turn a module in LLVM's dialect into an object file, with the LLVM inside triton-ascend.

Run as a script, in a process of its own: LLVM ends the process on a module it does not like. It
needs libtriton alone, which loads in a twentieth of the time that `import triton` takes.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

# names in the module -> names in runtime.c. Only after optimising: LLVM knows what malloc is.
_RENAMED = (
    ("malloc", "flashasc_alloc"),
    ("calloc", "flashasc_calloc"),
    ("free", "flashasc_free"),
    ("memrefCopy", "flashasc_memref_copy"),
)


def emit(libtriton: Any, source: Path, triple: str, cpu: str) -> tuple[str, bytes]:
    """Translate, optimise and compile one module.

    Args:
        libtriton: the extension module.
        source: file with the module's text.
        triple: LLVM target triple; the module names the same one.
        cpu: LLVM processor name.

    Returns:
        (optimised LLVM IR, object file).
    """
    ir, llvm = libtriton.ir, libtriton.llvm
    context = ir.context()
    ir.load_dialects(context)
    parsed = ir.parse_mlir_module(str(source), context)
    parsed.context = context
    llvm.init_targets()
    module = llvm.to_module(parsed, llvm.context())
    llvm.attach_datalayout(module, triple, cpu, "")
    # the last argument: no fusing of products and sums
    llvm.optimize_module(module, llvm.OPTIMIZE_O3, cpu, "", [], False)
    text = str(module)
    for old, new in _RENAMED:
        text = text.replace(f"@{old}(", f"@{new}(")
    return text, llvm.translate_to_asm(text, triple, cpu, "", [], False, True)


def main(libtriton_path: str, source: str, text_out: str, object_out: str, *machine: str) -> None:
    """Load libtriton and write both results; `machine` is triple and cpu."""
    spec = importlib.util.spec_from_file_location("libtriton", libtriton_path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{libtriton_path} is not an extension module")
    libtriton = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(libtriton)
    triple, cpu = machine
    text, code = emit(libtriton, Path(source), triple, cpu)
    Path(text_out).write_text(text)
    Path(object_out).write_bytes(code)


if __name__ == "__main__":
    main(*sys.argv[1:])

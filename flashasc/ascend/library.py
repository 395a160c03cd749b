"""The device library in the ascendnpu-ir wheel: which of a kernel's calls it does not answer.

The compiler lowers many operations to calls of library functions, and does not check that they
exist: `hivmc`, which links them, is closed and not part of the wheel. The library is, as bitcode.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from flashasc.ascend.bitcode import defined_functions
from flashasc.ascend.toolchain import Family, ToolchainError, bishengir_tool, family

# Which of the wheel's libraries each compiler names: bishengir-compile meta_op.aiv.bc and so on,
# bishengir-compile-a5 meta_op.aiv.c310.bc. (It names .c220.bc too, which has older functions.)
_ENDINGS: dict[Family, str] = {"A2": ".bc", "A3": ".bc", "A5": ".c310.bc"}
_CORES = {"AIV": ("aiv",), "AIC": ("aic",)}
_DECLARATION = re.compile(r"func\.func private @([\w$.]+)\(.*func_core_type<(\w+)>")
# how MLIR calls a function that has attribute llvm.emit_c_interface
_PREFIX = "_mlir_ciface_"


def undefined_library_calls(hivm: str, arch: str) -> tuple[str, ...]:
    """Return the library functions that a kernel calls and the shipped library does not define.

    Args:
        hivm: MLIR text as `hivmc` is given it.
        arch: processor name, e.g. "Ascend910B3".

    Returns:
        Names as they stand in the text, sorted. Whether `hivmc` has them from elsewhere can't be
        known without it.

    Raises:
        ValueError: `arch` is not known.
        ToolchainError: the wheel is missing, or its library can't be read.
    """
    called = {
        (match[1], match[2])
        for line in hivm.splitlines()
        # one with a body ends in the brace that opens it
        if (match := _DECLARATION.search(line)) and not line.rstrip().endswith("{")
    }
    if not called:
        return ()
    defined = {core: _defined(arch, core) for core in ("aiv", "aic")}
    return tuple(
        sorted(
            {
                name
                for name, core in called
                if _PREFIX + name.removeprefix(_PREFIX)
                not in frozenset().union(*(defined[it] for it in _CORES.get(core, ("aiv", "aic"))))
            }
        )
    )


def _defined(arch: str, core: str) -> frozenset[str]:
    """Return what the library defines for the vector ("aiv") or cube ("aic") cores of a chip."""
    folder = bishengir_tool("compile", arch).parent.parent / "lib"
    ending = _ENDINGS[family(arch)]
    files = [folder / f"meta_op.{core}{ending}", folder / f"meta_op.mix.{core}{ending}"]
    names: set[str] = set()
    for file in files:
        try:
            stat = file.stat()
            names |= _functions(file, stat.st_size, stat.st_mtime_ns)
        except (OSError, ValueError) as error:
            raise ToolchainError(
                f"the device library of {arch} can't be read: {error}; reinstall ascendnpu-ir",
                step="device library",
            ) from error
    # in the files for kernels on both kinds of core, names end in the kind
    return frozenset(name.removesuffix(".vector").removesuffix(".cube") for name in names)


@functools.lru_cache(maxsize=16)
def _functions(file: Path, size: int, mtime_ns: int) -> frozenset[str]:
    """Read a file once; size and time make a replaced one be read again."""
    return defined_functions(file)

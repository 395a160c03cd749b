"""Every reduction for Ascend that the package ships: kernel x dtype x tile configuration x use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from flashasc._configs.ascend import SAME_MEMORIES
from flashasc._configs.reduce import NORMALIZE, REDUCE, NormalizeConfig, ReduceConfig
from flashasc._reductions import Largest, Method, Mode, Term
from flashasc.ascend import family
from flashasc.ascend.frontend import _import_backend
from flashasc.workbench.case import Case
from flashasc.workbench.shipped import DEFAULT_TARGETS, DTYPES, generation_of

_TYPES = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32"}


def shipped_reductions(
    targets: Sequence[str] = DEFAULT_TARGETS, *, dtype: str | None = None, every_use: bool = True
) -> list[Case]:
    """List the reductions and norms that are shipped for some processors.

    Args:
        targets: processor names in full. One that no row of the tables names gets the rows of its
            generation's first.
        dtype: "float16", "bfloat16" or "float32"; by default all with every_use, and otherwise the
            one that needs most room: a row serves every dtype with one tile.
        every_use: each row in all its uses; otherwise in the one that needs most room.

    Raises:
        ValueError: an unknown processor or dtype.
        ToolchainError: triton-ascend is not installed.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    # the kernels import triton: without the right one, say what to install
    _import_backend()
    found: list[Case] = []
    for arch in targets:
        every = [dtype] if dtype else list(_TYPES)
        single = not dtype and not every_use
        for name in [_largest_reduction(arch)] if single else every:
            for row in REDUCE:
                if _serving(arch, row.targets):
                    kinds = _reduce_uses(every_use)
                    found += [reduce_case(row, name, arch, *kind) for kind in kinds]
        for name in ["float32"] if single else every:
            for tile in NORMALIZE:
                if _serving(arch, tile.targets):
                    found += [
                        normalize_case(tile, name, arch, *kind)
                        for kind in _normalize_uses(tile, every_use)
                    ]
    return found


def _largest_reduction(arch: str) -> str:
    """The dtype whose reductions need most of the UB: on A5 16-bit numbers are kept beside fp32."""
    return "float16" if family(arch) == "A5" else "float32"


def _serving(arch: str, named: Sequence[str]) -> bool:
    every = {target for row in REDUCE for target in row.targets}
    known = SAME_MEMORIES.get(arch, arch)
    return (known if known in every else generation_of(arch)) in named


def _reduce_uses(every_use: bool) -> list[tuple[str, str, bool, bool]]:
    """(term, method, several chunks, 64-bit strides and lengths); most room first."""
    largest = [("spread", "sum2", True, False)]
    if not every_use:
        return largest
    sums = [
        (term, method, raw, raw)
        for term in get_args(Term)
        for method in get_args(Method)
        for raw in (False, True)
    ]
    flags = (False, True)
    return largest + sums + [(of, "max", r, r) for of in get_args(Largest) for r in flags]


def _normalize_uses(tile: NormalizeConfig, every_use: bool) -> list[tuple[Mode, str, int, bool]]:
    """(mode, method, numbers of a row, weight and bias); most room first."""
    largest: list[tuple[Mode, str, int, bool]] = [("layer_norm", "sum2", tile.max_tile, True)]
    if not every_use:
        return largest
    others = [
        (mode, method, numbers, mode != "softmax")
        for mode in get_args(Mode)
        for method in get_args(Method)
        for numbers in (1, 1000, tile.max_tile, tile.max_tile + 16)
    ]
    return largest + [use for use in others if use not in largest]


def reduce_case(
    row: ReduceConfig, dtype: str, arch: str, term: str, method: str, raw: bool, wide: bool
) -> Case:
    """A reduction as a call of this kind specialises its kernel on a processor."""
    from flashasc.kernels.reduce_launch import absent_arguments, kernel_constants
    from flashasc.kernels.reduce_rows import reduce_kernel

    constants = kernel_constants(row, term, method, raw=raw, wide=wide, long=wide)
    constants |= absent_arguments(term)
    constants |= {"stride_xn" if row.along else "stride_xm": 1}
    aligned = ("stride_xm" if row.along else "stride_xn", "stride_xo", "stride_xp", "numbers")
    long = dict.fromkeys((*aligned, "rows") if wide else (), "i64")
    how = "along" if row.along else "across"
    return _case(
        "reduction",
        f"{term} {method}{', chunks' if raw else ''}{', 64 bits' if wide else ''}",
        reduce_kernel,
        constants,
        {"x_ptr": _TYPES[dtype], **long},
        aligned,
        arch,
        {
            "dtype": dtype,
            "precision": method,
            "row": f"{how}, {'any length' if row.max_length is None else f'<={row.max_length}'}",
            "block_m": row.block_m,
            "block_n": row.block_n,
        },
    )


def normalize_case(
    tile: NormalizeConfig,
    dtype: str,
    arch: str,
    mode: Mode,
    method: str,
    numbers: int,
    affine: bool,
) -> Case:
    """Softmax or a norm as a call of this kind specialises its kernel on a processor."""
    from flashasc.kernels.normalize_launch import absent_arguments, kernel_constants
    from flashasc.kernels.normalize_rows import normalize_kernel

    given = numbers > tile.max_tile
    switches = {"given": given, "weight": affine, "bias": affine and mode == "layer_norm"}
    constants = kernel_constants(tile, mode, method, numbers, wide=False, **switches)
    constants |= absent_arguments(**switches)
    constants |= {"stride_xn": 1, "stride_on": 1}
    constants |= {"numbers": 1} if numbers == 1 else {}
    aligned = ["stride_xo", "stride_xm", "stride_oo", "stride_om"]
    aligned += [] if numbers % 16 else ["numbers"]
    types = {"x_ptr": _TYPES[dtype], "out_ptr": _TYPES[dtype], "eps": "fp32"}
    return _case(
        mode,
        f"{method}, rows of {numbers}",
        normalize_kernel,
        constants,
        types,
        aligned,
        arch,
        {
            "dtype": dtype,
            "precision": method,
            "row": f"rows of {numbers}",
            "block_m": tile.block_m(numbers),
            "block_n": tile.block_n(numbers),
        },
    )


def _case(
    operation: str,
    use: str,
    kernel: Any,
    constants: Mapping[str, object],
    types: Mapping[str, str],
    aligned: Sequence[str],
    arch: str,
    facts: Mapping[str, object],
) -> Case:
    names = [name for name in kernel.arg_names if name not in constants]
    default = {name: "*fp32" if name.endswith("_ptr") else "i32" for name in names}
    pointers = [name for name in names if name.endswith("_ptr")]
    tile = f"{facts['block_m']}x{facts['block_n']}"
    return Case(
        name=f"{operation} {facts['dtype']} {facts['row']} {tile}, {use}",
        arch=arch,
        kernel=kernel,
        signature={name: types.get(name, kind) for name, kind in default.items()},
        constants=constants,
        divisible_by_16=tuple(name for name in (*pointers, *aligned) if name not in constants),
        facts={"operation": operation, "use": use, **facts},
    )

"""Every row of the reductions' tables for NVIDIA, to machine code, with no GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest
from compile_only import SHARED_BYTES, Compiled, compile_only

from flashasc._configs.reduce import NORMALIZE, REDUCE, NormalizeConfig, ReduceConfig
from flashasc._reductions import Mode
from flashasc.kernels import normalize_launch, reduce_launch
from flashasc.kernels.normalize_rows import normalize_kernel
from flashasc.kernels.reduce_rows import reduce_kernel

ROWS = [row for row in REDUCE if "sm_90" in row.targets]
(TILE,) = [row for row in NORMALIZE if "sm_90" in row.targets]
(SMALL_TILE,) = [row for row in NORMALIZE if "sm_86" in row.targets]
SMALLEST = min(SHARED_BYTES.values())


def compiled(
    kernel: Any,
    constants: dict[str, Any],
    aligned: tuple[str, ...],
    options: Any,
    capability: int = 90,
    **types: str,
) -> Compiled:
    names = [name for name in kernel.arg_names if name not in constants]
    default = {name: "*fp32" if name.endswith("_ptr") else "i32" for name in names}
    pointers = [name for name in names if name.endswith("_ptr")]
    marked = [name for name in (*pointers, *aligned) if name in names]
    return compile_only(
        kernel, default | types, constants, capability, divisible_by_16=marked, **options
    )


def reduction(row: ReduceConfig, term: str, method: str, *, raw: bool, **types: str) -> Compiled:
    constants = reduce_launch.kernel_constants(row, term, method, raw=raw, wide=False, long=False)
    constants |= reduce_launch.absent_arguments(term)
    constants |= {"stride_xn" if row.along else "stride_xm": 1}
    aligned = ("stride_xo", "stride_xp", "stride_xm", "stride_xn", "numbers")
    return compiled(reduce_kernel, constants, aligned, row.compiler_options(), **types)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.along}-{r.max_length}")
@pytest.mark.parametrize(
    ("term", "method", "raw"), [("value", "kahan", True), ("spread", "sum2", False)]
)
def test_a_reduction_compiles_and_stays_in_registers(
    row: ReduceConfig, term: str, method: str, raw: bool
) -> None:
    built = reduction(row, term, method, raw=raw)
    assert built.shared_bytes <= SMALLEST
    assert built.stack_bytes == 0, "spills"


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.along and row.stages > 1], ids=lambda r: str(r.block_n)
)
def test_numbers_side_by_side_are_loaded_16_bytes_at_a_time(row: ReduceConfig) -> None:
    for dtype in ("*fp32", "*bf16"):
        ptx = reduction(row, "value", "kahan", raw=True, x_ptr=dtype).ptx
        assert "ld.global" not in ptx, "not loaded ahead"
        sizes = re.findall(r"cp\.async\.c[ag]\.\S+ \[[^]]*\], \[[^]]*\], (\w+)", ptx)
        assert sizes
        assert set(sizes) == {"0x10"}


def normalized(tile: NormalizeConfig, mode: Mode, method: str, numbers: int) -> Compiled:
    given = numbers > tile.max_tile
    switches = {"given": given, "weight": mode != "softmax", "bias": mode == "layer_norm"}
    constants = normalize_launch.kernel_constants(
        tile, mode, method, numbers, wide=False, **switches
    )
    constants |= normalize_launch.absent_arguments(**switches)
    constants |= {"stride_xn": 1, "stride_on": 1}
    types = dict.fromkeys(("x_ptr", "out_ptr", "weight_ptr", "bias_ptr"), "*bf16")
    types = {name: kind for name, kind in types.items() if name not in constants}
    aligned = ("stride_xo", "stride_xm", "stride_oo", "stride_om", "numbers")
    options = tile.schedule(mode, numbers).compiler_options()
    capability = int(tile.targets[0].removeprefix("sm_"))
    return compiled(normalize_kernel, constants, aligned, options, capability, **types, eps="fp32")


@pytest.mark.parametrize(
    ("tile", "mode", "method", "numbers", "spilled"),
    [
        # bytes that were spilled when these were the fastest on an H200
        (TILE, "rms_norm", "kahan", 8192, 48),
        (TILE, "layer_norm", "kahan", 8192, 352),
        (TILE, "softmax", "kahan", 8192, 0),
        (TILE, "layer_norm", "kahan", 16384, 0),
        (TILE, "softmax", "plain", 128, 0),
        (TILE, "layer_norm", "sum2", 1024, 0),
        (TILE, "rms_norm", "kahan", 65536, 0),
        (SMALL_TILE, "layer_norm", "kahan", 8192, 0),
    ],
)
def test_a_norm_compiles_and_stays_in_registers(
    tile: NormalizeConfig, mode: Mode, method: str, numbers: int, spilled: int
) -> None:
    built = normalized(tile, mode, method, numbers)
    assert built.shared_bytes <= SMALLEST
    assert built.stack_bytes <= spilled, "spills"
    loads = re.findall(r"ld\.global\S*", built.ptx)
    assert any(".v4" in load for load in loads)

"""Every row of the NVIDIA tile table for matrix products, to machine code, with no GPU."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest
import torch
from compile_only import SHARED_BYTES, Compiled, compile_only, newest_capability

from flashasc._configs import GemmTile
from flashasc._configs.gemm_nvidia import TILES
from flashasc._gemm_problem import GemmProblem
from flashasc.kernels.gemm_launch import Specialised, kernel_signature, stages
from tests.conftest import ROOT


def compile_row(
    row: GemmTile, capability: int, product: Any, *, ragged: bool, parts: bool, **end: Any
) -> list[Compiled]:
    """The kernels of a call for aligned operands, b column by column."""
    odd = int(ragged)
    K = (2 * row.part_k if parts else 4 * row.block_k) + odd
    problem = GemmProblem(
        (3,), 4 * row.block_m + odd, 4 * row.block_n + odd, K, row.dtype, row.dtype,
        torch.device("meta"), row.compensated, product, **end,
    )  # fmt: skip
    built = []
    for kernel, constants in stages(problem, row, Specialised(b_by_columns=True)):
        signature = kernel_signature(kernel, problem)
        given = {
            "bias_ptr": constants["BIAS"],
            "residual_ptr": constants["RESIDUAL"],
            "acc_ptr": parts,
            "comp_ptr": parts and row.compensated,
        }
        fixed: dict[str, Any] = dict.fromkeys(("stride_ak", "stride_bk", "stride_on"), 1)
        fixed |= {name: None for name, there in given.items() if not there}
        constants |= {name: value for name, value in fixed.items() if name in signature}
        runtime = {name: kind for name, kind in signature.items() if name not in constants}
        aligned = [name for name in runtime if name.startswith("stride_") or name.endswith("_ptr")]
        built.append(
            compile_only(
                kernel, runtime, constants, capability, divisible_by_16=aligned,
                **row.compiler_options(),
            )
        )  # fmt: skip
    return built


def name_of(row: GemmTile) -> str:
    method = "compensated" if row.compensated else "plain"
    return f"{row.targets[0]}-{str(row.dtype).removeprefix('torch.')}-{row.products[0]}-{method}"


def known(row: GemmTile) -> list[int]:
    """Capabilities that a row names and the installed Triton knows."""
    return [c for c in (int(arch[3:]) for arch in row.targets) if c <= newest_capability()]


# rows of fp16 are those of bf16
ROWS = [row for row in TILES if row.dtype != torch.float16]


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_row_compiles_fits_and_spills_nothing(row: GemmTile) -> None:
    capability = 90 if 90 in known(row) else 80
    # Triton 3.2 has no splits of its own either: ours go through on every version
    (built,) = compile_row(row, capability, row.products[-1], ragged=False, parts=False)
    assert built.shared_bytes <= min(SHARED_BYTES[int(arch[3:])] for arch in row.targets)
    # what Triton 3.2 makes of it is not tuned for
    assert built.stack_bytes == 0 or newest_capability() == 90
    assert ("tf32" in built.ptx) == (row.products[-1] == "tf32x3")


@pytest.mark.parametrize("row", ROWS[:2], ids=name_of)
def test_parts_and_their_sum_compile(row: GemmTile) -> None:
    end = {"activation": "gelu_tanh", "has_bias": True, "has_residual": True}
    for built in compile_row(row, known(row)[0], "ieee", ragged=True, parts=True, **end):
        assert built.cubin


def test_tensor_cores_work_while_segments_are_summed() -> None:
    """The wait for all products stands in the branch that ends a segment, not in each iteration."""
    row = next(r for r in TILES if r.compensated and r.dtype == torch.bfloat16)
    if newest_capability() == 90:
        pytest.skip("Triton 3.2 waits")
    (built,) = compile_row(row, 90, "ieee", ragged=False, parts=False)
    assert re.search(r"wgmma\.wait_group\.sync\.aligned\s+1;", built.ptx)


@pytest.mark.parametrize("method", ["plain", "kahan"])
def test_the_example_compiles(method: str) -> None:
    """It leaves what it need not choose to the blocks' defaults."""
    kernel = runpy.run_path(str(ROOT / "examples" / "gemm.py"))["gemm_kernel"]
    constants = {"METHOD": method, "BLOCK": 32}
    signature = {
        name: "*fp32" if name.endswith("_ptr") else "i32"
        for name in kernel.arg_names
        if name not in constants
    }
    assert compile_only(kernel, signature, constants, 90, enable_fp_fusion=False).cubin

"""Every row of the Ascend tile table for matrix products, through the compiler."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import pytest
import torch

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import A2, TARGETS
from torch import Tensor

from flashasc._configs import GemmTile, choose_gemm
from flashasc._configs.gemm_ascend import TILES
from flashasc._gemm_problem import GemmProblem, gemm_problem
from flashasc._target import Target
from flashasc.kernels import gemm_launch
from flashasc.workbench import check, shipped_cases
from flashasc.workbench.shipped_gemm import GemmUse, gemm_cases, gemm_uses


def one_use_each() -> list[Any]:
    """Each row in one use, with one product, on one processor, in turn.

    `python -m flashasc ascend check --uses` is all.
    """
    chosen = []
    for number, row in enumerate(TILES):
        # rows of both 16-bit dtypes are alike: each in half of the uses
        use = gemm_uses(row)[number % len(gemm_uses(row))]
        product = row.products[number % len(row.products)]
        arch = row.targets[number % len(row.targets)]
        name = f"{arch}-{str(row.dtype)[6:]}-{product}-{row.compensated}-{use}"
        chosen.append(pytest.param(row, product, use, arch, id=name))
    return chosen


@pytest.mark.parametrize("row, product, use, arch", one_use_each())
def test_a_row_compiles_for_a_processor_it_names(
    row: GemmTile, product: Any, use: GemmUse, arch: str
) -> None:
    for verdict in check(gemm_cases(row, product, use, arch)):
        assert verdict.ok, f"{verdict.case.name}: {verdict.explanation()}"


def test_a_row_that_is_too_large_does_not_pass() -> None:
    row = next(row for row in TILES if row.compensated)
    too_large = dataclasses.replace(row, block_m=256, block_n=256)
    (verdict,) = check(gemm_cases(too_large, "ieee", GemmUse(), A2))
    assert verdict.verdict.startswith("overflows")


def test_every_row_is_among_what_is_shipped() -> None:
    listed = {(case.arch, case.name) for case in shipped_cases(TARGETS)}
    for row in TILES:
        for arch in row.targets:
            for product in row.products:
                for use in gemm_uses(row):
                    names = {(arch, case.name) for case in gemm_cases(row, product, use, arch)}
                    assert names <= listed


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_product_has_a_row(dtype: torch.dtype, arch: str) -> None:
    products = ("ieee", "hf32", "bf16x3", "bf16x6", "fp16x3", "fp16x6")
    for product in products if dtype == torch.float32 else ("ieee",):
        for compensated in (False, True):
            for bias in (False, True):
                problem = GemmProblem(
                    (), 5, 5, 5, dtype, dtype, torch.device("cpu"), compensated, product,
                    has_bias=bias,
                )  # fmt: skip
                row = choose_gemm(problem, Target("ascend", arch, 20))
                assert (row.dtype, row.compensated) == (dtype, compensated)
                assert product in row.products and not (row.bare and bias)


def tensors(row: GemmTile, use: GemmUse) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Operands of such a call: rows of a multiple of 16 numbers, and a gap behind each matrix."""
    odd = int(use.ragged)
    M, N = 4 * row.block_m + odd, 4 * row.block_n + odd
    K = (2 * row.part_k if use.parts else 4 * row.block_k) + odd

    def matrix(rows: int, columns: int, transposed: bool) -> Tensor:
        if transposed:
            return matrix(columns, rows, False).mT
        step = 2**33 if use.wide else -(-columns // 16) * 16
        strides = ((2**50 if use.wide else rows * step + 16), step, 1)
        return torch.empty_strided((4, rows, columns), strides, dtype=row.dtype, device="meta")

    bias = torch.empty(N, dtype=row.dtype, device="meta") if use.bias else None
    residual = matrix(M, N, False) if use.residual else None
    return matrix(M, K, use.transposed), matrix(K, N, use.transposed), bias, residual


@pytest.mark.parametrize("use", range(5))
@pytest.mark.parametrize("number", [0, 2], ids=["plain", "compensated"])
def test_cases_are_what_a_call_specialises(monkeypatch, number: int, use: int) -> None:
    """The rules of the JIT, applied to what a real launch passes, give the specialisation."""
    row = TILES[number]
    kind = gemm_uses(row)[use % len(gemm_uses(row))]
    caught: list[tuple[Any, dict[str, Any], dict[str, Any]]] = []
    monkeypatch.setattr(
        gemm_launch,
        "launch",
        lambda kernel, programs, args, constants, **_: caught.append((kernel, args, constants)),
    )
    a, b, bias, residual = tensors(row, kind)
    out_dtype = torch.float32 if kind.fp32_out else row.dtype
    problem = gemm_problem(
        a, b, bias, residual, kind.activation, row.compensated, "ieee", out_dtype
    )
    out = torch.empty(problem.shape, dtype=out_dtype, device="meta")
    gemm_launch.launch_gemm(
        a, b, bias, residual, out, problem, row, Target("ascend", A2, 20), "device"
    )
    cases = gemm_cases(row, "ieee", kind, A2)
    assert [case.kernel for case in cases] == [kernel for kernel, _, _ in caught]
    for case, (_, args, constants) in zip(cases, caught, strict=True):
        plain = {p.name for p in case.kernel.params if p.do_not_specialize}
        fixed = {
            name: value
            for name, value in args.items()
            if value is None or (isinstance(value, int) and value == 1 and name not in plain)
        }
        assert dict(case.constants) == constants | fixed
        free = {name: value for name, value in args.items() if name not in fixed}
        assert {name: case.signature[name] for name in free} == {
            name: triton_type(value) for name, value in free.items()
        }
        assert set(case.divisible_by_16) == {
            name
            for name, value in free.items()
            if name not in plain and (isinstance(value, Tensor) or value % 16 == 0)
        }


def triton_type(value: Any) -> str:
    if isinstance(value, Tensor):
        return {torch.float16: "*fp16", torch.float32: "*fp32"}[value.dtype]
    return "i32" if -(2**31) <= value < 2**31 else "i64"

"""The matrix-product kernels that the package ships for Ascend: tile configuration x use."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashasc._configs import GemmTile
from flashasc._configs.ascend import SAME_MEMORIES
from flashasc._configs.gemm_ascend import TILES
from flashasc._gemm_problem import Activation, GemmProblem, Product
from flashasc.ascend.frontend import _import_backend
from flashasc.workbench.case import Case


@dataclass(frozen=True)
class GemmUse:
    """One way a row of the tile table may be used, as the launcher would specialise the kernels.

    Attributes:
        ragged: M, N and K are no multiples of the tile.
        activation, bias, residual: the end of `flashasc.ops.linear`.
        fp32_out: 16-bit operands, float32 result.
        transposed: both factors lie column by column.
        wide: strides that need 64 bits.
        parts: K is so long that it is cut in parts.
    """

    ragged: bool = True
    activation: Activation | None = None
    bias: bool = False
    residual: bool = False
    fp32_out: bool = False
    transposed: bool = False
    wide: bool = False
    parts: bool = False

    def __str__(self) -> str:
        switches = ("bias", "residual", "fp32_out", "transposed", "wide", "parts")
        words = ["ragged" if self.ragged else "whole tiles"]
        words += [self.activation] if self.activation else []
        return " ".join([*words, *filter(self.__getattribute__, switches)])


_BARE_USES = (
    GemmUse(),
    GemmUse(ragged=False),
    GemmUse(transposed=True, wide=True, fp32_out=True),
    GemmUse(ragged=False, parts=True),
)
_FINISHED_USES = (
    GemmUse(activation="gelu_tanh", bias=True, residual=True),
    GemmUse(ragged=False, activation="gelu", bias=True, transposed=True),
    GemmUse(activation="silu", residual=True, fp32_out=True, wide=True),
    GemmUse(activation="relu", bias=True, residual=True, transposed=True, wide=True),
    GemmUse(activation="gelu_tanh", bias=True, residual=True, fp32_out=True, parts=True),
)


def gemm_uses(row: GemmTile) -> tuple[GemmUse, ...]:
    """How a row is used; what needs most room comes first."""
    if row.bare:
        return _BARE_USES
    # a row for plain sums alone leaves those to the bare one
    return _FINISHED_USES if not row.compensated else (*_FINISHED_USES, *_BARE_USES)


def gemm_cases(row: GemmTile, product: Product, use: GemmUse, arch: str) -> list[Case]:
    """The kernels of a call of this kind as it specialises them on a processor.

    Raises:
        ToolchainError: triton-ascend is not installed.
    """
    # the kernels import triton: without the right one, say what to install
    _import_backend()
    from flashasc.kernels.gemm_launch import Specialised, kernel_signature, stages

    problem = _problem(row, product, use)
    special = Specialised(wide=use.wide, a_by_columns=use.transposed, b_by_columns=use.transposed)
    dtype = str(row.dtype).removeprefix("torch.")
    method = "compensated" if row.compensated else "standard"
    found = []
    for kernel, constants in stages(problem, row, special):
        signature = kernel_signature(kernel, problem)
        # the JIT makes constants of integers equal to 1; what is not there has strides of 0
        ones = {"stride_am", "stride_bk"} if use.transposed else {"stride_ak", "stride_bn"}
        ones |= {"stride_on"} | ({"stride_rn"} if constants["RESIDUAL"] else set())
        ones |= {"stride_bias_n"} if constants["BIAS"] else set()
        absent = {
            "bias_ptr": not constants["BIAS"],
            "residual_ptr": not constants["RESIDUAL"],
            "acc_ptr": not use.parts,
            "comp_ptr": not (use.parts and row.compensated),
        }
        fixed = dict.fromkeys(ones, 1) | {name: None for name, gone in absent.items() if gone}
        constants = constants | {n: v for n, v in fixed.items() if n in signature}
        # rows of a multiple of 16 numbers, but for the result, which is contiguous
        far = ["a1", "am", "ak", "b1", "bk", "bn"] + ["r1", "rm"] * use.residual
        if use.wide:
            signature |= {f"stride_{name}": "i64" for name in far if f"stride_{name}" in signature}
        aligned = [n for n in signature if n.startswith("stride_") or n.endswith("_ptr")]
        if use.ragged:
            aligned = [name for name in aligned if name not in ("stride_om", "stride_o1")]
        stage = "product" if "BLOCK_K" in constants else "sum of a product's parts"
        shape = [constants[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K") if name in constants]
        tile = "x".join(map(str, shape))
        found.append(
            Case(
                name=f"{stage} {dtype} {product} {method} {tile}, {use}",
                arch=arch,
                kernel=kernel,
                signature=signature,
                constants=constants,
                divisible_by_16=tuple(name for name in aligned if name not in constants),
                facts={
                    "operation": stage,
                    "dtype": dtype,
                    "precision": method,
                    "product": product,
                    "block_m": shape[0],
                    "block_n": shape[1],
                    "use": str(use),
                },
            )
        )
    return found


def gemm_rows_of(arch: str, generation: str) -> list[GemmTile]:
    """Rows of the tile table that serve a processor, or else its generation's first processor."""
    named = {name for row in TILES for name in row.targets}
    serving = SAME_MEMORIES.get(arch, arch)
    serving = serving if serving in named else generation
    return [row for row in TILES if serving in row.targets]


def shipped_gemm_cases(
    arch: str, generation: str, *, dtype: torch.dtype | None, precision: str | None, every_use: bool
) -> list[Case]:
    """The kernels of every row that serves a processor.

    Args:
        arch: the processor.
        generation: its generation's first processor, whose rows it gets where none names it.
        dtype, precision: only rows of this dtype and way of summing ("standard", "compensated").
        every_use: each row in all its `gemm_uses`, and with each of its products; otherwise in the
            use that needs most room, with the product that does.
    """
    found: dict[str, Case] = {}
    for row in gemm_rows_of(arch, generation):
        method = "compensated" if row.compensated else "standard"
        if (dtype and row.dtype != dtype) or (precision and method != precision):
            continue
        products = row.products if every_use else row.products[-1:]
        for product in products:
            for use in gemm_uses(row)[: None if every_use else 1]:
                # the second stage is that of other rows too
                found |= {case.name: case for case in gemm_cases(row, product, use, arch)}
    return list(found.values())


def _problem(row: GemmTile, product: Product, use: GemmUse) -> GemmProblem:
    """A call of this kind. Of its sizes only whether they are multiples reaches the compiler."""
    odd = 1 if use.ragged else 0
    return GemmProblem(
        batch=(4,),
        M=4 * row.block_m + odd,
        N=4 * row.block_n + odd,
        K=(2 * row.part_k if use.parts else 4 * row.block_k) + odd,
        dtype=row.dtype,
        out_dtype=torch.float32 if use.fp32_out else row.dtype,
        device=torch.device("meta"),
        compensated=row.compensated,
        product=product,
        activation=use.activation,
        has_bias=use.bias,
        has_residual=use.residual,
    )

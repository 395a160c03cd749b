"""Tile table for matrix products, for every target."""

from __future__ import annotations

import torch

from .._gemm_problem import GemmProblem, Product
from .._target import Target
from .ascend import A2_A3, A5, SAME_MEMORIES
from .gemm_tile import GemmTile

_COMPILED = "compiles with bishengir-compile 1.2.0 without a retry; no NPU measured"
_NOT_TUNED = "compiles with Triton 3.6.0 for every target; not run, not tuned"
_HALVES = (torch.float16, torch.bfloat16)
_SPLITS: tuple[Product, ...] = ("bf16x3", "bf16x6", "fp16x3", "fp16x6")

# per generation and dtype: compensated, products, (block_m, block_n, block_k), K of a segment.
# Plain sums leave the cube once, and take all of A2's L0C; sum, compensation and segment meet in UB
_ON_A2_A3 = {
    torch.float16: [
        (False, ("ieee",), (128, 256, 64), 64),
        (True, ("ieee",), (64, 128, 128), 512),
    ],
    torch.float32: [
        (False, ("ieee", "hf32"), (128, 256, 64), 64),
        (True, ("ieee", "hf32"), (64, 128, 64), 64),
        (False, _SPLITS, (64, 128, 64), 64),
        (True, _SPLITS, (64, 64, 64), 64),
    ],
}
_ON_ASCEND = {A2_A3: _ON_A2_A3, A5: _ON_A2_A3}

ASCEND = tuple(
    GemmTile(
        targets, dtype, compensated, products, *shape, _COMPILED, segment=segment_k // shape[2]
    )
    for targets, table in _ON_ASCEND.items()
    for dtype in (*_HALVES, torch.float32)
    for compensated, products, shape, segment_k in table[
        torch.float16 if dtype in _HALVES else dtype
    ]
)
"""Tiles for Ascend NPUs, and for what is lowered for them and run natively on a CPU."""

_NVIDIA = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
NVIDIA: tuple[GemmTile, ...] = ()


def choose_gemm(problem: GemmProblem, target: Target) -> GemmTile:
    """The row of the target's table that serves the problem.

    The choice depends on dtype, method and product alone, never on sizes: results are
    batch-invariant.

    Raises:
        NotImplementedError: no row for this target, or none for this product.
    """
    table = {"ascend": ASCEND, "nvidia": NVIDIA}[target.family]
    arch = SAME_MEMORIES.get(target.arch, target.arch)
    rows = [row for row in table if arch in row.targets]
    if not rows:
        known = sorted({arch for row in table for arch in row.targets})
        raise NotImplementedError(
            f"flashasc has no tile table for {target.arch}; it has for {', '.join(known)}. "
            'Use impl="reference", which is plain PyTorch'
        )
    for row in rows:
        if (
            row.dtype == problem.dtype
            and row.compensated == problem.compensated
            and problem.product in row.products
        ):
            return row
    offered = dict.fromkeys(p for row in rows if row.dtype == problem.dtype for p in row.products)
    raise NotImplementedError(
        f'product="{problem.product}" is not one that {target.arch} has; it has '
        + ", ".join(f'"{product}"' for product in offered)
    )

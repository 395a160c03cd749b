"""Which row of the tile tables a matrix product runs with."""

from __future__ import annotations

from .._gemm_problem import GemmProblem
from .._target import Target
from . import gemm_ascend, gemm_nvidia
from .ascend import SAME_MEMORIES
from .gemm_tile import GemmTile


def choose_gemm(problem: GemmProblem, target: Target) -> GemmTile:
    """The first row of the target's table that serves the problem.

    The choice depends on dtype, method, product and what follows the product, never on sizes:
    results are batch-invariant.

    Raises:
        NotImplementedError: no row for this target, or none for this product.
    """
    table = {"ascend": gemm_ascend.TILES, "nvidia": gemm_nvidia.TILES}[target.family]
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
            and not (row.bare and problem.finished)
        ):
            return row
    offered = dict.fromkeys(p for row in rows if row.dtype == problem.dtype for p in row.products)
    raise NotImplementedError(
        f'product="{problem.product}" is not one that {target.arch} has; it has '
        + ", ".join(f'"{product}"' for product in offered)
    )

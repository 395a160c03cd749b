"""Tile tables: which shapes and schedule a kernel runs with, and the constraints they meet."""

from __future__ import annotations

from .._problem import AttentionProblem
from .._target import Target
from . import ascend, nvidia
from .gemm import choose_gemm
from .gemm_tile import GemmTile
from .split import rows_of_a_tile, within_pages
from .tile import TileConfig

__all__ = [
    "GemmTile",
    "TileConfig",
    "choose",
    "choose_gemm",
    "choose_split",
    "fits",
    "rows_of_a_tile",
    "within_pages",
]


def choose(problem: AttentionProblem, target: Target) -> TileConfig:
    """The first row of the target's table that serves the problem.

    The choice depends on dtype, precision, head sizes and options alone, never on the batch or on
    lengths: results are batch-invariant.

    Raises:
        NotImplementedError: no row for this target or head size.
    """
    return _first({"ascend": ascend.TILES, "nvidia": nvidia.TILES}[target.family], problem, target)


def choose_split(problem: AttentionProblem, target: Target) -> TileConfig:
    """The same of the tables for few queries, whose keys are split into chunks.

    Raises:
        NotImplementedError: no row for this target or head size.
    """
    tables = {"ascend": ascend.SPLIT_TILES, "nvidia": nvidia.SPLIT_TILES}
    return _first(tables[target.family], problem, target)


def _first(table: tuple[TileConfig, ...], problem: AttentionProblem, target: Target) -> TileConfig:
    arch = ascend.SAME_MEMORIES.get(target.arch, target.arch)
    rows = [row for row in table if arch in row.targets and row.least_triton <= target.triton]
    if not rows:
        known = sorted({arch for row in table for arch in row.targets})
        raise NotImplementedError(
            f"flashasc has no tile table for {target.arch}; it has for {', '.join(known)}. "
            'Use impl="reference", which is plain PyTorch'
        )
    for row in rows:
        if fits(row, problem):
            return row
    raise NotImplementedError(
        f"head sizes D={problem.D}, Dv={problem.Dv} in {problem.dtype} are not supported by the "
        f"kernels for {target.arch}, which take 1 to {max(row.max_head for row in rows)}; use "
        'impl="reference", which is plain PyTorch'
    )


def fits(row: TileConfig, problem: AttentionProblem) -> bool:
    """Whether a row of the table serves a problem; that it fits the chip is tested by compiling."""
    return (
        row.dtype == problem.dtype
        and row.precision == problem.precision
        and max(problem.D, problem.Dv) <= row.max_head
        and problem.score_options <= row.options
    )

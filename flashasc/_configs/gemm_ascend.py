"""Tiles of matrix products for Ascend NPUs, and for what runs natively on a CPU as lowered for one.

Each row compiles for its targets in every use that `flashasc.workbench.shipped_gemm` lists.
"""

from __future__ import annotations

import torch

from .._gemm_problem import Product
from .ascend import A2_A3, A5
from .gemm_tile import SPLITS, GemmTile

_SOURCE = "compiles with bishengir-compile 1.2.0 without a retry; no NPU measured"
_HALVES = (torch.float16, torch.bfloat16)
_FULL = (torch.float32,)
_Shape = tuple[int, int, int]


def _rows(
    targets: tuple[str, ...],
    dtypes: tuple[torch.dtype, ...],
    products: tuple[Product, ...],
    *,
    plain: tuple[_Shape, _Shape],
    compensated: _Shape,
    segment_k: int,
) -> list[GemmTile]:
    """Rows of plain and of compensated sums.

    Args:
        targets, dtypes, products: what they serve.
        plain: tile of plain sums that leave the cube's memory as they are, and of those that a
            bias, activation or residual meets in UB, where there is less room.
        compensated: tile of compensated sums: sum, compensation and segment meet in UB.
        segment_k: length of a segment of these.
    """
    kinds = ((plain[0], False, True), (plain[1], False, False), (compensated, True, False))
    return [
        GemmTile(
            targets, dtype, method, products, *shape, _SOURCE,
            bare=bare, segment=segment_k // shape[2] if method else 1,
        )
        for dtype in dtypes
        for shape, method, bare in kinds
    ]  # fmt: skip


# Segments of 64 in float32: longer ones show in the error of a short sum, see
# bench/results/gemm_accuracy.json; results of 16 bits show none of it.
_BARE = (128, 256, 64)
TILES = (
    *_rows(
        A2_A3, _HALVES, ("ieee",),
        plain=(_BARE, (64, 128, 64)), compensated=(64, 128, 128), segment_k=512,
    ),
    *_rows(
        A2_A3, _FULL, ("ieee", "hf32"),
        plain=(_BARE, (64, 128, 64)), compensated=(64, 128, 64), segment_k=64,
    ),
    *_rows(
        A5, _HALVES, ("ieee",),
        plain=(_BARE, (128, 128, 64)), compensated=(64, 128, 128), segment_k=512,
    ),
    *_rows(
        A5, _FULL, ("ieee", "hf32"),
        plain=(_BARE, (128, 128, 64)), compensated=(64, 128, 64), segment_k=64,
    ),
    # factors are split in UB
    *_rows(
        A2_A3 + A5, _FULL, SPLITS,
        plain=((64, 64, 32), (64, 64, 32)), compensated=(64, 64, 32), segment_k=64,
    ),
)  # fmt: skip

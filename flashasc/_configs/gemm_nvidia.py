"""Tiles of matrix products for NVIDIA GPUs, upstream Triton.

`python -m bench.gemm_speed --tune` times candidates; rows that come from it say so.
"""

from __future__ import annotations

import torch

from .._gemm_problem import Product
from .gemm_tile import SPLITS, GemmTile

_SOURCE = "compiles with Triton 3.6.0 for every target, nothing spilled on sm_90; not tuned"
_H200 = (
    "bench.gemm_speed --tune on an H200, 2026-11-30, PyTorch 2.11.0, Triton 3.6.0, bf16 8192**3: "
    "{0} TFLOP/s, the fastest of {1}; cuBLAS {2} in the same run"
)
_HALVES = (torch.float16, torch.bfloat16)
_FULL = (torch.float32,)
# shared memory of a block: 227 KiB, and 99 KiB in the smallest member of the other generations
_LARGE = ("sm_90", "sm_100")
_SMALL = ("sm_80", "sm_86", "sm_89", "sm_120")


def _rows(
    targets: tuple[str, ...],
    dtypes: tuple[torch.dtype, ...],
    products: tuple[Product, ...],
    compensated: bool,
    shape: tuple[int, int, int],
    num_warps: int,
    num_stages: int,
    segment_k: int = 0,
    *,
    group: int = 8,
    source: str = _SOURCE,
) -> list[GemmTile]:
    """Rows of one tile, for several dtypes; segment_k is the length of a compensated segment."""
    return [
        GemmTile(
            targets, dtype, compensated, products, *shape, source,
            segment=segment_k // shape[2] if compensated else 1, branch=True, core_loop=False,
            group=group, merge_m=32, num_warps=num_warps, num_stages=num_stages,
        )
        for dtype in dtypes
    ]  # fmt: skip


# A compensated tile has two accumulators in registers: half the size. Tensor cores truncate as they
# add: a segment of 2048 loses more than a float32 result may (tests/ops/test_ops_gemm_accuracy.py).
# A group is as high, in elements, as what runs beside it at once is wide: few factors then pass
# through the cache.
TILES = (
    *_rows(
        _LARGE, _HALVES, ("ieee",), False, (128, 256, 64), 8, 3,
        group=16, source=_H200.format(654, "14 candidates", 751),
    ),
    *_rows(
        _LARGE, _HALVES, ("ieee",), True, (128, 128, 64), 8, 5, 1024,
        source=_H200.format(548, "30 candidates with segments of at most 1024", 751),
    ),
    *_rows(_SMALL, _HALVES, ("ieee",), False, (128, 128, 32), 8, 4),
    *_rows(_SMALL, _HALVES, ("ieee",), True, (128, 64, 32), 8, 4, 512),
    *_rows(_LARGE + _SMALL, _FULL, ("ieee",), False, (128, 128, 16), 8, 3),
    *_rows(_LARGE + _SMALL, _FULL, ("ieee",), True, (128, 64, 16), 8, 3, 64),
    *_rows(_LARGE + _SMALL, _FULL, ("tf32", "tf32x3"), False, (128, 128, 32), 8, 3),
    *_rows(_LARGE + _SMALL, _FULL, ("tf32", "tf32x3"), True, (128, 64, 32), 8, 3, 64),
    *_rows(_LARGE + _SMALL, _FULL, SPLITS, False, (128, 64, 32), 8, 2),
    *_rows(_LARGE + _SMALL, _FULL, SPLITS, True, (64, 64, 32), 8, 2, 64),
)  # fmt: skip

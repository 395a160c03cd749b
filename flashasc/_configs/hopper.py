"""Tiles for Hopper (sm_90), upstream Triton: up to the 227 KiB of shared memory of its members."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch

from .._problem import Precision
from .tile import SCORE_OPTIONS, TileConfig

_TUNED = "fastest of `python -m bench.tune` on an H200, Triton 3.6.0: bench/results/notes.md"
_LIKE_BF16 = "as for bfloat16, which was tuned; compiles with Triton 3.6.0, not timed"


@dataclass(frozen=True)
class _Shape:
    """A tile, and how it is computed."""

    block_m: int
    block_n: int
    num_stages: int
    num_warps: int = 8
    segment: int = 1
    max_registers: int | None = None


# with at most 128 registers a thread, two programs share a multiprocessor: one multiplies while
# the other computes weights
_SHAPES: dict[tuple[Precision, int], _Shape] = {
    ("standard", 64): _Shape(128, 64, 3, max_registers=128),
    ("standard", 128): _Shape(128, 64, 2, num_warps=4),
    ("standard", 256): _Shape(128, 64, 2),
    ("compensated", 64): _Shape(128, 64, 3, segment=16, max_registers=128),
    ("compensated", 128): _Shape(128, 128, 2, segment=8),
    ("compensated", 256): _Shape(128, 64, 2, segment=16),
    ("high", 64): _Shape(128, 128, 3, segment=8),
    ("high", 128): _Shape(128, 128, 2, segment=8),
    ("high", 256): _Shape(128, 64, 2, segment=16),
}


def _row(dtype: torch.dtype, precision: Precision, max_head: int, shape: _Shape) -> TileConfig:
    return TileConfig(
        targets=("sm_90",),
        dtype=dtype,
        precision=precision,
        max_head=max_head,
        block_m=shape.block_m,
        block_n=shape.block_n,
        source=_TUNED if dtype == torch.bfloat16 else _LIKE_BF16,
        # tiles of a mask or a bias leave no room: `nvidia` has rows for them
        options=SCORE_OPTIONS - {"mask", "bias"},
        # see `nvidia`
        least_values=64,
        segment=shape.segment,
        core_loop=False,
        split_loop=True,
        pairs=precision != "standard",
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        max_registers=shape.max_registers,
        descriptors=True,
    )


TILES = tuple(
    _row(dtype, precision, max_head, shape)
    for dtype, ((precision, max_head), shape) in product(
        (torch.float16, torch.bfloat16), _SHAPES.items()
    )
)

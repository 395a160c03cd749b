"""Tiles for Ascend NPUs, and for what is lowered for them and run natively on a CPU.

The shapes are in `ascend_tiles.py`, which `python -m flashasc ascend tiles` writes: of the tiles
that the open Ascend compiler lays out on chip without a retry, the one with the least estimated
time. What does not depend on a tile's shape is decided here.
"""

from __future__ import annotations

import torch

from .._problem import Precision
from .ascend_tiles import ROWS
from .tile import SCORE_OPTIONS, TileConfig

A2_A3 = ("Ascend910B3", "Ascend910_9392")
A5 = ("Ascend950PR_9589",)

SAME_MEMORIES = {
    "Ascend910B1": "Ascend910B3",
    "Ascend910B2": "Ascend910B3",
    "Ascend910B2C": "Ascend910B3",
    "Ascend910B4": "Ascend910B3",
}
"""Chips that share the on-chip memories, and so the tiles, of one that the table names."""

HEAD_BLOCKS = (16, 32, 64, 80, 96, 128, 192, 256)
"""The compiler takes any multiple of 16: common head sizes are not padded to powers of two."""

OPTION_SETS = {
    "none": frozenset[str](),
    "all": SCORE_OPTIONS,
}
"""Score options that rows have room for: a mask or a cap takes a tile of its own on chip."""

_SEGMENT_KEYS = 1024
"""Keys whose products are summed plainly before the sum is compensated, in 16 bits."""


def row(
    targets: tuple[str, ...],
    dtype: torch.dtype,
    precision: Precision,
    max_head: int,
    options: str,
    block_m: int,
    block_n: int,
    source: str,
) -> TileConfig:
    """A row for an Ascend NPU; what does not depend on the tile's shape is decided here."""
    # float32 weights show every rounding, and its products leave the vector cores time
    plain = precision == "standard" or dtype == torch.float32
    segment = 1 if plain else max(1, _SEGMENT_KEYS // block_n)
    return TileConfig(
        targets=targets,
        dtype=dtype,
        precision=precision,
        max_head=max_head,
        block_m=block_m,
        block_n=block_n,
        source=source,
        options=OPTION_SETS[options],
        head_blocks=HEAD_BLOCKS,
        # bishengir-compile-a5 1.2.0 aborts on values in 16 columns beside a mask
        least_values=64 if targets == A5 and options == "all" else 16,
        segment=segment,
        # the compiler makes an exp2 out of an exp and a multiplication
        natural_exp=dtype != torch.float32 and precision != "high",
    )


TILES = tuple(
    row(
        tile.targets,
        getattr(torch, tile.dtype),
        tile.precision,
        tile.max_head,
        tile.options,
        tile.block_m,
        tile.block_n,
        f"compiles with {tile.compiler}, UB {tile.ub_percent:.0f} % full; estimated "
        f"{tile.estimate_ps:.4g} ps per query row and key of one core; no NPU measured",
    )
    for tile in ROWS
)

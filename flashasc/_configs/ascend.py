"""Tiles for Ascend NPUs, and for what is lowered for them and run natively on a CPU.

The shapes are in `ascend_tiles.py`, which `python -m flashasc ascend tiles` writes: of the tiles
that the open Ascend compiler lays out on chip without a retry, the one with the least estimated
time. What does not depend on a tile's shape is decided here.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

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


def launch_options(arch: str) -> dict[str, bool]:
    """Options that a launch on an NPU names, whatever the installed triton-ascend defaults to.

    Two buffers for what a loop loads fill the memory on chip. The tiles here were compiled with
    them on A2 and A3 and without on A5, which is what triton-ascend 3.2.0 does unasked, once built
    for the chip; other versions and builds do otherwise.
    """
    return {"multibuffer": arch not in A5}


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


_SPLIT_CHUNK = 2048
"""Keys of a chunk: a sequence of 32K keys and 2 key heads has one for each core."""

# the two compilers that the rows of `ascend_tiles.py` name
_COMPILERS = {target: tile.compiler for tile in ROWS for target in tile.targets}

# max_head: keys of a tile, without and with score options
_SPLIT_16_BIT = {128: (256, 128), 256: (128, 64)}
_SPLIT_32_BIT = {128: (128, 64), 256: (64, 32)}


def _split_row(
    options: str,
    targets: tuple[str, ...],
    dtype: torch.dtype,
    precision: Precision,
    max_head: int,
) -> TileConfig:
    widths = _SPLIT_32_BIT if dtype == torch.float32 else _SPLIT_16_BIT
    block_n = widths[max_head][options == "all"]
    source = (
        f"compiles with {_COMPILERS[targets[0]]}; the tile is not searched for; no NPU measured"
    )
    # the cube's rows: heads that share keys, or queries, fill them
    found = row(targets, dtype, precision, max_head, options, 16, block_n, source)
    return replace(
        found,
        chunk=_SPLIT_CHUNK,
        # the states of 16 rows and 256 columns, twice, and their sum overflow the UB
        merge_columns=128,
        options=found.options - {"mask", "bias"},
        # bishengir-compile-a5 1.2.0 aborts on tiles of 16 keys in 16 bits
        least_page=32 if targets == A5 and dtype != torch.float32 else 16,
    )


SPLIT_TILES = tuple(
    _split_row(options, targets, dtype, precision, max_head)
    for options, targets, dtype, precision, max_head in product(
        ("none", "all"),
        (A2_A3, A5),
        (torch.float16, torch.bfloat16, torch.float32),
        get_args(Precision),
        (128, 256),
    )
    if not (precision == "high" and dtype == torch.float32)
)
"""For few queries and many keys: see `flashasc.kernels.attention_split`."""


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

"""Tiles for Ascend NPUs, and for what is lowered for them and run natively on a CPU.

Chosen as the largest tile that the open Ascend compiler lays out on chip in every variant (causal
or not, with or without log-sum-exp, head sizes at and below the row's limit) without falling back
to a retry. Wide tiles of keys spread the vector work of a rescale and a compensation thinner.
"""

from __future__ import annotations

import torch

from .._problem import Precision
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

_SOURCE = "compiles with ascendnpu-ir 1.2.0, laid out without a retry; no NPU measured"

HEAD_BLOCKS = (16, 32, 64, 80, 96, 128, 192, 256)
"""The compiler takes any multiple of 16: common head sizes are not padded to powers of two."""

OPTION_SETS = {
    "none": frozenset[str](),
    "reach": frozenset({"window", "bias", "alibi"}),
    "all": SCORE_OPTIONS,
}
"""Score options that rows have room for: a mask or a cap takes a tile of its own on chip."""

_SEGMENT_KEYS = 1024


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
        segment=1 if precision == "standard" else max(1, _SEGMENT_KEYS // block_n),
        # the compiler makes an exp2 out of an exp and a multiplication
        natural_exp=dtype != torch.float32 and precision != "high",
    )


_16_BIT = (torch.float16, torch.bfloat16)
_32_BIT = (torch.float32,)

# targets, dtypes, precision, {max_head: (block_m, block_n)}
_SHAPES: tuple[
    tuple[tuple[str, ...], tuple[torch.dtype, ...], Precision, dict[int, tuple[int, int]]], ...
] = (
    (A2_A3, _16_BIT, "standard", {64: (64, 256), 128: (64, 256), 256: (64, 128)}),
    (A2_A3, _16_BIT, "compensated", {64: (64, 256), 128: (64, 256), 256: (32, 128)}),
    (A2_A3, _32_BIT, "standard", {64: (64, 256), 128: (64, 256), 256: (64, 128)}),
    (A2_A3, _32_BIT, "compensated", {64: (64, 256), 128: (64, 256), 256: (32, 128)}),
    (A2_A3, _16_BIT, "high", {64: (64, 128), 128: (64, 128), 256: (32, 64)}),
    (A5, _16_BIT, "high", {64: (64, 128), 128: (64, 64), 256: (32, 64)}),
    (A5, _16_BIT, "standard", {64: (64, 256), 128: (64, 256), 256: (64, 128)}),
    (A5, _16_BIT, "compensated", {64: (64, 128), 128: (64, 128), 256: (32, 128)}),
    (A5, _32_BIT, "standard", {64: (64, 256), 128: (64, 256), 256: (64, 64)}),
    (A5, _32_BIT, "compensated", {64: (64, 256), 128: (64, 128), 256: (32, 64)}),
)

TILES = tuple(
    row(targets, dtype, precision, max_head, options, block_m, block_n // shrink, _SOURCE)
    for options, shrink in (("none", 1), ("reach", 2), ("all", 4))
    for targets, dtypes, precision, shapes in _SHAPES
    for dtype in dtypes
    for max_head, (block_m, block_n) in shapes.items()
)

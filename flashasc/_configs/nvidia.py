"""Tiles for NVIDIA GPUs, upstream Triton.

But for Hopper's own, shared memory is kept under 99 KiB, the most that the smaller members of each
generation have.
"""

from __future__ import annotations

from itertools import product
from typing import get_args

import torch

from .._problem import Precision
from . import hopper
from .tile import SCORE_OPTIONS, TileConfig

_TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_SOURCE = "compiles with Triton 3.6.0 for every target; runs on an H200 (sm_90); not tuned"

# max_head: (block_m, block_n, num_warps, num_stages)
_SHAPES_16_BIT = {64: (128, 64, 4, 3), 128: (128, 64, 8, 2), 256: (64, 32, 8, 2)}
_SHAPES_32_BIT = {64: (64, 64, 8, 2), 128: (64, 32, 8, 2), 256: (32, 16, 8, 2)}


ORDER_SEQUENCES, ORDER_TOKENS = 64, 64
"""Of a program of `flashasc.kernels.packed_order`; not tuned."""

# a mask and a bias are tiles that would be loaded ahead too
_LOADED = frozenset({"mask", "bias"})


def _row(
    options: frozenset[str], dtype: torch.dtype, precision: Precision, max_head: int
) -> TileConfig:
    shapes = _SHAPES_32_BIT if dtype == torch.float32 else _SHAPES_16_BIT
    block_m, block_n, num_warps, num_stages = shapes[max_head]
    # nor is there room for a second stage beside the low parts of the weights
    if options & _LOADED or (precision == "high" and max_head == 256):
        num_stages = 1
    if precision == "high" and max_head == 256:
        # and with Triton 3.2 not for 64 rows in the 99 KiB of sm_86, sm_89 and sm_120
        block_m = 32
    return TileConfig(
        targets=_TARGETS,
        dtype=dtype,
        precision=precision,
        max_head=max_head,
        block_m=block_m,
        block_n=block_n,
        source=_SOURCE,
        options=options,
        # Triton 3.6.0 on an H200: values in a narrower tile than the keys come out wrong, or are
        # read out of bounds, where their address is not known to be a multiple of 16
        least_values=16 if dtype == torch.float32 else 64,
        # half the registers, and it only has to carry the bits below the accumulator's last
        comp_dtype=torch.bfloat16,
        core_loop=False,
        split_loop=True,
        num_warps=num_warps,
        num_stages=num_stages,
    )


# max_head: (block_n, num_warps, num_stages)
_SPLIT_16_BIT = {64: (64, 4, 4), 128: (64, 4, 3), 256: (32, 4, 3)}
_SPLIT_32_BIT = {64: (64, 4, 3), 128: (32, 4, 3), 256: (16, 4, 3)}

_SPLIT_SOURCE = (
    "compiles with Triton 3.6.0 for sm_90; bfloat16, D=128, on an H200: of 36 candidates within 4 "
    "% of the best for 8 and 32 sequences of 32K keys, 13 % for one of 128K "
    "(python -m bench.decode --tune)"
)


def _split_row(dtype: torch.dtype, precision: Precision, max_head: int) -> TileConfig:
    wide = dtype == torch.float32
    block_n, num_warps, num_stages = (_SPLIT_32_BIT if wide else _SPLIT_16_BIT)[max_head]
    return TileConfig(
        targets=_TARGETS,
        dtype=dtype,
        precision=precision,
        max_head=max_head,
        # the least that a product takes: heads that share keys, or queries, fill it
        block_m=16,
        block_n=block_n,
        source=_SPLIT_SOURCE,
        options=SCORE_OPTIONS - _LOADED,
        least_values=16 if wide else 64,
        comp_dtype=torch.bfloat16,
        core_loop=False,
        split_loop=True,
        num_warps=num_warps,
        num_stages=num_stages,
        # enough programs for 132 multiprocessors from one sequence of 32K keys and 8 key heads,
        # and states of 1 % of the bytes of the keys
        chunk=512 if wide else 1024,
        merge_columns=32,
    )


SPLIT_TILES = tuple(
    _split_row(dtype, precision, max_head)
    for dtype, precision, max_head in product(
        (torch.float16, torch.bfloat16, torch.float32), get_args(Precision), (64, 128, 256)
    )
    if not (precision == "high" and dtype == torch.float32)
)
"""For few queries and many keys: see `flashasc.kernels.attention_split`."""


TILES = hopper.TILES + tuple(
    _row(options, dtype, precision, max_head)
    for options, dtype, precision, max_head in product(
        (SCORE_OPTIONS - _LOADED, SCORE_OPTIONS),
        (torch.float16, torch.bfloat16, torch.float32),
        get_args(Precision),
        (64, 128, 256),
    )
    if not (precision == "high" and dtype == torch.float32)
)

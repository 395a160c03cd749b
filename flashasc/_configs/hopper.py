"""Tiles for Hopper (sm_90), upstream Triton: up to the 227 KiB of shared memory of its members."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from .._problem import Precision
from .tile import SCORE_OPTIONS, TileConfig

_MEASURED = (
    "the fastest of the candidates of `python -m bench.tune` on an H200, Triton 3.6.0, 8 192 keys: "
    "{} TFLOP/s causal, {} full"
)
_TAKEN_OVER = "the row for bfloat16, which was measured; compiles with Triton 3.6.0, not timed"

# the only one that the rows were compiled with; 3.2 has no descriptors
_LEAST_TRITON = (3, 6)


@dataclass(frozen=True)
class _Shape:
    """A tile, and how it is computed."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    causal: int
    """TFLOP/s, where it was measured; of products that causal attention needs."""
    full: int
    """The same without a mask."""
    segment: int = 1
    max_registers: int | None = None
    settle: bool = False
    described_edges: bool = True


# of the 50 MB that an H200's L2 cache has; not tuned
_CACHED_BYTES = 32 << 20

# up to D=128 two programs or more share a multiprocessor, within the registers that it has: one
# multiplies while another computes weights
_BFLOAT16: dict[tuple[Precision, int], _Shape] = {
    ("standard", 64): _Shape(64, 128, 4, 2, 403, 443, max_registers=168),
    ("standard", 128): _Shape(128, 64, 8, 2, 507, 536, max_registers=128, settle=True),
    ("standard", 256): _Shape(128, 64, 8, 2, 488, 529, described_edges=False),
    ("compensated", 64): _Shape(64, 128, 4, 2, 362, 403, segment=8, max_registers=168),
    ("compensated", 128): _Shape(64, 64, 4, 2, 394, 432, segment=16),
    ("compensated", 256): _Shape(128, 64, 8, 2, 358, 357, segment=16),
    ("high", 64): _Shape(64, 128, 4, 2, 265, 291, segment=8, max_registers=168),
    ("high", 128): _Shape(64, 64, 4, 2, 304, 324, segment=16),
    ("high", 256): _Shape(128, 64, 8, 2, 149, 152, segment=16),
}
# measured for float16 itself; its other rows are bfloat16's, but for the segments: a tensor core
# truncates as it adds, and float16 outputs show what 1024 keys add up to (99.0 % correctly rounded
# of 4 096 positive values, where 256 keys are to leave 99.6 %)
_FLOAT16: dict[tuple[Precision, int], _Shape] = {
    ("standard", 128): _Shape(128, 64, 8, 2, 481, 503, max_registers=128, settle=True),
}
_FLOAT16_SEGMENT_KEYS = 256


def _row(
    dtype: torch.dtype, precision: Precision, max_head: int, shape: _Shape, *, measured: bool
) -> TileConfig:
    return TileConfig(
        targets=("sm_90",),
        dtype=dtype,
        precision=precision,
        max_head=max_head,
        block_m=shape.block_m,
        block_n=shape.block_n,
        source=_MEASURED.format(shape.causal, shape.full) if measured else _TAKEN_OVER,
        # tiles of a mask or a bias leave no room: `nvidia` has rows for them
        options=SCORE_OPTIONS - {"mask", "bias"},
        # see `nvidia`
        least_values=64,
        segment=shape.segment,
        core_loop=False,
        cached_bytes=_CACHED_BYTES,
        split_loop=True,
        pairs=precision != "standard",
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        max_registers=shape.max_registers,
        settle=shape.settle,
        repair=precision == "high",
        descriptors=True,
        described_edges=shape.described_edges,
        least_triton=_LEAST_TRITON,
    )


def _float16(precision: Precision, max_head: int, shape: _Shape) -> _Shape:
    if (precision, max_head) in _FLOAT16:
        return _FLOAT16[precision, max_head]
    if precision == "standard":
        return shape
    return replace(shape, segment=_FLOAT16_SEGMENT_KEYS // shape.block_n)


TILES = (
    *(
        _row(torch.bfloat16, precision, max_head, shape, measured=True)
        for (precision, max_head), shape in _BFLOAT16.items()
    ),
    *(
        _row(
            torch.float16, precision, max_head, _float16(precision, max_head, shape),
            measured=(precision, max_head) in _FLOAT16,
        )
        for (precision, max_head), shape in _BFLOAT16.items()
    ),
)  # fmt: skip

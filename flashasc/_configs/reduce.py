"""Tiles of the reductions, for both families of targets, and the constraints they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from .._reductions import Mode
from .._target import Target
from .ascend import A2_A3, A5, SAME_MEMORIES
from .nvidia import _TARGETS as NVIDIA

_ASCEND = A2_A3 + A5


@dataclass(frozen=True)
class ReduceConfig:
    """One row of the table: a tile of rows and numbers of a row, and the schedule.

    The choice depends on how a row lies and on its length alone, never on how many rows there are:
    the bits of a row do not either.
    """

    targets: tuple[str, ...]
    along: bool
    """Serves rows whose numbers lie side by side; else numbers of many rows do."""
    max_length: int | None
    """Longest row served; None: any."""
    block_m: int
    """Rows of a tile."""
    block_n: int
    """Numbers of a row in a tile: as many sums are kept side by side."""
    steps: int
    """Tiles of a row that one program sums."""
    source: str
    """Where the row comes from: what was measured or compiled, and with which version."""
    core_loop: bool = True
    """One program a core, looping over tasks (NPU), instead of one program a task (GPU)."""
    num_warps: int | None = None
    stages: int = 1
    """Tiles that a loop keeps on the way (GPU)."""

    def compiler_options(self) -> dict[str, int | bool]:
        """Options of an upstream Triton launch; an Ascend compiler takes none of them."""
        if self.num_warps is None:
            return {}
        # a fused multiply-add is not the number whose rounding error the next line computes
        return {"num_warps": self.num_warps, "enable_fp_fusion": False}


_COMPILED = "every use compiles for the three targets with bishengir-compile 1.2.0; not run"
_PLANNED = "compiles with Triton 3.6.0; not measured yet"
_H200 = (
    "bench.reduction_speed --tune on an H200, 2026-11-30, PyTorch 2.11.0, Triton 3.6.0: "
    "the fastest of {0} candidates, or as fast as it, for {1}"
)

REDUCE = (
    ReduceConfig(_ASCEND, True, 128, 16, 128, 16, _COMPILED),
    ReduceConfig(_ASCEND, True, None, 2, 1024, 64, _COMPILED),
    ReduceConfig(_ASCEND, False, None, 128, 16, 64, _COMPILED),
    ReduceConfig(NVIDIA, True, 128, 32, 128, 16, _PLANNED, core_loop=False, num_warps=8),
    ReduceConfig(NVIDIA, True, 1024, 4, 1024, 16, _PLANNED, core_loop=False, num_warps=8),
    # a warp a row: what follows the loop costs as much as some tiles, and is hidden by other rows
    ReduceConfig(
        NVIDIA, True, 16384, 1, 512, 32,
        _H200.format(24, "fp32 rows of 8192, compensated and sum2"),
        core_loop=False, num_warps=1, stages=4,
    ),
    ReduceConfig(
        NVIDIA, True, None, 1, 4096, 64,
        _H200.format(18, "1e9 fp32 numbers in a row, compensated"),
        core_loop=False, num_warps=8, stages=3,
    ),
    ReduceConfig(NVIDIA, False, None, 128, 32, 64, _PLANNED, core_loop=False, num_warps=8),
)  # fmt: skip
"""Reductions to one number a row."""


@dataclass(frozen=True)
class Schedule:
    """How programs go about tiles of a width: one program a core over all tasks (NPU), or others.

    Results do not depend on it but for num_warps.
    """

    block_n: int
    """Widest tile it is for."""
    source: str
    modes: tuple[Mode, ...] = get_args(Mode)
    """What it is for."""
    num_warps: int | None = None
    programs: int | None = 1
    """Programs a core, looping over tasks; None: one program a task."""
    stages: int = 1
    """Tiles that a loop keeps on the way (GPU)."""
    held: bool = False
    """A program loads weight and bias once, where a row lies in one tile."""
    registers: int | None = None
    """Registers a thread may have, so that more programs run side by side (GPU); None: any."""

    def compiler_options(self) -> dict[str, int | bool]:
        """Options of an upstream Triton launch; an Ascend compiler takes none of them."""
        if self.num_warps is None:
            return {}
        bound = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.num_warps, "enable_fp_fusion": False, **bound}


@dataclass(frozen=True)
class NormalizeConfig:
    """Tiles of what writes as much as it reads: softmax and the norms."""

    targets: tuple[str, ...]
    max_tile: int
    """Numbers of a tile: a row of at most so many is read once, and lies in one tile."""
    schedules: tuple[Schedule, ...]
    """From narrow tiles to wide ones; the first that is wide enough and for the mode counts."""

    def block_n(self, length: int) -> int:
        """Numbers of a row in a tile: a power of two."""
        return min(max(16, 1 << (length - 1).bit_length()), self.max_tile)

    def block_m(self, length: int) -> int:
        """Rows of a tile."""
        return max(1, min(64, self.max_tile // 4 // self.block_n(length)))

    def schedule(self, mode: Mode, length: int) -> Schedule:
        """How tiles of rows of that length are gone about."""
        block_n = self.block_n(length)
        return next(s for s in self.schedules if block_n <= s.block_n and mode in s.modes)


_OF_8192 = _H200.format("{0}", "bf16 rows of 8192, compensated")
_NARROW = Schedule(2048, _PLANNED, num_warps=4, programs=None)
_WIDE = Schedule(16384, _PLANNED, num_warps=16, programs=None)

NORMALIZE = (
    NormalizeConfig(_ASCEND, 4096, (Schedule(4096, _COMPILED),)),
    # few registers, and some of them spilled: more programs run side by side
    NormalizeConfig(
        ("sm_90",),
        16384,
        (
            _NARROW,
            Schedule(
                8192, _OF_8192.format(43), ("rms_norm",),
                num_warps=4, programs=None, registers=128,
            ),
            Schedule(
                8192, _OF_8192.format(27), ("layer_norm",),
                num_warps=4, programs=2, stages=3, held=True,
            ),
            Schedule(8192, _OF_8192.format(19), ("softmax",), num_warps=8, programs=None),
            _WIDE,
        ),
    ),
    NormalizeConfig(
        tuple(arch for arch in NVIDIA if arch != "sm_90"),
        16384,
        (_NARROW, Schedule(8192, _PLANNED, num_warps=8, programs=None), _WIDE),
    ),
)  # fmt: skip
"""Softmax, rms_norm and layer_norm."""


def choose_reduce(target: Target, along: bool, length: int) -> ReduceConfig:
    """The first row of the table that serves rows of this kind.

    Raises:
        NotImplementedError: no row for this target.
    """
    for row in REDUCE:
        fits = row.max_length is None or length <= row.max_length
        if _arch(target) in row.targets and row.along == along and fits:
            return row
    raise _no_table(target)


def choose_normalize(target: Target) -> NormalizeConfig:
    """The row of the table that serves a target.

    Raises:
        NotImplementedError: no row for this target.
    """
    for row in NORMALIZE:
        if _arch(target) in row.targets:
            return row
    raise _no_table(target)


def _arch(target: Target) -> str:
    return SAME_MEMORIES.get(target.arch, target.arch)


def _no_table(target: Target) -> NotImplementedError:
    known = sorted({arch for row in REDUCE for arch in row.targets})
    return NotImplementedError(
        f"flashasc has no tiles of reductions for {target.arch}; it has for {', '.join(known)}. "
        'Use impl="reference", which is plain PyTorch'
    )

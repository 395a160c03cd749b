"""Beside the kernel that stores with peers: to wait, to take what arrived, and to give it free."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.layout import advance, load_rows, load_tile

from .peer_store import read_signal, set_signal, store_owned


@triton.jit
def nanoseconds():
    """A clock of the GPU's: the same on all of its multiprocessors."""
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["target", "allowed", "world", "step", "call", "limit"])
def wait_kernel(
    signals_ptr, report_ptr, failed_ptr, target, allowed, world, step, call, limit
):  # fmt: skip
    """Wait until every rank's counter is at its target; one program.

    Args:
        signals_ptr: to int32 [world]: counters, of this rank's memory.
        report_ptr: to int32 [4, world], of the host, 0: for a rank that is late (1) or too far (2)
            which of the two, how far its counter is from the target, `step` and `call`.
        failed_ptr: to int32: set to 1 where any rank is late or too far. If it was before, nothing
            is waited for or reported any more.
        target: int32. Counters may go round.
        allowed: int32. How far beyond the target is not too far.
        step, call: int32. To be reported.
        limit: int64, nanoseconds for all ranks together.
    """
    begun = nanoseconds()
    rank = 0
    if tl.load(failed_ptr) != 0:
        rank = world
    while rank < world:
        ahead = read_signal(signals_ptr + rank) - target
        while (ahead < 0) & (nanoseconds() - begun < limit):
            ahead = read_signal(signals_ptr + rank) - target
        if (ahead < 0) | (ahead > allowed):
            tl.store(report_ptr + rank, tl.where(ahead < 0, 1, 2))
            tl.store(report_ptr + world + rank, ahead)
            tl.store(report_ptr + 2 * world + rank, step)
            tl.store(report_ptr + 3 * world + rank, call)
            tl.store(failed_ptr, 1)
        rank += 1


@triton.jit
def take_kernel(
    out_ptr, arrived_ptr, failed_ptr, numbers, BLOCK: tl.constexpr, POISON: tl.constexpr
):
    """Copy what arrived; NaN instead, after a wait that gave up.

    Args:
        out_ptr, arrived_ptr: to as many integers, as wide as the floats that they are.
        numbers: int64. How many.
        POISON: leave NaN where it was.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = start + tl.arange(0, BLOCK)
    mask = offs < numbers
    found = tl.load(arrived_ptr + offs, mask=mask, other=0)
    # all bits set are a NaN in every dtype
    nans = tl.full((BLOCK,), -1, out_ptr.dtype.element_ty)
    failed = tl.load(failed_ptr) != 0
    tl.store(out_ptr + offs, tl.where(failed, nans, found), mask=mask)
    if POISON:
        tl.store(arrived_ptr + offs, nans, mask=mask)


@triton.jit(do_not_specialize=["at", "value", "world"])
def post_kernel(peers_ptr, failed_ptr, at, value, world):
    """Tell every rank a number, after all that earlier kernels of this stream did; one program.

    Args:
        peers_ptr: to int64 [world]: addresses of the ranks' memory.
        failed_ptr: to int32. Not 0: a wait gave up, and nobody is told anything.
        at: int64. Bytes from there to the word.
        value: int32.
    """
    if tl.load(failed_ptr) == 0:
        rank = 0
        while rank < world:
            set_signal(tl.load(peers_ptr + rank), at, value)
            rank += 1


@triton.jit(
    do_not_specialize=[
        "heads", "rows", "tiles", "pieces", "out_at", "lse_at", "signal_at", "first_head",
        "all_heads", "pause",
    ]
)  # fmt: skip
def push_kernel(
    x_ptr, lse_ptr, stride_xb, stride_xh, stride_xm, stride_lb, stride_lh,
    heads, rows, tiles, peers_ptr, pieces_ptr, failed_ptr, pieces, out_at, lse_at, signal_at,
    first_head, all_heads, pause,
    Dv: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, WITH_LSE: tl.constexpr,
    HEADS_FIRST: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Send rows to the ranks that own them, and compute nothing: attention without attention.

    Args:
        x_ptr: to [B, heads, rows, Dv], columns next to each other.
        lse_ptr: to fp32 [B, heads, rows], rows next to each other; used WITH_LSE.
        pause: int64. Most nanoseconds that a program waits before it stores.
    """
    task = tl.program_id(0)
    pid_bh = task // tiles
    row_start = (tiles - 1 - task % tiles) * BLOCK_M
    batch = pid_bh // heads
    head = pid_bh % heads
    x_ptr = advance(advance(x_ptr, batch, stride_xb), head, stride_xh)
    tile = load_tile(
        x_ptr, row_start, rows, stride_xm, 1, Dv, BLOCK_M, BLOCK_DV, CHECK_ROWS=True, WIDE=True
    )  # [BLOCK_M, BLOCK_DV]
    lse = tl.zeros((BLOCK_M,), tl.float32)
    if WITH_LSE:
        lse_ptr = advance(advance(lse_ptr, batch, stride_lb), head, stride_lh)
        lse = load_rows(lse_ptr, row_start, rows, BLOCK_M)
    # another pause for each program and each call
    begun = nanoseconds()
    mixed = ((begun + task * 7919) * 2654435761) >> 7
    while nanoseconds() - begun < (mixed & 0xFFFF) * pause // 0x10000:
        pass
    store_owned(
        peers_ptr, pieces_ptr, failed_ptr, pieces, out_at, lse_at, signal_at,
        tile.to(tl.float32), lse, batch, first_head + head, all_heads, row_start, rows,
        x_ptr.dtype.element_ty, Dv, WITH_LSE, HEADS_FIRST, STEPS,
    )  # fmt: skip

"""Beside the kernel that stores with peers: to signal and wait, and to take what arrived."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.layout import advance, load_rows, load_tile

from .peer_store import add_signals, find_piece, find_place, read_signal, store_owned


@triton.jit
def nanoseconds():
    """A clock of the GPU's: the same on all of its multiprocessors."""
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["at", "target", "world", "call", "limit"])
def meet_kernel(
    peers_ptr, signals_ptr, report_ptr, failed_ptr, at, target, world, call, limit,
    RANKS: tl.constexpr,
):  # fmt: skip
    """Tell every rank that what earlier kernels of this stream stored is there; wait for theirs.

    One program. Nobody is told anything, or waited for, after a wait that gave up.

    Args:
        peers_ptr: to int64 [world]: addresses of the ranks' memory.
        signals_ptr: to int32 [world]: counters, of this rank's memory.
        report_ptr: to int32 [3, world], of the host, 0: for a rank that is late (1) or too far (2)
            which of the two, how far its counter is from the target, and `call`.
        failed_ptr: to int32: set to 1 where any rank is late or too far.
        at: int64. Bytes from an address to this rank's counter.
        target: int32. That of all counters, or one beyond. Counters may go round.
        call: int32. To be reported.
        limit: int64, nanoseconds for all ranks together.
        RANKS: world, or the next power of two.
    """
    begun = nanoseconds()
    if tl.load(failed_ptr) == 0:
        ranks = tl.arange(0, RANKS)
        memories = tl.load(peers_ptr + ranks, mask=ranks < world, other=0)
        add_signals(memories, at, ranks < world)
        rank = 0
        while rank < world:
            ahead = read_signal(signals_ptr + rank) - target
            while (ahead < 0) & (nanoseconds() - begun < limit):
                ahead = read_signal(signals_ptr + rank) - target
            if (ahead < 0) | (ahead > 1):
                tl.store(report_ptr + rank, tl.where(ahead < 0, 1, 2))
                tl.store(report_ptr + world + rank, ahead)
                tl.store(report_ptr + 2 * world + rank, call)
                tl.store(failed_ptr, 1)
            rank += 1


@triton.jit
def take_numbers(
    out_ptr, arrived_ptr, program, rows, columns, own_from, own_to, failed,
    BLOCK: tl.constexpr, POISON: tl.constexpr,
):  # fmt: skip
    """Copy what peers stored into a matrix [rows, columns] beside this rank's own columns.

    Args:
        out_ptr, arrived_ptr: to as many integers, as wide as the floats that they are.
        program: int32. Which BLOCK x 4096 / BLOCK numbers.
        own_from, own_to: this rank's columns, which are in `out` already.
        failed: bool. NaN instead, throughout.
        BLOCK: columns of a program.
        POISON: leave NaN where it was.
    """
    LINES: tl.constexpr = 4096 // BLOCK
    across = tl.cdiv(columns, BLOCK)
    row = (program // across).to(tl.int64) * LINES + tl.arange(0, LINES)[:, None]
    column = (program % across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    offsets = row * columns + column
    inside = (row < rows) & (column < columns)
    taken = inside & ((column < own_from) | (column >= own_to) | failed)
    found = tl.load(arrived_ptr + offsets, mask=taken, other=0)
    # all bits set are a NaN in every dtype
    nans = tl.full((LINES, BLOCK), -1, out_ptr.dtype.element_ty)
    tl.store(out_ptr + offsets, tl.where(failed, nans, found), mask=taken)
    if POISON:
        tl.store(arrived_ptr + offsets, nans, mask=inside)


@triton.jit(do_not_specialize=["programs", "rows", "lse_rows"])
def take_kernel(
    out_ptr, arrived_ptr, lse_ptr, arrived_lse_ptr, failed_ptr, programs,
    rows, columns, own_from, own_to, lse_rows, lse_columns, lse_from, lse_to,
    BLOCK: tl.constexpr, LSE_BLOCK: tl.constexpr, WITH_LSE: tl.constexpr, POISON: tl.constexpr,
):  # fmt: skip
    """Copy what peers stored; NaN instead, throughout, after a wait that gave up.

    Args:
        out_ptr, arrived_ptr, lse_ptr, arrived_lse_ptr, POISON: see `take_numbers`; the log-sum-exp
            is used WITH_LSE.
        programs: int32. How many copy the output; those behind copy the log-sum-exp.
        rows, columns, own_from, own_to, BLOCK: of the output, see `take_numbers`; lse_rows and the
            others likewise of the log-sum-exp.
    """
    failed = tl.load(failed_ptr) != 0
    program = tl.program_id(0)
    if program < programs:
        take_numbers(
            out_ptr, arrived_ptr, program, rows, columns, own_from, own_to, failed, BLOCK, POISON
        )
    if WITH_LSE:
        if program >= programs:
            take_numbers(
                lse_ptr, arrived_lse_ptr, program - programs, lse_rows, lse_columns, lse_from,
                lse_to, failed, LSE_BLOCK, POISON,
            )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "heads", "rows", "tiles", "pieces", "out_at", "lse_at", "rank", "first_head", "all_heads",
        "pause",
    ]
)  # fmt: skip
def push_kernel(
    x_ptr, lse_ptr, stride_xb, stride_xh, stride_xm, stride_lb, stride_lh,
    heads, rows, tiles, out_ptr, out_lse_ptr, memories_ptr, pieces_ptr, failed_ptr, pieces,
    out_at, lse_at, rank, first_head, all_heads, pause,
    Dv: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, WITH_LSE: tl.constexpr,
    HEADS_FIRST: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Send rows to the ranks that own them, and compute nothing: attention without attention.

    Args:
        x_ptr: to [B, heads, rows, Dv], columns next to each other.
        lse_ptr: to fp32 [B, heads, rows], rows next to each other; used WITH_LSE.
        out_ptr, out_lse_ptr: this rank's own output and log-sum-exp, where its own rows go, of the
            dtypes of x_ptr and lse_ptr.
        pause: int64. Most nanoseconds that a program waits before it stores.
    """
    task = tl.program_id(0)
    pid_bh = task // tiles
    row_start = (tiles - 1 - task % tiles) * BLOCK_M
    batch = pid_bh // heads
    head = pid_bh % heads
    piece = find_piece(pieces_ptr, failed_ptr, pieces, row_start, LEVELS)
    to_out, to_lse, end = find_place(
        memories_ptr, pieces_ptr, out_ptr, out_lse_ptr, tl.maximum(piece, 0), out_at, lse_at, rank,
        batch, first_head + head, all_heads, row_start, Dv, WITH_LSE, HEADS_FIRST,
    )  # fmt: skip
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
        to_out, to_lse, end, memories_ptr, pieces_ptr, out_ptr, out_lse_ptr, piece, out_at, lse_at,
        rank, tile.to(tl.float32), lse, batch, first_head + head, all_heads, row_start, rows,
        Dv, WITH_LSE, HEADS_FIRST,
    )  # fmt: skip

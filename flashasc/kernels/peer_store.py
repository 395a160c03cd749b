"""Stores into other ranks' memory, and the signals that say what is there: device functions.

All that knows how a peer is reached: on NVIDIA its memory is mapped, and an address is enough. For
another kind of symmetric memory these four are written anew, and nothing else.

Order of memory (PTX ISA, memory consistency model): a kernel stores; a thread of a later kernel
of the same stream, before which all of that is done, adds to a counter with release at system
scope, which is cumulative: who reads the sum with acquire at system scope sees what the kernel
stored. A release behind each tile would do too, and its program would stand still until all its
stores have come to the peer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.layout import owner_of


@triton.jit
def store_to_peer(
    memory, start, tile, rows_from, rows_to, stride_row, DTYPE: tl.constexpr, COLS: tl.constexpr
):
    """Store some rows of a tile into a peer's memory, and nothing else.

    Args:
        memory: int64. Address in the peer's memory, a multiple of 16.
        start: int64. Elements from there to where row 0 of the tile would lie; a multiple of COLS.
        tile: [BLOCK_ROWS, BLOCK_COLS] fp32.
        rows_from, rows_to: int32. First row to store; first row not to be stored.
        stride_row: int64, in elements; a multiple of COLS.
        DTYPE: what the tile is rounded to.
        COLS: columns to store.
    """
    rows = tl.arange(0, tile.shape[0])
    cols = tl.arange(0, tile.shape[1])
    stored = tile.to(DTYPE)
    offsets = start + rows.to(tl.int64)[:, None] * stride_row + cols[None, :]
    pointers = memory.to(tl.pointer_type(DTYPE)) + offsets
    if COLS * stored.dtype.primitive_bitwidth % 128 == 0:
        # said of the sum: Triton 3.6 forgets what it knows of a number that becomes an address
        pointers = tl.multiple_of(pointers, (1, 16))
    mask = ((rows >= rows_from) & (rows < rows_to))[:, None]
    if COLS < tile.shape[1]:
        mask = mask & (cols < COLS)[None, :]
    tl.store(pointers, stored, mask=mask)


@triton.jit
def store_numbers_to_peer(memory, start, values, rows_from, rows_to):
    """Store one fp32 number a row into a peer's memory: see `store_to_peer`."""
    rows = tl.arange(0, values.shape[0])
    base = memory.to(tl.pointer_type(tl.float32))
    mask = (rows >= rows_from) & (rows < rows_to)
    tl.store(base + start + rows, values, mask=mask)


@triton.jit
def add_signals(memories, at, mask):
    """Count one more call with ranks, behind all that earlier kernels of this stream stored.

    Args:
        memories: int64 [ranks]. Address of the memory of each rank that counts.
        mask: which of these there are. They are told at once: nobody waits for another's answer.
        at: int64 or int32. Bytes from there to the counter, int32.
    """
    words = (memories + at).to(tl.pointer_type(tl.int32))
    tl.atomic_add(words, 1, mask=mask, sem="release", scope="sys")


@triton.jit
def read_signal(ptr):
    """A counter of this rank's own memory: what was stored before it was raised is seen after."""
    return tl.atomic_add(ptr, 0, sem="acquire", scope="sys")


@triton.jit
def store_owned(
    peers_ptr, pieces_ptr, failed_ptr, home_ptr, home_lse_ptr, pieces, out_at, lse_at, rank,
    out, lse, batch, head, heads, row_start, row_end,
    DTYPE: tl.constexpr, Dv: tl.constexpr, WITH_LSE: tl.constexpr, HEADS_FIRST: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """Store a tile of output rows with the ranks that own them.

    Args:
        peers_ptr: to int64 [world]: address of each rank's memory.
        pieces_ptr, pieces, STEPS: whose rows are whose, see `owner_of`.
        failed_ptr: to int32. Not 0: a wait gave up, and nothing is stored.
        home_ptr, home_lse_ptr: to this rank's own output and log-sum-exp, multiples of 16:
            its own rows go there. The latter is used WITH_LSE.
        out_at, lse_at: int64. Bytes from a peer's address to the output and the log-sum-exp of
            this call, multiples of 16.
        rank: int32. This one.
        out: [BLOCK_M, BLOCK_DV] fp32.
        lse: [BLOCK_M] fp32; used WITH_LSE.
        batch, head, heads: int32. Which sequence; which of how many query heads of all ranks.
        row_start, row_end: int32. First row of the tile; first row that there is not.
        HEADS_FIRST: an owner's output is [B, heads, rows, Dv], else [B, rows, heads, Dv]; the
            log-sum-exp is [B, heads, rows].
    """
    last = tl.minimum(row_start + out.shape[0], row_end)
    # the owner may still be reading what lies there
    last = tl.where(tl.load(failed_ptr) == 0, last, row_start)
    row = row_start
    # most often once: a tile that lies across an edge has several owners
    while row < last:
        owner, place, rows, _first, end = owner_of(pieces_ptr, row, pieces, STEPS)
        to = tl.minimum(end, last)
        memory = tl.load(peers_ptr + owner)
        to_out = tl.where(owner == rank, home_ptr.to(tl.int64), memory + out_at)
        wide = rows.to(tl.int64)
        # of the tile's row 0, which may be another's: only rows from `row` on are stored
        place_0 = (place - (row - row_start)).to(tl.int64)
        if HEADS_FIRST:
            stride_row = tl.cast(Dv, tl.int64)
            start = (tl.cast(batch * heads + head, tl.int64) * wide + place_0) * Dv
        else:
            stride_row = tl.cast(heads, tl.int64) * Dv
            start = (tl.cast(batch, tl.int64) * wide + place_0) * stride_row + head * Dv
        store_to_peer(
            to_out, start, out, row - row_start, to - row_start, stride_row, DTYPE, Dv
        )  # fmt: skip
        if WITH_LSE:
            start_lse = tl.cast(batch * heads + head, tl.int64) * wide + place_0
            to_lse = tl.where(owner == rank, home_lse_ptr.to(tl.int64), memory + lse_at)
            store_numbers_to_peer(to_lse, start_lse, lse, row - row_start, to - row_start)
        row = to

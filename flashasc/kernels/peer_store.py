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

from blocks.layout import owner_of, piece_of


@triton.jit
def store_to_peer(
    to_row_0, tile, rows_from, rows_to, stride_row, DTYPE: tl.constexpr, COLS: tl.constexpr,
    chosen=None,
):  # fmt: skip
    """Store some rows of a tile into a peer's memory, and nothing else.

    Args:
        to_row_0: int64. Address, in the peer's memory, of where row 0 of the tile would lie: some
            times COLS elements from a multiple of 16.
        tile: [BLOCK_ROWS, BLOCK_COLS] fp32.
        rows_from, rows_to: int32. First row to store; first row not to be stored.
        stride_row: int64, in elements; a multiple of COLS.
        DTYPE: what the tile is rounded to.
        COLS: columns to store.
        chosen: bool, of the tile's shape: store these alone. None: all.
    """
    rows = tl.arange(0, tile.shape[0])
    cols = tl.arange(0, tile.shape[1])
    stored = tile.to(DTYPE)
    offsets = rows.to(tl.int64)[:, None] * stride_row + cols[None, :]
    pointers = to_row_0.to(tl.pointer_type(DTYPE)) + offsets
    if COLS * stored.dtype.primitive_bitwidth % 128 == 0:
        # said of the sum: Triton 3.6 forgets what it knows of a number that becomes an address
        pointers = tl.multiple_of(pointers, (1, 16))
    mask = ((rows >= rows_from) & (rows < rows_to))[:, None]
    if COLS < tile.shape[1]:
        mask = mask & (cols < COLS)[None, :]
    if chosen is not None:
        mask = mask & chosen
    tl.store(pointers, stored, mask=mask)


@triton.jit
def store_numbers_to_peer(to_row_0, values, rows_from, rows_to):
    """Store one fp32 number a row into a peer's memory: see `store_to_peer`."""
    rows = tl.arange(0, values.shape[0])
    base = to_row_0.to(tl.pointer_type(tl.float32))
    mask = (rows >= rows_from) & (rows < rows_to)
    tl.store(base + rows, values, mask=mask)


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
def find_piece(pieces_ptr, failed_ptr, pieces, row_start, LEVELS: tl.constexpr):
    """Find the piece of a tile's first row, before the tile is computed.

    Args:
        pieces_ptr, pieces, LEVELS: whose rows are whose, see `piece_of`.
        failed_ptr: to int32. Not 0: a wait gave up, so owners may still be reading what lies where
            the tile would go, and nothing is stored. Only kernels of this stream set it, and those
            before this one are done: it says the same throughout this kernel.
        row_start: int32. First row of the tile.

    Returns:
        int32: the piece; -1 after a wait that gave up.
    """
    failed = tl.load(failed_ptr)
    piece = piece_of(pieces_ptr, row_start, pieces, LEVELS)
    return tl.where(failed == 0, piece, -1)


@triton.jit
def find_place(
    memories_ptr, pieces_ptr, home_ptr, home_lse_ptr, piece, out_at, lse_at, rank,
    batch, head, heads, row_start,
    Dv: tl.constexpr, WITH_LSE: tl.constexpr, HEADS_FIRST: tl.constexpr,
):  # fmt: skip
    """Find where the rows of a tile go that lie in one piece. Waits for memory once.

    Args:
        memories_ptr: to int64 [pieces]: address of the memory of each piece's owner.
        pieces_ptr: see `owner_of`.
        home_ptr, home_lse_ptr: to this rank's own output and log-sum-exp, multiples of 16:
            its own rows go there. The former's dtype is that of all outputs, the latter is used
            WITH_LSE.
        piece: int32, at least 0.
        out_at, lse_at: int64. Bytes from a memory's address to the output and the log-sum-exp of
            this call, multiples of 16.
        rank: int32. This one.
        batch, head, heads: int32. Which sequence; which of how many query heads of all ranks.
        row_start: int32. First row of the tile.
        HEADS_FIRST: an owner's output is [B, heads, rows, Dv], else [B, rows, heads, Dv]; the
            log-sum-exp is [B, heads, rows].

    Returns:
        (to_out, to_lse, end): int64, int64, int32. Addresses of where the tile's first row would
        lie, which may be another owner's; first row behind the piece.
    """
    # place of the tile's first row, which may be another's: below 0 then
    owner, place, rows, _first, end = owner_of(pieces_ptr, row_start, piece)
    memory = tl.load(memories_ptr + piece)
    wide = rows.to(tl.int64)
    start_lse = tl.cast(batch * heads + head, tl.int64) * wide + place
    start = start_lse
    if not HEADS_FIRST:
        start = (tl.cast(batch, tl.int64) * wide + place) * heads + head
    to_out = tl.where(owner == rank, home_ptr.to(tl.int64), memory + out_at)
    to_out += start * (Dv * home_ptr.dtype.element_ty.primitive_bitwidth // 8)
    to_lse = to_out
    if WITH_LSE:
        to_lse = tl.where(owner == rank, home_lse_ptr.to(tl.int64), memory + lse_at)
        to_lse += start_lse * 4
    return to_out, to_lse, end


@triton.jit
def store_owned(
    to_out, to_lse, end, memories_ptr, pieces_ptr, home_ptr, home_lse_ptr, piece, out_at, lse_at,
    rank, out, lse, batch, head, heads, row_start, row_end,
    Dv: tl.constexpr, WITH_LSE: tl.constexpr, HEADS_FIRST: tl.constexpr, chosen=None,
):  # fmt: skip
    """Store a tile of output rows with the ranks that own them.

    Args:
        to_out, to_lse, end: see `find_place`, of `piece`; they are found before the tile is done.
        piece: int32, see `find_piece`.
        out: [BLOCK_M, BLOCK_DV] fp32.
        lse: [BLOCK_M] fp32; used WITH_LSE.
        row_start, row_end: int32. First row of the tile; first row that there is not.
        chosen: see `store_to_peer`.
        The others: see `find_place`.
    """
    last = tl.minimum(row_start + out.shape[0], row_end)
    last = tl.where(piece < 0, row_start, last)
    stride_row = tl.cast(Dv, tl.int64)
    if not HEADS_FIRST:
        stride_row *= heads
    DTYPE: tl.constexpr = home_ptr.dtype.element_ty
    row = row_start
    # most often once: a tile that lies across an edge has several owners
    while row < last:
        to = tl.minimum(end, last)
        store_to_peer(to_out, out, row - row_start, to - row_start, stride_row, DTYPE, Dv, chosen)
        if WITH_LSE:
            store_numbers_to_peer(to_lse, lse, row - row_start, to - row_start)
        row = to
        if row < last:
            piece += 1
            to_out, to_lse, end = find_place(
                memories_ptr, pieces_ptr, home_ptr, home_lse_ptr, piece, out_at, lse_at, rank,
                batch, head, heads, row_start, Dv, WITH_LSE, HEADS_FIRST,
            )  # fmt: skip

"""Before attention of packed sequences: which of them go first, and the rows that belong to none.

Their lengths are known on the device alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.constants import INF
from blocks.layout import advance, sequence, tile_offsets


@triton.jit
def _sizes(
    which, cu_q_ptr, cu_k_ptr, sequences, Sq, Sk, max_q, max_k, few, BLOCK_M: tl.constexpr
):  # fmt: skip
    """(begin, queries, keys, tiles) of some sequences; -1 keys and no tile where there is none."""
    inside = tl.minimum(which, sequences - 1)
    begin, queries = sequence(cu_q_ptr, inside, Sq, max_q)
    _begin, keys = sequence(cu_k_ptr, inside, Sk, max_k)
    known = which < sequences
    queries = tl.where(known, queries, 0)
    tiles = tl.where(queries > few, (queries + BLOCK_M - 1) // BLOCK_M, 0)
    return begin, queries, tl.where(known, keys, -1), tiles


@triton.jit
def _put_in_order(
    part, cu_q_ptr, cu_k_ptr, order_ptr, sequences, Sq, Sk, max_q, max_k, few,
    BLOCK_M: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Count what goes before each of BLOCK_B sequences: sequences and their tiles."""
    mine = part * BLOCK_B + tl.arange(0, BLOCK_B)
    _begin, _queries, keys, tiles = _sizes(
        mine, cu_q_ptr, cu_k_ptr, sequences, Sq, Sk, max_q, max_k, few, BLOCK_M
    )
    place = mine * 0
    first = mine * 0
    for start in range(0, sequences, BLOCK_B):
        others = start + tl.arange(0, BLOCK_B)
        _begin, _queries, their_keys, their_tiles = _sizes(
            others, cu_q_ptr, cu_k_ptr, sequences, Sq, Sk, max_q, max_k, few, BLOCK_M
        )
        longer = their_keys[None, :] > keys[:, None]
        alike = their_keys[None, :] == keys[:, None]
        before = longer | (alike & (others[None, :] < mine[:, None]))  # [mine, others]
        place += tl.sum(before.to(tl.int32), axis=1)
        first += tl.sum(tl.where(before, their_tiles[None, :], 0), axis=1)
    tl.store(order_ptr + place, mine, mask=mine < sequences)
    tl.store(order_ptr + sequences + place, first, mask=mine < sequences)
    tl.store(order_ptr + sequences + place + 1, first + tiles, mask=place == sequences - 1)


@triton.jit
def _fill_gaps(
    part, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, sequences, Hq, Sq, Sk, max_q, max_k, few, slots,
    stride_oh, stride_om, stride_od, stride_lse_h,
    BLOCK_M: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr, Dv: tl.constexpr,
    BLOCK_DV: tl.constexpr, WITH_LSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """0 and -inf for those of BLOCK_T tokens that no sequence has."""
    start_t = part * BLOCK_T
    tokens = start_t + tl.arange(0, BLOCK_T)
    held = tl.where(tokens < Sq, 0, 1)
    count = 0
    for start in range(0, sequences, BLOCK_B):
        begin, queries, _keys, tiles = _sizes(
            start + tl.arange(0, BLOCK_B), cu_q_ptr, cu_k_ptr, sequences, Sq, Sk, max_q, max_k,
            few, BLOCK_M,
        )  # fmt: skip
        after = tokens[:, None] >= begin[None, :]
        among = after & (tokens[:, None] < (begin + queries)[None, :])
        held = tl.maximum(held, tl.max(among.to(tl.int32), axis=1))
        count += tl.sum(tiles, axis=0)
    # of sequences that overlap some may be left out
    held = tl.where((count > slots) & (tokens < Sq), 0, held)
    if tl.min(held, axis=0) == 0:
        offsets = tile_offsets(stride_om, stride_od, BLOCK_T, BLOCK_DV, WIDE)
        columns = tl.arange(0, BLOCK_DV)[None, :] < Dv
        nothing = tl.zeros((BLOCK_T, BLOCK_DV), out_ptr.dtype.element_ty)
        for head in range(0, Hq):
            start_ptr = advance(advance(out_ptr, head, stride_oh), start_t, stride_om)
            tl.store(start_ptr + offsets, nothing, mask=(held == 0)[:, None] & columns)
            if WITH_LSE:
                rows_ptr = advance(lse_ptr, head, stride_lse_h) + tokens
                tl.store(rows_ptr, tl.zeros_like(held).to(tl.float32) - INF, mask=held == 0)


@triton.jit(
    do_not_specialize=[
        "sequences", "Hq", "Sq", "Sk", "max_q", "max_k", "few", "slots", "parts", "stride_lse_h",
    ]
)  # fmt: skip
def packed_order_kernel(
    out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, order_ptr, sequences, Hq, Sq, Sk, max_q, max_k, few,
    slots, parts, stride_oh, stride_om, stride_od, stride_lse_h,
    BLOCK_M: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr, Dv: tl.constexpr,
    BLOCK_DV: tl.constexpr, FILL: tl.constexpr, WITH_LSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Put sequences with more keys before those with fewer, and count the tiles before each.

    The first `parts` programs write order [2 * sequences + 1], int32: the sequences in their order;
    how many tiles of BLOCK_M queries, of one head, go before each; and how many there are. The
    others, with FILL, write the rows of output and log-sum-exp of tokens that no sequence has.

    sequences, Hq, Sq, Sk: sequences, heads, and tokens of all sequences. max_q, max_k, few: as for
    attention, which starts programs for `slots` tiles of each head.
    """
    pid = tl.program_id(0)
    if pid < parts:
        _put_in_order(
            pid, cu_q_ptr, cu_k_ptr, order_ptr, sequences, Sq, Sk, max_q, max_k, few,
            BLOCK_M, BLOCK_B,
        )  # fmt: skip
    elif FILL:
        _fill_gaps(
            pid - parts, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, sequences, Hq, Sq, Sk,
            max_q, max_k, few, slots, stride_oh, stride_om, stride_od, stride_lse_h,
            BLOCK_M, BLOCK_B, BLOCK_T, Dv, BLOCK_DV, WITH_LSE, WIDE,
        )  # fmt: skip

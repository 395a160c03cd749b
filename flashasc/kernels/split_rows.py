"""What the kernels for few queries share: their sequences, chunks, and how rows are finished."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.gathered import store_grouped
from blocks.layout import advance, clamped, sequence

from .attention_finish import finish, load_sinks


@triton.jit
def by_row(values, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """One number a head, [GROUP], for each row of a tile as `load_grouped` makes it."""
    return tl.reshape(tl.broadcast_to(values[None, :], (ROWS, GROUP)), (ROWS * GROUP,))


@triton.jit
def sequence_of(
    batch, kv_lens_ptr, cu_q_ptr, cu_k_ptr, Sq, Sk, max_q, max_k, diagonal, few,
    KV_LENS: tl.constexpr, PACKED: tl.constexpr, LAST_KEY: tl.constexpr,
):  # fmt: skip
    """Where one sequence lies, how long it is, and its diagonal.

    LAST_KEY: the last query is aligned with the sequence's own last key.

    Returns:
        (begin_q, Sq, begin_k, Sk, diagonal): int32. Packed sequences with more than `few` queries,
        which are the forward kernel's, have Sq 0.
    """
    begin_q = 0
    begin_k = 0
    if PACKED:
        begin_q, Sq = sequence(cu_q_ptr, batch, Sq, max_q)
        begin_k, Sk = sequence(cu_k_ptr, batch, Sk, max_k)
    elif KV_LENS:
        Sk = clamped(tl.load(kv_lens_ptr + batch), Sk)
    if LAST_KEY:
        diagonal = Sk - Sq
    if PACKED:
        Sq = tl.where(Sq > few, 0, Sq)
    return begin_q, Sq, begin_k, Sk, diagonal


@triton.jit
def chunks_of(begin, end, CHUNK: tl.constexpr):
    """(first, end): the chunks that hold the keys [begin, end); one, where there are no keys."""
    first = tl.minimum(begin, tl.maximum(end - 1, 0)) // CHUNK
    return first, tl.maximum((end + CHUNK - 1) // CHUNK, first + 1)


@triton.jit
def slot_of(
    batch, chunk, head_k, tile, begin_k, Hk, tiles, chunks,
    PACKED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Where the state of a tile of rows and a chunk lies: int64, counted in such states.

    Packed sequences take as many slots as they have keys for, not as the longest has: whatever
    their lengths, `begin_k // CHUNK + batch + chunk` meets no number twice.
    """
    if PACKED:
        slot = begin_k // CHUNK + batch + chunk
    else:
        slot = batch * chunks + chunk
    return (tl.cast(slot, tl.int64) * Hk + head_k) * tiles + tile


@triton.jit
def finish_rows(
    out_ptr, lse_ptr, sinks_ptr, pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
    head_start, start_m, Sq, heads, stride_om, stride_oh, stride_od, stride_lse_h,
    stride_sinks_h, COLS: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr,
    SINKS: tl.constexpr, STORE_LSE: tl.constexpr, SEPARATE_LSE: tl.constexpr,
    WHOLE: tl.constexpr, LOWERED: tl.constexpr, NATURAL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Count the sinks, normalise, and store the output and the log-sum-exp of a tile of rows."""
    sinks = 0.0
    if SINKS:
        sinks = by_row(
            load_sinks(
                advance(sinks_ptr, head_start, stride_sinks_h), stride_sinks_h, heads, GROUP
            ),
            ROWS, GROUP,
        )  # fmt: skip
    out, lse = finish(
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, sinks,
        SINKS, SEPARATE_LSE, WHOLE, LOWERED, NATURAL,
    )  # fmt: skip
    store_grouped(
        out_ptr, out, start_m, Sq, heads, stride_om, stride_oh, stride_od, COLS, ROWS, GROUP, WIDE
    )
    if STORE_LSE:
        store_grouped(
            lse_ptr, lse[:, None], start_m, Sq, heads, 1, stride_lse_h, 1, 1, ROWS, GROUP, False
        )

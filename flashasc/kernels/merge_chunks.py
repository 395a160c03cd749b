"""Few queries, second step: the states of a sequence's chunks, merged and finished."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.layout import advance
from blocks.masking import key_range
from blocks.softmax import online_init, online_merge

from .split_rows import chunks_of, finish_rows, sequence_of, slot_of
from .state_memory import load_state


@triton.jit
def _merge_chunks_tile(
    task, out_ptr, lse_ptr, rows_ptr, acc_ptr, sinks_ptr, kv_lens_ptr, cu_q_ptr, cu_k_ptr,
    stride_ob, stride_oh, stride_om, stride_od, stride_lse_b, stride_lse_h, stride_sinks_h,
    Hk, group, Sq, Sk, max_q, max_k, diagonal, window_left, window_right, few,
    head_tiles, tiles, chunks, slot_rows,
    Dv: tl.constexpr, COLS: tl.constexpr, BLOCK_COLS: tl.constexpr, ROWS: tl.constexpr,
    MERGE_ROWS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
    BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr, SINKS: tl.constexpr,
    KV_LENS: tl.constexpr, PACKED: tl.constexpr, LAST_KEY: tl.constexpr, PLAIN: tl.constexpr,
    WHOLE: tl.constexpr, LOWERED: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Merge the chunks' states of some rows and columns, in the order of the keys.

    task = (tile of rows * (ROWS / MERGE_ROWS) + part of it) * parts of COLS columns + part. The
    last part ends with the last column, where Dv is no multiple of COLS: what it shares with the
    part before is stored twice, with the same bits.
    """
    PARTS: tl.constexpr = (Dv + COLS - 1) // COLS
    MERGE_M: tl.constexpr = MERGE_ROWS * GROUP
    SEPARATE_LSE: tl.constexpr = (WITH_LSE and not PLAIN) and not WHOLE
    col = task % PARTS * COLS
    if Dv % COLS != 0:
        col = tl.minimum(col, Dv - COLS)
    part = task // PARTS % (ROWS // MERGE_ROWS)
    place = task // PARTS // (ROWS // MERGE_ROWS)
    tile = place % tiles
    batch = place // tiles // Hk
    head_k = place // tiles % Hk
    # the chunks are those of the whole tile of rows
    tile_m = tile // head_tiles * ROWS
    start_m = tile_m + part * MERGE_ROWS
    head_in_group = tile % head_tiles * GROUP
    head = head_k * group + head_in_group
    begin_q, Sq, begin_k, Sk, diagonal = sequence_of(
        batch, kv_lens_ptr, cu_q_ptr, cu_k_ptr, Sq, Sk, max_q, max_k, diagonal, few,
        KV_LENS, PACKED, LAST_KEY,
    )  # fmt: skip
    begin, _, _, end = key_range(
        tile_m, tl.minimum(tile_m + ROWS, Sq), Sk, diagonal - window_left, diagonal + window_right,
        BOUND_LEFT, BOUND_RIGHT,
    )  # fmt: skip
    if start_m < Sq:
        first_chunk, chunk_end = chunks_of(begin, end, CHUNK)
        rows = tl.minimum(Sq - start_m, MERGE_ROWS) * GROUP
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_init(
            MERGE_M, BLOCK_COLS, tl.float32
        )
        for chunk in tl.range(first_chunk, chunk_end, num_stages=STAGES):
            slot = slot_of(batch, chunk, head_k, tile, begin_k, Hk, tiles, chunks, PACKED, CHUNK)
            pivot_c, row_sum_c, row_comp_c, lse_sum_c, lse_comp_c, acc_c, comp_c = load_state(
                advance(rows_ptr, slot, 5 * slot_rows) + part * MERGE_M,
                advance(acc_ptr, slot * slot_rows + part * MERGE_M, 2 * Dv) + col,
                0, rows, slot_rows, 2 * Dv, Dv, COLS, MERGE_M, BLOCK_COLS, PLAIN,
            )  # fmt: skip
            pivot, row_sum, row_sum_comp, lse_both, lse_both_comp, acc, acc_comp = online_merge(
                pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
                pivot_c, row_sum_c, row_comp_c, lse_sum_c, lse_comp_c, acc_c, comp_c,
                WHOLE, NATURAL,
            )  # fmt: skip
            if SEPARATE_LSE:
                # bishengir-compile 1.2.0 aborts on a number that the loop carries for nobody
                lse_sum, lse_sum_comp = lse_both, lse_both_comp
        out_ptr = advance(advance(out_ptr, batch, stride_ob), head, stride_oh)
        out_ptr = advance(advance(out_ptr, begin_q, stride_om), col, stride_od)
        if WITH_LSE:
            lse_ptr = advance(advance(lse_ptr, batch, stride_lse_b), head, stride_lse_h) + begin_q
        # every part of the columns stores the same log-sum-exp
        finish_rows(
            out_ptr, lse_ptr, sinks_ptr,
            pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
            head, start_m, Sq, group - head_in_group, stride_om, stride_oh, stride_od,
            stride_lse_h, stride_sinks_h, COLS, MERGE_ROWS, GROUP, SINKS, WITH_LSE,
            SEPARATE_LSE, WHOLE, LOWERED, NATURAL, WIDE,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "Hk", "group", "Sq", "Sk", "max_q", "max_k", "diagonal", "window_left", "window_right",
        "few", "head_tiles", "tiles", "chunks", "slot_rows", "tasks",
        "stride_lse_b", "stride_lse_h", "stride_sinks_h",
    ]
)  # fmt: skip
def merge_chunks_kernel(
    out_ptr, lse_ptr, rows_ptr, acc_ptr, sinks_ptr, kv_lens_ptr, cu_q_ptr, cu_k_ptr,
    stride_ob, stride_oh, stride_om, stride_od, stride_lse_b, stride_lse_h, stride_sinks_h,
    Hk, group, Sq, Sk, max_q, max_k, diagonal, window_left, window_right, few,
    head_tiles, tiles, chunks, slot_rows, tasks,
    Dv: tl.constexpr, COLS: tl.constexpr, BLOCK_COLS: tl.constexpr, ROWS: tl.constexpr,
    MERGE_ROWS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
    BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr, SINKS: tl.constexpr,
    KV_LENS: tl.constexpr, PACKED: tl.constexpr, LAST_KEY: tl.constexpr, PLAIN: tl.constexpr,
    WHOLE: tl.constexpr, LOWERED: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exp of the states that `attention_split_kernel` left."""
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        _merge_chunks_tile(
            task, out_ptr, lse_ptr, rows_ptr, acc_ptr, sinks_ptr, kv_lens_ptr, cu_q_ptr, cu_k_ptr,
            stride_ob, stride_oh, stride_om, stride_od, stride_lse_b, stride_lse_h, stride_sinks_h,
            Hk, group, Sq, Sk, max_q, max_k, diagonal, window_left, window_right, few,
            head_tiles, tiles, chunks, slot_rows,
            Dv, COLS, BLOCK_COLS, ROWS, MERGE_ROWS, GROUP, CHUNK, BOUND_LEFT, BOUND_RIGHT, SINKS,
            KV_LENS, PACKED, LAST_KEY, PLAIN, WHOLE, LOWERED, WITH_LSE, NATURAL, WIDE, STAGES,
        )  # fmt: skip

"""Attention of few queries to many keys: the keys are cut into chunks, and their states merged.

The heads that share keys stand in one tile with the queries, so that each key is read once. Chunks
have a fixed size and begin at key 0, and how many a sequence has follows from its own length: its
bits do not depend on its batch mates, nor on the room that a cache has.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.gathered import load_grouped
from blocks.layout import advance, load_rows
from blocks.masking import key_range
from blocks.softmax import online_init, online_merge

from .attention_tile import attend_range
from .split_rows import by_row, chunks_of, finish_rows, sequence_of, slot_of
from .state_memory import store_state


@triton.jit
def _attention_split_tile(
    task, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows_ptr, acc_ptr, alibi_ptr, sinks_ptr,
    kv_lens_ptr, cu_q_ptr, cu_k_ptr, table_ptr, scale, cap,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_om, stride_od,
    stride_lse_b, stride_lse_h, stride_alibi_b, stride_alibi_h, stride_sinks_h, stride_table_b,
    Hk, group, Sq, Sk, max_q, max_k, pages, diagonal, window_left, window_right, few,
    head_tiles, tiles, chunks, slot_rows,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
    PAGE: tl.constexpr,
    BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr, ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr, SINKS: tl.constexpr, KV_LENS: tl.constexpr, PACKED: tl.constexpr,
    LAST_KEY: tl.constexpr, ONE_CHUNK: tl.constexpr, METHOD: tl.constexpr, SPLIT: tl.constexpr,
    SEGMENT: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr,
    COMP_DTYPE: tl.constexpr, DOT_PRECISION: tl.constexpr, SPLIT_LOOP: tl.constexpr,
    WIDE: tl.constexpr, K_BY_COLUMNS: tl.constexpr, V_BY_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Attend from one tile of rows to one chunk of keys.

    task = ((batch * Hk + key head) * tiles + tile) * chunks + chunk.
    """
    BLOCK_M: tl.constexpr = ROWS * GROUP
    chunk = task % chunks
    place = task // chunks
    tile = place % tiles
    batch = place // tiles // Hk
    head_k = place // tiles % Hk
    start_m = tile // head_tiles * ROWS
    head_in_group = tile % head_tiles * GROUP
    head = head_k * group + head_in_group
    begin_q, Sq, begin_k, Sk, diagonal = sequence_of(
        batch, kv_lens_ptr, cu_q_ptr, cu_k_ptr, Sq, Sk, max_q, max_k, diagonal, few,
        KV_LENS, PACKED, LAST_KEY,
    )  # fmt: skip
    first = diagonal - window_left
    last = diagonal + window_right
    begin, all_begin, all_end, end = key_range(
        start_m, tl.minimum(start_m + ROWS, Sq), Sk, first, last, BOUND_LEFT, BOUND_RIGHT
    )
    chunk_start = chunk * CHUNK
    first_chunk, chunk_end = chunks_of(begin, end, CHUNK)
    if ((chunk >= first_chunk) & (chunk < chunk_end)) & (start_m < Sq):
        begin = tl.maximum(begin, chunk_start)
        all_begin = tl.maximum(all_begin, chunk_start)
        end = tl.minimum(end, chunk_start + CHUNK)
        all_end = tl.minimum(all_end, end)
        start_n = chunk_start
        if BOUND_LEFT:
            start_n = begin // BLOCK_N * BLOCK_N
        q_ptr = advance(advance(q_ptr, batch, stride_qb), head, stride_qh)
        k_ptr = advance(k_ptr, head_k, stride_kh)
        v_ptr = advance(v_ptr, head_k, stride_vh)
        if PAGE:
            table_ptr = advance(table_ptr, batch, stride_table_b)
        else:
            k_ptr = advance(advance(k_ptr, batch, stride_kb), begin_k, stride_kn)
            v_ptr = advance(advance(v_ptr, batch, stride_vb), begin_k, stride_vn)
        heads = group - head_in_group
        slope = 0.0
        if ALIBI:
            alibi_ptr = advance(advance(alibi_ptr, batch, stride_alibi_b), head, stride_alibi_h)
            slopes = load_rows(alibi_ptr, 0, heads, GROUP, stride_alibi_h).to(tl.float32)
            slope = by_row(slopes, ROWS, GROUP)[:, None]
        q = load_grouped(
            advance(q_ptr, begin_q, stride_qm), start_m, Sq, heads, stride_qm, stride_qh, stride_qd,
            D, ROWS, GROUP, BLOCK_D, WIDE,
        )  # [BLOCK_M, BLOCK_D]  # fmt: skip
        row = tl.broadcast_to(start_m + tl.arange(0, ROWS)[:, None], (ROWS, GROUP))
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = attend_range(
            q, k_ptr, v_ptr, None, None, slope, scale, cap, start_m, start_n,
            Sq, begin, all_begin, all_end, end, tl.reshape(row, (BLOCK_M,)), diagonal, first, last,
            stride_kn, stride_kd, stride_vn, stride_vd, 0, 0, 0, 0,
            D, Dv, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, BOUND_LEFT, BOUND_RIGHT,
            "none", "none", ALIBI, SOFTCAP, METHOD, SPLIT, SEGMENT, WITH_LSE, NATURAL, COMP_DTYPE,
            DOT_PRECISION, SPLIT_LOOP, WIDE, K_BY_COLUMNS, V_BY_COLUMNS,
            table_ptr, pages, stride_kb, stride_vb, PAGE,
        )  # fmt: skip
        if ONE_CHUNK:
            WHOLE: tl.constexpr = SPLIT or q.dtype == tl.float32
            # as where there are more chunks: the same bits
            pivot_0, row_sum_0, row_comp_0, lse_sum_0, lse_comp_0, acc_0, comp_0 = online_init(
                BLOCK_M, BLOCK_DV, tl.float32
            )
            pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_merge(
                pivot_0, row_sum_0, row_comp_0, lse_sum_0, lse_comp_0, acc_0, comp_0,
                pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp.to(tl.float32),
                WHOLE, NATURAL,
            )  # fmt: skip
            out_ptr = advance(advance(out_ptr, batch, stride_ob), head, stride_oh)
            if WITH_LSE:
                lse_ptr = advance(advance(lse_ptr, batch, stride_lse_b), head, stride_lse_h)
                lse_ptr += begin_q
            finish_rows(
                advance(out_ptr, begin_q, stride_om), lse_ptr, sinks_ptr,
                pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
                head, start_m, Sq, heads, stride_om, stride_oh, stride_od,
                stride_lse_h, stride_sinks_h, Dv, ROWS, GROUP, SINKS, WITH_LSE,
                (WITH_LSE and METHOD != "plain") and not WHOLE, WHOLE, q.dtype == tl.float16,
                NATURAL, WIDE,
            )  # fmt: skip
        else:
            slot = slot_of(batch, chunk, head_k, tile, begin_k, Hk, tiles, chunks, PACKED, CHUNK)
            store_state(
                advance(rows_ptr, slot, 5 * slot_rows), advance(acc_ptr, slot, 2 * Dv * slot_rows),
                pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
                0, tl.minimum(Sq - start_m, ROWS) * GROUP, slot_rows, 2 * Dv, Dv,
                METHOD == "plain", False,
            )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "Hk", "group", "Sq", "Sk", "max_q", "max_k", "pages", "diagonal", "window_left",
        "window_right", "few", "head_tiles", "tiles", "chunks", "slot_rows", "tasks",
        "stride_lse_b", "stride_lse_h", "stride_alibi_b", "stride_alibi_h", "stride_sinks_h",
        "stride_table_b",
    ]
)  # fmt: skip
def attention_split_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows_ptr, acc_ptr, alibi_ptr, sinks_ptr,
    kv_lens_ptr, cu_q_ptr, cu_k_ptr, table_ptr, scale, cap,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_om, stride_od,
    stride_lse_b, stride_lse_h, stride_alibi_b, stride_alibi_h, stride_sinks_h, stride_table_b,
    Hk, group, Sq, Sk, max_q, max_k, pages, diagonal, window_left, window_right, few,
    head_tiles, tiles, chunks, slot_rows, tasks,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
    PAGE: tl.constexpr,
    BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr, ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr, SINKS: tl.constexpr, KV_LENS: tl.constexpr, PACKED: tl.constexpr,
    LAST_KEY: tl.constexpr, ONE_CHUNK: tl.constexpr, METHOD: tl.constexpr, SPLIT: tl.constexpr,
    SEGMENT: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr,
    COMP_DTYPE: tl.constexpr, DOT_PRECISION: tl.constexpr, SPLIT_LOOP: tl.constexpr,
    WIDE: tl.constexpr, K_BY_COLUMNS: tl.constexpr, V_BY_COLUMNS: tl.constexpr,
    CORE_LOOP: tl.constexpr,
):  # fmt: skip
    """Attention of a few queries to each chunk of the keys.

    Queries are [B, Hq, Sq, D], keys [B, Hk, Sk, D] and values [B, Hk, Sk, Dv]; packed sequences
    have no stride along the batch. With PAGE keys and values are [pages, Hk, PAGE, D or Dv], and
    strides along the batch are those of pages. Raw states go to rows [slots, 5, slot_rows] and acc
    [slots, slot_rows, 2, Dv]; with ONE_CHUNK the output and the log-sum-exp are written instead.
    CORE_LOOP: one program per core, which loops over the tasks (NPU); otherwise one per task (GPU).
    """
    if CORE_LOOP:
        for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
            _attention_split_tile(
                task,
                q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows_ptr, acc_ptr, alibi_ptr,
                sinks_ptr, kv_lens_ptr, cu_q_ptr, cu_k_ptr, table_ptr, scale, cap,
                stride_qb, stride_qh, stride_qm, stride_qd,
                stride_kb, stride_kh, stride_kn, stride_kd,
                stride_vb, stride_vh, stride_vn, stride_vd,
                stride_ob, stride_oh, stride_om, stride_od,
                stride_lse_b, stride_lse_h, stride_alibi_b, stride_alibi_h, stride_sinks_h,
                stride_table_b, Hk, group, Sq, Sk, max_q, max_k, pages, diagonal, window_left,
                window_right, few, head_tiles, tiles, chunks, slot_rows,
                D, Dv, BLOCK_D, BLOCK_DV, BLOCK_N, ROWS, GROUP, CHUNK, PAGE,
                BOUND_LEFT, BOUND_RIGHT, ALIBI, SOFTCAP, SINKS, KV_LENS, PACKED, LAST_KEY,
                ONE_CHUNK, METHOD, SPLIT, SEGMENT, WITH_LSE, NATURAL, COMP_DTYPE, DOT_PRECISION,
                SPLIT_LOOP, WIDE, K_BY_COLUMNS, V_BY_COLUMNS,
            )  # fmt: skip
    else:
        _attention_split_tile(
            tl.program_id(0),
            q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows_ptr, acc_ptr, alibi_ptr,
            sinks_ptr, kv_lens_ptr, cu_q_ptr, cu_k_ptr, table_ptr, scale, cap,
            stride_qb, stride_qh, stride_qm, stride_qd,
            stride_kb, stride_kh, stride_kn, stride_kd,
            stride_vb, stride_vh, stride_vn, stride_vd,
            stride_ob, stride_oh, stride_om, stride_od,
            stride_lse_b, stride_lse_h, stride_alibi_b, stride_alibi_h, stride_sinks_h,
            stride_table_b, Hk, group, Sq, Sk, max_q, max_k, pages, diagonal, window_left,
            window_right, few, head_tiles, tiles, chunks, slot_rows,
            D, Dv, BLOCK_D, BLOCK_DV, BLOCK_N, ROWS, GROUP, CHUNK, PAGE,
            BOUND_LEFT, BOUND_RIGHT, ALIBI, SOFTCAP, SINKS, KV_LENS, PACKED, LAST_KEY,
            ONE_CHUNK, METHOD, SPLIT, SEGMENT, WITH_LSE, NATURAL, COMP_DTYPE, DOT_PRECISION,
            SPLIT_LOOP, WIDE, K_BY_COLUMNS, V_BY_COLUMNS,
        )  # fmt: skip

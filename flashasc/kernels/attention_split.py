"""Attention of few queries to many keys: the keys are cut into chunks, and their states merged.

The heads that share keys stand in one tile with the queries, so that each key is read once. Chunks
have a fixed size and begin at key 0, and how many a sequence has follows from its own length: its
bits do not depend on its batch mates, nor on the room that a cache has.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.layout import advance, clamped, load_grouped, sequence, store_grouped
from blocks.masking import key_range
from blocks.softmax import add_sink, online_finalize, online_init, online_merge

from .attention_scores import sink_logit
from .attention_tile import attend_range
from .state_memory import load_state, store_state


@triton.jit
def _by_row(ptr, head_start, heads, stride, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """Pointers to one number a head, [ROWS * GROUP], for rows as in `load_grouped`."""
    head = tl.minimum(head_start + tl.arange(0, GROUP), heads - 1)
    spread = tl.broadcast_to((head * stride)[None, :], (ROWS, GROUP))
    return ptr + tl.reshape(spread, (ROWS * GROUP,))


@triton.jit
def _sequence_of(
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
def _chunks_of(begin, end, CHUNK: tl.constexpr):
    """(first, end): the chunks that hold the keys [begin, end); one, where there are no keys."""
    first = tl.minimum(begin, tl.maximum(end - 1, 0)) // CHUNK
    return first, tl.maximum((end + CHUNK - 1) // CHUNK, first + 1)


@triton.jit
def _slot(
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
def _finish(
    out_ptr, lse_ptr, sinks_ptr, pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
    head_start, Hq, start_m, Sq, heads, stride_om, stride_oh, stride_od, stride_lse_h,
    stride_sinks_h, COLS: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr,
    SINKS: tl.constexpr, STORE_LSE: tl.constexpr, SEPARATE_LSE: tl.constexpr,
    WHOLE: tl.constexpr, NATURAL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Count the sinks, normalise, and store the output and the log-sum-exp of a tile of rows."""
    if SINKS:
        sinks = _by_row(sinks_ptr, head_start, Hq, stride_sinks_h, ROWS, GROUP)
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = add_sink(
            pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
            sink_logit(sinks, NATURAL), WHOLE, NATURAL,
        )  # fmt: skip
    out, lse = online_finalize(
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, SEPARATE_LSE, NATURAL
    )
    store_grouped(
        out_ptr, out, start_m, Sq, heads, stride_om, stride_oh, stride_od, COLS, ROWS, GROUP, WIDE
    )
    if STORE_LSE:
        store_grouped(
            lse_ptr, lse[:, None], start_m, Sq, heads, 1, stride_lse_h, 1, 1, ROWS, GROUP, False
        )


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
    PAGE: tl.constexpr, PAGE_BY_PAGE: tl.constexpr,
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
    begin_q, Sq, begin_k, Sk, diagonal = _sequence_of(
        batch, kv_lens_ptr, cu_q_ptr, cu_k_ptr, Sq, Sk, max_q, max_k, diagonal, few,
        KV_LENS, PACKED, LAST_KEY,
    )  # fmt: skip
    first = diagonal - window_left
    last = diagonal + window_right
    begin, all_begin, all_end, end = key_range(
        start_m, tl.minimum(start_m + ROWS, Sq), Sk, first, last, BOUND_LEFT, BOUND_RIGHT
    )
    chunk_start = chunk * CHUNK
    first_chunk, chunk_end = _chunks_of(begin, end, CHUNK)
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
        slope = 0.0
        if ALIBI:
            slopes = _by_row(
                advance(alibi_ptr, batch, stride_alibi_b), head, Hk * group, stride_alibi_h,
                ROWS, GROUP,
            )  # fmt: skip
            slope = tl.load(slopes).to(tl.float32)[:, None]
        heads = group - head_in_group
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
            table_ptr, pages, stride_kb, stride_vb, PAGE, PAGE_BY_PAGE,
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
            _finish(
                advance(out_ptr, begin_q, stride_om), lse_ptr, sinks_ptr,
                pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
                head, Hk * group, start_m, Sq, heads, stride_om, stride_oh, stride_od,
                stride_lse_h, stride_sinks_h, Dv, ROWS, GROUP, SINKS, WITH_LSE,
                (WITH_LSE and METHOD != "plain") and not WHOLE, WHOLE, NATURAL, WIDE,
            )  # fmt: skip
        else:
            slot = _slot(batch, chunk, head_k, tile, begin_k, Hk, tiles, chunks, PACKED, CHUNK)
            store_state(
                advance(rows_ptr, slot, 5 * slot_rows), advance(acc_ptr, slot, 2 * Dv * slot_rows),
                pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
                0, tl.minimum(Sq - start_m, ROWS) * GROUP, slot_rows, 2 * Dv, Dv,
                METHOD == "plain", False,
            )  # fmt: skip


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
    WHOLE: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr, WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Merge the chunks' states of some rows and columns, in the order of the keys.

    task = (tile of rows * (ROWS / MERGE_ROWS) + part of it) * (Dv / COLS) + part of the columns.
    """
    MERGE_M: tl.constexpr = MERGE_ROWS * GROUP
    col = task % (Dv // COLS) * COLS
    part = task // (Dv // COLS) % (ROWS // MERGE_ROWS)
    place = task // (Dv // COLS) // (ROWS // MERGE_ROWS)
    tile = place % tiles
    batch = place // tiles // Hk
    head_k = place // tiles % Hk
    # the chunks are those of the whole tile of rows
    tile_m = tile // head_tiles * ROWS
    start_m = tile_m + part * MERGE_ROWS
    head_in_group = tile % head_tiles * GROUP
    head = head_k * group + head_in_group
    begin_q, Sq, begin_k, Sk, diagonal = _sequence_of(
        batch, kv_lens_ptr, cu_q_ptr, cu_k_ptr, Sq, Sk, max_q, max_k, diagonal, few,
        KV_LENS, PACKED, LAST_KEY,
    )  # fmt: skip
    begin, all_begin, all_end, end = key_range(
        tile_m, tl.minimum(tile_m + ROWS, Sq), Sk, diagonal - window_left, diagonal + window_right,
        BOUND_LEFT, BOUND_RIGHT,
    )  # fmt: skip
    if start_m < Sq:
        first_chunk, chunk_end = _chunks_of(begin, end, CHUNK)
        rows = tl.minimum(Sq - start_m, MERGE_ROWS) * GROUP
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_init(
            MERGE_M, BLOCK_COLS, tl.float32
        )
        for chunk in tl.range(first_chunk, chunk_end, num_stages=STAGES):
            slot = _slot(batch, chunk, head_k, tile, begin_k, Hk, tiles, chunks, PACKED, CHUNK)
            pivot_c, row_sum_c, row_comp_c, lse_sum_c, lse_comp_c, acc_c, comp_c = load_state(
                advance(rows_ptr, slot, 5 * slot_rows) + part * MERGE_M,
                advance(acc_ptr, slot * slot_rows + part * MERGE_M, 2 * Dv) + col,
                0, rows, slot_rows, 2 * Dv, Dv, COLS, MERGE_M, BLOCK_COLS, PLAIN,
            )  # fmt: skip
            pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_merge(
                pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
                pivot_c, row_sum_c, row_comp_c, lse_sum_c, lse_comp_c, acc_c, comp_c,
                WHOLE, NATURAL,
            )  # fmt: skip
        out_ptr = advance(advance(out_ptr, batch, stride_ob), head, stride_oh)
        out_ptr = advance(advance(out_ptr, begin_q, stride_om), col, stride_od)
        if WITH_LSE:
            lse_ptr = advance(advance(lse_ptr, batch, stride_lse_b), head, stride_lse_h) + begin_q
        # every part of the columns stores the same log-sum-exp
        _finish(
            out_ptr, lse_ptr, sinks_ptr,
            pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
            head, Hk * group, start_m, Sq, group - head_in_group, stride_om, stride_oh, stride_od,
            stride_lse_h, stride_sinks_h, COLS, MERGE_ROWS, GROUP, SINKS, WITH_LSE,
            (WITH_LSE and not PLAIN) and not WHOLE, WHOLE, NATURAL, WIDE,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "Hk", "group", "Sq", "Sk", "max_q", "max_k", "pages", "diagonal", "window_left",
        "window_right", "few", "head_tiles", "tiles", "chunks", "slot_rows", "tasks", "stride_lse_b",
        "stride_lse_h", "stride_alibi_b", "stride_alibi_h", "stride_sinks_h", "stride_table_b",
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
    PAGE: tl.constexpr, PAGE_BY_PAGE: tl.constexpr,
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
                task, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows_ptr, acc_ptr, alibi_ptr, sinks_ptr,
                kv_lens_ptr, cu_q_ptr, cu_k_ptr, table_ptr, scale, cap,
                stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
                stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_om, stride_od,
                stride_lse_b, stride_lse_h, stride_alibi_b, stride_alibi_h, stride_sinks_h,
                stride_table_b, Hk, group, Sq, Sk, max_q, max_k, pages, diagonal, window_left,
                window_right, few, head_tiles, tiles, chunks, slot_rows,
                D, Dv, BLOCK_D, BLOCK_DV, BLOCK_N, ROWS, GROUP, CHUNK, PAGE, PAGE_BY_PAGE,
                BOUND_LEFT, BOUND_RIGHT, ALIBI, SOFTCAP, SINKS, KV_LENS, PACKED, LAST_KEY, ONE_CHUNK,
                METHOD, SPLIT, SEGMENT, WITH_LSE, NATURAL, COMP_DTYPE, DOT_PRECISION, SPLIT_LOOP,
                WIDE, K_BY_COLUMNS, V_BY_COLUMNS,
            )  # fmt: skip
    else:
        _attention_split_tile(
            tl.program_id(0), q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows_ptr, acc_ptr, alibi_ptr, sinks_ptr,
            kv_lens_ptr, cu_q_ptr, cu_k_ptr, table_ptr, scale, cap,
            stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
            stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_om, stride_od,
            stride_lse_b, stride_lse_h, stride_alibi_b, stride_alibi_h, stride_sinks_h,
            stride_table_b, Hk, group, Sq, Sk, max_q, max_k, pages, diagonal, window_left,
            window_right, few, head_tiles, tiles, chunks, slot_rows,
            D, Dv, BLOCK_D, BLOCK_DV, BLOCK_N, ROWS, GROUP, CHUNK, PAGE, PAGE_BY_PAGE,
            BOUND_LEFT, BOUND_RIGHT, ALIBI, SOFTCAP, SINKS, KV_LENS, PACKED, LAST_KEY, ONE_CHUNK,
            METHOD, SPLIT, SEGMENT, WITH_LSE, NATURAL, COMP_DTYPE, DOT_PRECISION, SPLIT_LOOP,
            WIDE, K_BY_COLUMNS, V_BY_COLUMNS,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "Hk", "group", "Sq", "Sk", "max_q", "max_k", "diagonal", "window_left", "window_right",
        "few", "head_tiles", "tiles", "chunks", "slot_rows", "tasks", "stride_lse_b", "stride_lse_h",
        "stride_sinks_h",
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
    WHOLE: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr, WIDE: tl.constexpr,
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
            KV_LENS, PACKED, LAST_KEY, PLAIN, WHOLE, WITH_LSE, NATURAL, WIDE, STAGES,
        )  # fmt: skip

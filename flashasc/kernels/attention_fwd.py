"""Attention forward: one tile function under a grid schedule (GPU) and a core loop (NPU)."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.constants import INF
from blocks.layout import advance, clamped, load_tile, sequence, store_rows, store_tile
from blocks.masking import key_range

from .attention_finish import finish, load_sinks
from .attention_order import place_of
from .attention_tile import attend_range
from .peer_store import find_piece, find_place, store_owned
from .state_memory import store_state


@triton.jit
def infinite_or_nan(tile):
    """Where a tile is not finite: bool of its shape."""
    return (tl.abs(tile) < INF) == 0


@triton.jit
def _attention_fwd_tile(
    batch, head, tile, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, mask_ptr, bias_ptr, alibi_ptr,
    sinks_ptr, kv_lens_ptr, cu_q_ptr, cu_k_ptr, diagonals_ptr, k_desc, v_desc, scale, cap,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_om, stride_od,
    stride_mask_b, stride_mask_h, stride_mask_m, stride_mask_n,
    stride_bias_b, stride_bias_h, stride_bias_m, stride_bias_n,
    stride_lse_b, stride_lse_h, stride_alibi_b, stride_alibi_h, stride_sinks_h,
    group, Sq, Sk, max_q, max_k, diagonal, window_left, window_right, few,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr,
    ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, KV_LENS: tl.constexpr,
    PACKED: tl.constexpr, DIAGONALS: tl.constexpr, BOTTOM_RIGHT: tl.constexpr,
    STATE: tl.constexpr, METHOD: tl.constexpr, SPLIT: tl.constexpr,
    SEGMENT: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr,
    COMP_DTYPE: tl.constexpr, DOT_PRECISION: tl.constexpr, SPLIT_LOOP: tl.constexpr,
    WIDE: tl.constexpr, Q_BY_COLUMNS: tl.constexpr, K_BY_COLUMNS: tl.constexpr,
    V_BY_COLUMNS: tl.constexpr, PAIRS: tl.constexpr, DESCRIPTORS: tl.constexpr,
    SETTLE: tl.constexpr, REPAIR: tl.constexpr, ONLY_INFINITE: tl.constexpr = False,
    memories_ptr=None, pieces_ptr=None, failed_ptr=None, pieces=0, out_at=0, lse_at=0, rank=0,
    first_head=0, all_heads=0,
    PEERS: tl.constexpr = False, HEADS_FIRST: tl.constexpr = True, LEVELS: tl.constexpr = 1,
):  # fmt: skip
    """Compute one tile of query rows of one head.

    STATE: store the rows' raw state, see `state_memory`, in lse_ptr and out_ptr, instead of their
    output; sinks then are for whoever finishes it. DIAGONALS: each sequence brings its own.
    PACKED: Sq and Sk are the tokens of all sequences, max_q and max_k the most that one counts
    with, and strides along the batch are 0. PEERS: rows belong to several ranks, and are stored
    with them, see `store_owned`; head 0 is their first_head of all_heads. REPAIR: see
    `blocks.softmax.online_update`. ONLY_INFINITE: the tile is stored, without what REPAIR puts
    right: store what infinite values make of it, and leave the rest as it is.

    Returns:
        int32: 1 where REPAIR is needed: some sum is infinite or NaN. Otherwise 0.
    """
    start_m = tile * BLOCK_M
    q_ptr = advance(advance(q_ptr, batch, stride_qb), head, stride_qh)
    k_ptr = advance(advance(k_ptr, batch, stride_kb), head // group, stride_kh)
    v_ptr = advance(advance(v_ptr, batch, stride_vb), head // group, stride_vh)
    out_ptr = advance(advance(out_ptr, batch, stride_ob), head, stride_oh)
    if WITH_LSE or STATE:
        lse_ptr = advance(advance(lse_ptr, batch, stride_lse_b), head, stride_lse_h)
    if MASK != "none":
        mask_ptr = advance(advance(mask_ptr, batch, stride_mask_b), head, stride_mask_h)
    if BIAS != "none":
        bias_ptr = advance(advance(bias_ptr, batch, stride_bias_b), head, stride_bias_h)
    slope = 0.0
    if ALIBI:
        alibi_ptr = advance(advance(alibi_ptr, batch, stride_alibi_b), head, stride_alibi_h)
        slope = tl.load(alibi_ptr).to(tl.float32)
    # where the sequence's key 0 lies in a descriptor
    batch_k = batch
    begin_k = 0
    # between the five rows of a state
    rows_stride = Sq
    if PACKED:
        begin_q, Sq = sequence(cu_q_ptr, batch, Sq, max_q)
        # those with few queries are the split kernel's
        Sq = tl.where(Sq > few, Sq, 0)
        begin_k, Sk = sequence(cu_k_ptr, batch, Sk, max_k)
        batch_k = 0
        q_ptr = advance(q_ptr, begin_q, stride_qm)
        k_ptr = advance(k_ptr, begin_k, stride_kn)
        v_ptr = advance(v_ptr, begin_k, stride_vn)
        out_ptr = advance(out_ptr, begin_q, stride_om)
        if WITH_LSE or STATE:
            lse_ptr += begin_q
        if BOTTOM_RIGHT:
            diagonal = Sk - Sq
    elif KV_LENS:
        Sk = clamped(tl.load(kv_lens_ptr + batch), Sk)
    if DIAGONALS:
        # as far off as no sequence is: a window can be added to it
        diagonal = clamped(tl.load(diagonals_ptr + batch) + 2**29, 2**30) - 2**29

    if PEERS:
        # while q is on its way: behind the last key the program would stand still for it
        piece = find_piece(pieces_ptr, failed_ptr, pieces, start_m, LEVELS)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    first = diagonal - window_left
    last = diagonal + window_right
    begin, all_begin, all_end, end = key_range(
        start_m, tl.minimum(start_m + BLOCK_M, Sq), Sk, first, last, BOUND_LEFT, BOUND_RIGHT
    )
    q = load_tile(
        q_ptr,
        start_m,
        Sq,
        stride_qm,
        stride_qd,
        D,
        BLOCK_M,
        BLOCK_D,
        CHECK_ROWS=True,
        WIDE=WIDE,
        BY_COLUMNS=Q_BY_COLUMNS,
    )  # [BLOCK_M, BLOCK_D]

    # what infinite values leave does not depend on digits: weights of one number tell. It is rare,
    # and has to be compiled each time: one loop, by pointers
    SUM_METHOD: tl.constexpr = "plain" if ONLY_INFINITE else METHOD
    SPLIT_WEIGHTS: tl.constexpr = SPLIT and not ONLY_INFINITE
    KEEP_LSE: tl.constexpr = WITH_LSE and not ONLY_INFINITE
    NATURAL_PIVOTS: tl.constexpr = (BIAS != "none" or ALIBI) if ONLY_INFINITE else NATURAL
    # tiles are counted from key 0 whatever a row sees
    start_n = 0
    if BOUND_LEFT:
        start_n = begin // BLOCK_N * BLOCK_N
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = attend_range(
        q, k_ptr, v_ptr, mask_ptr, bias_ptr, slope, scale, cap, start_m, start_n,
        Sq, begin, all_begin, all_end, end, offs_m, diagonal, first, last,
        stride_kn, stride_kd, stride_vn, stride_vd,
        stride_mask_m, stride_mask_n, stride_bias_m, stride_bias_n,
        D, Dv, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, BOUND_LEFT, BOUND_RIGHT,
        MASK, BIAS, ALIBI, SOFTCAP, SUM_METHOD, SPLIT_WEIGHTS, SEGMENT, KEEP_LSE, NATURAL_PIVOTS,
        COMP_DTYPE, DOT_PRECISION, SPLIT_LOOP and not ONLY_INFINITE, WIDE, K_BY_COLUMNS,
        V_BY_COLUMNS, None, 0, 0, 0, 0, PAIRS and not ONLY_INFINITE,
        k_desc, v_desc, batch_k, head // group, begin_k, False if ONLY_INFINITE else DESCRIPTORS,
        SETTLE, REPAIR, ONLY_INFINITE,
    )  # fmt: skip
    spoiled = 0
    chosen = None
    if ONLY_INFINITE:
        chosen = infinite_or_nan(acc)
        # the first stores are other threads'
        tl.debug_barrier()
    elif REPAIR:
        spoiled = tl.max(tl.max(infinite_or_nan(acc).to(tl.int32), axis=1), axis=0)
    if PEERS:
        # on its way while the rows are finished; before, it would be one more thing to keep
        to_out, to_lse, end_m = find_place(
            memories_ptr, pieces_ptr, out_ptr, lse_ptr, tl.maximum(piece, 0), out_at, lse_at, rank,
            batch, first_head + head, all_heads, start_m, Dv, KEEP_LSE, HEADS_FIRST,
        )  # fmt: skip
    WHOLE: tl.constexpr = SPLIT_WEIGHTS or v_ptr.dtype.element_ty == tl.float32
    if STATE:
        store_state(
            lse_ptr, out_ptr, pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
            start_m, Sq, rows_stride, stride_om, Dv, METHOD == "plain", WIDE, chosen,
        )  # fmt: skip
    else:
        sink = 0.0
        if SINKS:
            sink = load_sinks(advance(sinks_ptr, head, stride_sinks_h), 1, 1, 0)
        out, lse = finish(
            pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, sink,
            SINKS, (KEEP_LSE and SUM_METHOD != "plain") and not WHOLE, WHOLE,
            v_ptr.dtype.element_ty == tl.float16, NATURAL_PIVOTS,
        )  # fmt: skip
        if PEERS:
            store_owned(
                to_out, to_lse, end_m, memories_ptr, pieces_ptr, out_ptr, lse_ptr, piece, out_at,
                lse_at, rank, out, lse, batch, first_head + head, all_heads, start_m, Sq,
                Dv, KEEP_LSE, HEADS_FIRST, chosen,
            )  # fmt: skip
        else:
            store_tile(out_ptr, out, start_m, Sq, stride_om, stride_od, Dv, WIDE, chosen)
            if KEEP_LSE:
                store_rows(lse_ptr, lse, start_m, Sq)
    return spoiled


# sizes, and strides of single numbers, are not worth a compilation each
@triton.jit(
    do_not_specialize=[
        "Hq", "group", "Sq", "Sk", "max_q", "max_k", "diagonal", "window_left", "window_right",
        "few", "tiles_m", "tasks", "sequences", "together",
        "stride_lse_b", "stride_lse_h", "stride_alibi_b", "stride_alibi_h", "stride_sinks_h",
    ]
)  # fmt: skip
def attention_fwd_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, mask_ptr, bias_ptr, alibi_ptr, sinks_ptr,
    kv_lens_ptr, cu_q_ptr, cu_k_ptr, diagonals_ptr, order_ptr, k_desc, v_desc, scale, cap,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_om, stride_od,
    stride_mask_b, stride_mask_h, stride_mask_m, stride_mask_n,
    stride_bias_b, stride_bias_h, stride_bias_m, stride_bias_n,
    stride_lse_b, stride_lse_h, stride_alibi_b, stride_alibi_h, stride_sinks_h,
    Hq, group, Sq, Sk, max_q, max_k, diagonal, window_left, window_right, few, tiles_m, tasks,
    sequences, together,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr,
    ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, KV_LENS: tl.constexpr,
    PACKED: tl.constexpr, DIAGONALS: tl.constexpr, BOTTOM_RIGHT: tl.constexpr,
    STATE: tl.constexpr, METHOD: tl.constexpr, SPLIT: tl.constexpr,
    SEGMENT: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr,
    COMP_DTYPE: tl.constexpr, DOT_PRECISION: tl.constexpr, SPLIT_LOOP: tl.constexpr,
    WIDE: tl.constexpr, Q_BY_COLUMNS: tl.constexpr, K_BY_COLUMNS: tl.constexpr,
    V_BY_COLUMNS: tl.constexpr, PAIRS: tl.constexpr, DESCRIPTORS: tl.constexpr,
    SETTLE: tl.constexpr, REPAIR: tl.constexpr, CORE_LOOP: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    """Attention of [B, Hq, Sq, D] queries to [B, Hk, Sk, D] keys and [B, Hk, Sk, Dv] values.

    CORE_LOOP: one program per core, which loops over the tasks (NPU); otherwise one program per
    task (GPU). ORDER: see `place_of`.
    """
    if CORE_LOOP:
        for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
            batch, head, tile = place_of(
                task, tasks, order_ptr, sequences, Hq, tiles_m, together, ORDER
            )
            _attention_fwd_tile(
                batch, head, tile, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, mask_ptr, bias_ptr,
                alibi_ptr, sinks_ptr, kv_lens_ptr, cu_q_ptr, cu_k_ptr, diagonals_ptr, k_desc,
                v_desc, scale, cap,
                stride_qb, stride_qh, stride_qm, stride_qd,
                stride_kb, stride_kh, stride_kn, stride_kd,
                stride_vb, stride_vh, stride_vn, stride_vd,
                stride_ob, stride_oh, stride_om, stride_od,
                stride_mask_b, stride_mask_h, stride_mask_m, stride_mask_n,
                stride_bias_b, stride_bias_h, stride_bias_m, stride_bias_n,
                stride_lse_b, stride_lse_h, stride_alibi_b, stride_alibi_h, stride_sinks_h,
                group, Sq, Sk, max_q, max_k, diagonal, window_left, window_right, few,
                D, Dv, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, BOUND_LEFT, BOUND_RIGHT,
                MASK, BIAS, ALIBI, SOFTCAP, SINKS, KV_LENS, PACKED, DIAGONALS, BOTTOM_RIGHT, STATE,
                METHOD, SPLIT, SEGMENT, WITH_LSE, NATURAL, COMP_DTYPE, DOT_PRECISION, SPLIT_LOOP,
                WIDE, Q_BY_COLUMNS, K_BY_COLUMNS, V_BY_COLUMNS, PAIRS, DESCRIPTORS, SETTLE,
                REPAIR,
            )  # fmt: skip
    else:
        batch, head, tile = place_of(
            tl.program_id(0), tasks, order_ptr, sequences, Hq, tiles_m, together, ORDER
        )
        if ORDER == "longest":
            # there are programs for as many tiles as there may be
            if batch < 0:
                return
        spoiled = 1
        for turn in tl.static_range(2 if REPAIR else 1):
            if spoiled > 0:
                # always 0, which the compiler cannot tell in the second turn: it would keep what it
                # knows from the first in registers, throughout that one's loop
                same = spoiled - 1
                spoiled = _attention_fwd_tile(
                    batch + same, head + same, tile + same, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
                    mask_ptr, bias_ptr, alibi_ptr, sinks_ptr, kv_lens_ptr, cu_q_ptr, cu_k_ptr,
                    diagonals_ptr, k_desc, v_desc, scale, cap,
                    stride_qb, stride_qh, stride_qm, stride_qd,
                    stride_kb, stride_kh, stride_kn, stride_kd,
                    stride_vb, stride_vh, stride_vn, stride_vd,
                    stride_ob, stride_oh, stride_om, stride_od,
                    stride_mask_b, stride_mask_h, stride_mask_m, stride_mask_n,
                    stride_bias_b, stride_bias_h, stride_bias_m, stride_bias_n,
                    stride_lse_b, stride_lse_h, stride_alibi_b, stride_alibi_h, stride_sinks_h,
                    group, Sq, Sk, max_q, max_k, diagonal, window_left, window_right, few,
                    D, Dv, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, BOUND_LEFT, BOUND_RIGHT,
                    MASK, BIAS, ALIBI, SOFTCAP, SINKS, KV_LENS, PACKED, DIAGONALS, BOTTOM_RIGHT,
                    STATE, METHOD, SPLIT, SEGMENT, WITH_LSE, NATURAL, COMP_DTYPE, DOT_PRECISION,
                    SPLIT_LOOP, WIDE, Q_BY_COLUMNS, K_BY_COLUMNS, V_BY_COLUMNS, PAIRS, DESCRIPTORS,
                    SETTLE, REPAIR, turn == 1,
                )  # fmt: skip

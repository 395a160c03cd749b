"""Attention forward whose output rows go straight to the ranks that own them; for GPUs."""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_fwd import _attention_fwd_tile
from .attention_order import place_of


@triton.jit(
    do_not_specialize=[
        "Hq", "group", "Sq", "Sk", "max_q", "max_k", "diagonal", "window_left", "window_right",
        "few", "tiles_m", "tasks", "sequences", "together",
        "stride_lse_b", "stride_lse_h", "stride_alibi_b", "stride_alibi_h", "stride_sinks_h",
        "pieces", "out_at", "lse_at", "rank", "first_head", "all_heads",
    ]
)  # fmt: skip
def attention_peers_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, mask_ptr, bias_ptr, alibi_ptr, sinks_ptr,
    kv_lens_ptr, cu_q_ptr, cu_k_ptr, diagonals_ptr, order_ptr, k_desc, v_desc, scale, cap,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_om, stride_od,
    stride_mask_b, stride_mask_h, stride_mask_m, stride_mask_n,
    stride_bias_b, stride_bias_h, stride_bias_m, stride_bias_n,
    stride_lse_b, stride_lse_h, stride_alibi_b, stride_alibi_h, stride_sinks_h,
    Hq, group, Sq, Sk, max_q, max_k, diagonal, window_left, window_right, few, tiles_m, tasks,
    sequences, together,
    memories_ptr, pieces_ptr, failed_ptr, pieces, out_at, lse_at, rank, first_head, all_heads,
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
    HEADS_FIRST: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """What `attention_fwd_kernel` computes, by the same tile function, stored with `peer_store`.

    out_ptr and lse_ptr are to this rank's own rows, of all heads: see `find_place`.
    """
    tl.static_assert(not ((CORE_LOOP or STATE) or PACKED), "one program a tile of a padded batch")
    batch, head, tile = place_of(
        tl.program_id(0), tasks, order_ptr, sequences, Hq, tiles_m, together, ORDER
    )
    spoiled = 1
    for turn in tl.static_range(2 if REPAIR else 1):
        if spoiled > 0:
            # as in `attention_fwd_kernel`
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
                memories_ptr=memories_ptr, pieces_ptr=pieces_ptr, failed_ptr=failed_ptr,
                pieces=pieces, out_at=out_at, lse_at=lse_at, rank=rank, first_head=first_head,
                all_heads=all_heads, PEERS=True, HEADS_FIRST=HEADS_FIRST, LEVELS=LEVELS,
            )  # fmt: skip

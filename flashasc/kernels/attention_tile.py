"""One step of attention: a tile of queries and a tile of keys, folded into the rows' state."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.constants import INF
from blocks.gathered import load_paged_tile
from blocks.layout import load_described, load_tile
from blocks.softmax import fold_segment, online_init, online_update

from .attention_scores import banded, cut_left, cut_right, masked, scores_of


@triton.jit
def attend_tile(
    # the state, see blocks.softmax, and the pivot that acc is under
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, acc_pivot,
    q, k_ptr, v_ptr, mask_ptr, bias_ptr, slope, scale, cap,
    start_m, start_n, Sq, begin, all_begin, all_end, end, offs_m, diagonal, first, last,
    stride_kn, stride_kd, stride_vn, stride_vd,
    stride_mask_m, stride_mask_n, stride_bias_m, stride_bias_n,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr,
    MASK: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr,
    BAND: tl.constexpr, METHOD: tl.constexpr, SPLIT: tl.constexpr, SEGMENT: tl.constexpr,
    WITH_LSE: tl.constexpr, NATURAL: tl.constexpr, DOT_PRECISION: tl.constexpr, WIDE: tl.constexpr,
    K_BY_COLUMNS: tl.constexpr, V_BY_COLUMNS: tl.constexpr,
    table_ptr=None, pages=0, stride_kp=0, stride_vp=0, PAGE: tl.constexpr = 0,
    PAIRS: tl.constexpr = False,
    k_desc=None, v_desc=None, desc_batch=0, desc_head=0, desc_row=0,
    DESCRIPTORS: tl.constexpr = False, SETTLE: tl.constexpr = False,
    REPAIR: tl.constexpr = False, ONLY_INFINITE: tl.constexpr = False,
):  # fmt: skip
    """Attend from a tile of queries to the keys [start_n, start_n + BLOCK_N).

    BAND says which tiles pay for hiding the keys out of a row's reach:
        "never": every row reaches every key.
        "inside": every key is one that some row reaches; some are hidden if they have to be,
            decided as it runs.
        "left", "right": keys before `begin`, or from `end` on, are among them and are not read.
        "branch": anything, decided as it runs by one branch for all.
    PAGE: keys and values lie in pages of that many, see `load_paged_tile`. DESCRIPTORS: not False:
    tiles that hold no key but such that some row sees are read by descriptor, see `attend_range`.
    ONLY_INFINITE: finite values count as 0.
    """
    # a descriptor knows where the memory ends, not what the rows may see
    DESCRIBED: tl.constexpr = DESCRIPTORS and (BAND == "never" or BAND == "inside")
    CHECK: tl.constexpr = BAND != "never" and BAND != "inside"
    # keys that no row of the tile sees are not read: whatever lies there cannot spread
    if DESCRIBED:
        k = load_described(
            k_desc, desc_batch, desc_head, desc_row + start_n, BLOCK_N, BLOCK_D
        )  # [BLOCK_N, BLOCK_D]  # fmt: skip
    elif PAGE:
        k = load_paged_tile(
            k_ptr, table_ptr, pages, start_n, end, stride_kp, stride_kn, stride_kd, D, BLOCK_N,
            BLOCK_D, PAGE, CHECK, WIDE, begin, BOUND_LEFT,
        )  # [BLOCK_N, BLOCK_D]  # fmt: skip
    else:
        k = load_tile(
            k_ptr, start_n, end, stride_kn, stride_kd, D, BLOCK_N, BLOCK_D, CHECK, WIDE,
            begin, BOUND_LEFT, K_BY_COLUMNS,
        )  # [BLOCK_N, BLOCK_D]  # fmt: skip
    scores = scores_of(
        q, k, bias_ptr, stride_bias_m, stride_bias_n, slope, scale, cap,
        start_m, start_n, Sq, end, offs_m, diagonal,
        BIAS, ALIBI, SOFTCAP, DOT_PRECISION, WIDE,
    )  # [BLOCK_M, BLOCK_N]  # fmt: skip
    if BAND == "branch":
        if (start_n < all_begin) | (start_n + BLOCK_N > all_end):
            scores = banded(scores, start_n, end, offs_m, first, last, BOUND_LEFT, BOUND_RIGHT)
    elif BAND == "inside":
        if BOUND_LEFT:
            if start_n < all_begin:
                scores = cut_left(scores, start_n, offs_m, first)
        if BOUND_RIGHT:
            if start_n + BLOCK_N > all_end:
                scores = cut_right(scores, start_n, end, offs_m, last, BOUND_RIGHT, CHECK)
    elif BAND != "never":
        # no branch: in tiles that also have a mask Triton 3.2 cannot lower it for sm_90
        if BOUND_LEFT:
            scores = cut_left(scores, start_n, offs_m, first)
        scores = cut_right(scores, start_n, end, offs_m, last, BOUND_RIGHT, CHECK)
    if DESCRIBED:
        v = load_described(
            v_desc, desc_batch, desc_head, desc_row + start_n, BLOCK_N, BLOCK_DV
        )  # [BLOCK_N, BLOCK_DV]  # fmt: skip
    elif PAGE:
        v = load_paged_tile(
            v_ptr, table_ptr, pages, start_n, end, stride_vp, stride_vn, stride_vd, Dv, BLOCK_N,
            BLOCK_DV, PAGE, CHECK, WIDE, begin, BOUND_LEFT,
        )  # [BLOCK_N, BLOCK_DV]  # fmt: skip
    else:
        v = load_tile(
            v_ptr, start_n, end, stride_vn, stride_vd, Dv, BLOCK_N, BLOCK_DV, CHECK, WIDE,
            begin, BOUND_LEFT, V_BY_COLUMNS,
        )  # [BLOCK_N, BLOCK_DV]  # fmt: skip
    if ONLY_INFINITE:
        values = v.to(tl.float32)
        v = tl.where(tl.abs(values) < INF, 0.0, values).to(v.dtype)
    if MASK != "none":
        scores, v = masked(
            scores, v, mask_ptr, stride_mask_m, stride_mask_n, start_m, start_n, Sq, end,
            MASK, WIDE,
        )  # fmt: skip
    # segments are counted from key 0: the bits do not depend on where the visible keys begin
    WHOLE: tl.constexpr = SPLIT or v.dtype == tl.float32
    if METHOD == "segment" and BAND != "branch":
        # the one before, now: between a product and the next of the same accumulator Hopper's
        # compiler would wait for every single instruction of them
        if start_n // BLOCK_N % SEGMENT == 0:
            acc, acc_comp = fold_segment(acc, acc_comp, acc_pivot, pivot, WHOLE, NATURAL)
            acc_pivot = pivot
    # scores to which something was added are in natural units
    NATURAL_SCORES: tl.constexpr = (BIAS != "none" or ALIBI) and not NATURAL
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_update(
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
        scores, v, METHOD, SPLIT, WITH_LSE, NATURAL, DOT_PRECISION, PAIRS, NATURAL_SCORES, SETTLE,
        REPAIR,
    )  # fmt: skip
    if METHOD == "segment" and BAND == "branch":
        if start_n // BLOCK_N % SEGMENT == SEGMENT - 1:
            acc, acc_comp = fold_segment(acc, acc_comp, acc_pivot, pivot, WHOLE, NATURAL)
            acc_pivot = pivot
    return pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, acc_pivot


@triton.jit
def attend_range(
    q, k_ptr, v_ptr, mask_ptr, bias_ptr, slope, scale, cap, start_m, start_n,
    Sq, begin, all_begin, all_end, end, offs_m, diagonal, first, last,
    stride_kn, stride_kd, stride_vn, stride_vd,
    stride_mask_m, stride_mask_n, stride_bias_m, stride_bias_n,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr,
    ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, METHOD: tl.constexpr, SPLIT: tl.constexpr,
    SEGMENT: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr,
    COMP_DTYPE: tl.constexpr, DOT_PRECISION: tl.constexpr, SPLIT_LOOP: tl.constexpr,
    WIDE: tl.constexpr, K_BY_COLUMNS: tl.constexpr, V_BY_COLUMNS: tl.constexpr,
    table_ptr=None, pages=0, stride_kp=0, stride_vp=0, PAGE: tl.constexpr = 0,
    PAIRS: tl.constexpr = False,
    k_desc=None, v_desc=None, desc_batch=0, desc_head=0, desc_row=0,
    DESCRIPTORS: tl.constexpr = False, SETTLE: tl.constexpr = False,
    REPAIR: tl.constexpr = False, ONLY_INFINITE: tl.constexpr = False,
):  # fmt: skip
    """The state of a tile of queries after the keys from start_n, a tile at a time, to end.

    Args:
        start_n: int32, a multiple of BLOCK_N.
        begin, all_begin, all_end, end: see `blocks.masking.key_range`.
        PAIRS, SETTLE, REPAIR: see `blocks.softmax.online_update`.
        ONLY_INFINITE: finite values count as 0.
        DESCRIPTORS: with SPLIT_LOOP, which tiles are read by k_desc and v_desc, which describe
            [batches, heads, rows, columns] in tiles of [1, 1, BLOCK_N, BLOCK_D or BLOCK_DV]:
            "whole": those whose keys every row sees; "edges": also those that hold no key but such
            that some row sees. False: none.
        desc_batch, desc_head, desc_row: int32. Where key 0 lies in them.

    Returns:
        The seven tiles of the state, see `blocks.softmax`.
    """
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_init(
        BLOCK_M, BLOCK_DV, COMP_DTYPE
    )
    acc_pivot = pivot
    # SPLIT_LOOP: tiles that need a band, whole ones, and again such that need one; each loop may be
    # empty. With "edges" the loop in the middle also has the tiles that need a band and nothing
    # else: what is loaded ahead is lost between two loops. Without SPLIT_LOOP one loop that runs at
    # least once: on Ascend A2 and A3 a loop that runs zero times leaves its accumulators
    # uninitialised (reported for triton-ascend 3.2.0).
    whole_begin = all_begin
    whole_end = all_end
    if DESCRIPTORS == "edges":
        whole_begin = begin
        whole_end = end
    INNER: tl.constexpr = "inside" if DESCRIPTORS == "edges" else "never"
    for part in tl.static_range(3 if SPLIT_LOOP else 1):
        if not SPLIT_LOOP:
            end_n = tl.maximum(end, start_n + 1)
        elif part == 0:
            end_n = start_n
            if BOUND_LEFT:
                end_n = tl.minimum((whole_begin + BLOCK_N - 1) // BLOCK_N * BLOCK_N, end)
        elif part == 1:
            end_n = tl.maximum(whole_end // BLOCK_N * BLOCK_N, start_n)
        else:
            end_n = end
        if not (SPLIT_LOOP and (part == 0 and not BOUND_LEFT)):
            for tile_n in range(start_n, end_n, BLOCK_N):
                pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, acc_pivot = (
                    attend_tile(
                        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp,
                        acc, acc_comp, acc_pivot,
                        q, k_ptr, v_ptr, mask_ptr, bias_ptr, slope, scale, cap, start_m, tile_n,
                        Sq, begin, all_begin, all_end, end, offs_m, diagonal, first, last,
                        stride_kn, stride_kd, stride_vn, stride_vd,
                        stride_mask_m, stride_mask_n, stride_bias_m, stride_bias_n,
                        D, Dv, BLOCK_D, BLOCK_DV, BLOCK_N, BOUND_LEFT, BOUND_RIGHT,
                        MASK, BIAS, ALIBI, SOFTCAP,
                        "branch" if not SPLIT_LOOP
                        else ("left" if part == 0 else (INNER if part == 1 else "right")),
                        METHOD, SPLIT, SEGMENT, WITH_LSE, NATURAL, DOT_PRECISION, WIDE,
                        K_BY_COLUMNS, V_BY_COLUMNS,
                        table_ptr, pages, stride_kp, stride_vp, PAGE, PAIRS,
                        k_desc, v_desc, desc_batch, desc_head, desc_row, DESCRIPTORS, SETTLE,
                        REPAIR, ONLY_INFINITE,
                    )
                )  # fmt: skip
        start_n = tl.maximum(end_n, start_n)

    WHOLE: tl.constexpr = SPLIT or q.dtype == tl.float32
    if METHOD == "segment":
        acc, acc_comp = fold_segment(acc, acc_comp, acc_pivot, pivot, WHOLE, NATURAL)
    return pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp

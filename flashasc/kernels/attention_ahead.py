"""The loop over tiles of keys for tensor cores that work on while their program goes on.

On Hopper a product runs beside what does not need its result. Within one tile nothing can: scores,
weights and the weighted values follow from each other. So the weights of a tile are computed while
the values of the one before it are multiplied.

Source: Shah et al., FlashAttention-3, arXiv:2407.08608 (2024), section 3.2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.layout import load_tile
from blocks.softmax import add_values, fold_segment, online_init, weigh

from .attention_scores import banded, scores_of


@triton.jit
def attend_ahead(
    q, k_ptr, v_ptr, slope, scale, cap, start_m, start_n,
    Sq, begin, all_begin, all_end, end, offs_m, diagonal, first, last,
    stride_kn, stride_kd, stride_vn, stride_vd,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr, ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr, METHOD: tl.constexpr, SPLIT: tl.constexpr, SEGMENT: tl.constexpr,
    WITH_LSE: tl.constexpr, NATURAL: tl.constexpr, COMP_DTYPE: tl.constexpr,
    DOT_PRECISION: tl.constexpr, PAIRS: tl.constexpr, WIDE: tl.constexpr,
    K_BY_COLUMNS: tl.constexpr, V_BY_COLUMNS: tl.constexpr,
):  # fmt: skip
    """What `attend_range` computes, without mask, bias and pages.

    The same operations on the same numbers, begun in another order: the bits are the same.
    """
    DTYPE: tl.constexpr = v_ptr.dtype.element_ty
    # carried from tile to tile as whole numbers: Triton 3.6 would store weights that a loop carries
    # in shared memory, and wait for each product of them; and it loads nothing ahead in a loop that
    # carries a value on as it came
    BITS: tl.constexpr = tl.int32 if DTYPE == tl.float32 else tl.int16
    WHOLE: tl.constexpr = SPLIT or DTYPE == tl.float32
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_init(
        BLOCK_M, BLOCK_DV, COMP_DTYPE
    )
    acc_pivot = pivot
    # the pivot before the tile whose weights wait for their values
    before = pivot.to(tl.int32, bitcast=True)
    # where there is no key this is a tile of hidden ones
    k = load_tile(
        k_ptr, start_n, end, stride_kn, stride_kd, D, BLOCK_N, BLOCK_D, True, WIDE,
        begin, BOUND_LEFT, K_BY_COLUMNS,
    )  # [BLOCK_N, BLOCK_D]  # fmt: skip
    scores = scores_of(
        q, k, None, 0, 0, slope, scale, cap, start_m, start_n, Sq, end, offs_m, diagonal,
        "none", ALIBI, SOFTCAP, NATURAL, DOT_PRECISION, WIDE,
    )  # [BLOCK_M, BLOCK_N]  # fmt: skip
    scores = banded(scores, start_n, end, offs_m, first, last, BOUND_LEFT, BOUND_RIGHT)
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, rescale, factors, low = weigh(
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, scores, DTYPE,
        METHOD, SPLIT, WITH_LSE, NATURAL, PAIRS,
    )  # fmt: skip
    factors = factors.to(BITS, bitcast=True)
    low = low.to(BITS, bitcast=True)

    first_n = start_n
    next_n = start_n + BLOCK_N
    # tiles that need a band, whole ones, and again such that need one; each loop may be empty
    for part in tl.static_range(3):
        end_n = end
        if part == 0:
            end_n = tl.minimum((all_begin + BLOCK_N - 1) // BLOCK_N * BLOCK_N, end)
        elif part == 1:
            end_n = all_end // BLOCK_N * BLOCK_N
        if not (part == 0 and not BOUND_LEFT):
            for tile_n in range(next_n, end_n, BLOCK_N):
                k = load_tile(
                    k_ptr, tile_n, end, stride_kn, stride_kd, D, BLOCK_N, BLOCK_D, part != 1, WIDE,
                    begin, BOUND_LEFT, K_BY_COLUMNS,
                )  # [BLOCK_N, BLOCK_D]  # fmt: skip
                scores = scores_of(
                    q, k, None, 0, 0, slope, scale, cap, start_m, tile_n, Sq, end, offs_m, diagonal,
                    "none", ALIBI, SOFTCAP, NATURAL, DOT_PRECISION, WIDE,
                )  # fmt: skip
                if part != 1:
                    scores = banded(
                        scores, tile_n, end, offs_m, first, last, BOUND_LEFT, BOUND_RIGHT
                    )
                value_n = tile_n - BLOCK_N
                if METHOD == "segment":
                    # not where a segment ends: a product that a branch uses is waited for at once
                    if (value_n > first_n) & (value_n // BLOCK_N % SEGMENT == 0):
                        fold_pivot = before.to(tl.float32, bitcast=True)
                        acc, acc_comp = fold_segment(
                            acc, acc_comp, acc_pivot, fold_pivot, WHOLE, NATURAL
                        )
                        acc_pivot = fold_pivot
                # all of it lies before end: a later tile does, in part
                v = load_tile(
                    v_ptr, value_n, end, stride_vn, stride_vd, Dv, BLOCK_N, BLOCK_DV, BOUND_LEFT,
                    WIDE, begin, BOUND_LEFT, V_BY_COLUMNS,
                )  # [BLOCK_N, BLOCK_DV]  # fmt: skip
                acc, acc_comp = add_values(
                    acc, acc_comp, rescale, factors.to(DTYPE, bitcast=True),
                    low.to(DTYPE, bitcast=True), v, METHOD, SPLIT, DOT_PRECISION,
                )  # fmt: skip
                before = pivot.to(tl.int32, bitcast=True)
                pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, rescale, factors, low = weigh(
                    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, scores, DTYPE,
                    METHOD, SPLIT, WITH_LSE, NATURAL, PAIRS,
                )  # fmt: skip
                factors = factors.to(BITS, bitcast=True)
                low = low.to(BITS, bitcast=True)
            next_n = tl.maximum(end_n, next_n)

    # next_n need not be a multiple of BLOCK_N any more
    value_n = tl.maximum((next_n + BLOCK_N - 1) // BLOCK_N * BLOCK_N - BLOCK_N, first_n)
    if METHOD == "segment":
        if (value_n > first_n) & (value_n // BLOCK_N % SEGMENT == 0):
            fold_pivot = before.to(tl.float32, bitcast=True)
            acc, acc_comp = fold_segment(acc, acc_comp, acc_pivot, fold_pivot, WHOLE, NATURAL)
            acc_pivot = fold_pivot
    v = load_tile(
        v_ptr, value_n, end, stride_vn, stride_vd, Dv, BLOCK_N, BLOCK_DV, True, WIDE,
        begin, BOUND_LEFT, V_BY_COLUMNS,
    )  # fmt: skip
    acc, acc_comp = add_values(
        acc, acc_comp, rescale, factors.to(DTYPE, bitcast=True), low.to(DTYPE, bitcast=True), v,
        METHOD, SPLIT, DOT_PRECISION,
    )  # fmt: skip
    if METHOD == "segment":
        acc, acc_comp = fold_segment(acc, acc_comp, acc_pivot, pivot, WHOLE, NATURAL)
    return pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp

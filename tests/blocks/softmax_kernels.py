"""Wrapper kernels for the tests of `blocks.softmax`.

A state in memory is rows [5, M] (pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp), acc and
comp [M, Dv], all fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.softmax import (
    add_weights,
    exponential,
    fold_segment,
    online_finalize,
    online_init,
    online_merge,
    online_update,
    raise_pivot,
)


@triton.jit
def load_state(
    rows_ptr, acc_ptr, comp_ptr, M: tl.constexpr, Dv: tl.constexpr, COMP_DTYPE: tl.constexpr
):
    offs_m = tl.arange(0, M)
    offs = offs_m[:, None] * Dv + tl.arange(0, Dv)[None, :]
    return (
        tl.load(rows_ptr + offs_m),
        tl.load(rows_ptr + M + offs_m),
        tl.load(rows_ptr + 2 * M + offs_m),
        tl.load(rows_ptr + 3 * M + offs_m),
        tl.load(rows_ptr + 4 * M + offs_m),
        tl.load(acc_ptr + offs),
        tl.load(comp_ptr + offs).to(COMP_DTYPE),
    )


@triton.jit
def store_state(
    rows_ptr, acc_ptr, comp_ptr,
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
    M: tl.constexpr, Dv: tl.constexpr,
):  # fmt: skip
    offs_m = tl.arange(0, M)
    offs = offs_m[:, None] * Dv + tl.arange(0, Dv)[None, :]
    tl.store(rows_ptr + offs_m, pivot)
    tl.store(rows_ptr + M + offs_m, row_sum)
    tl.store(rows_ptr + 2 * M + offs_m, row_sum_comp)
    tl.store(rows_ptr + 3 * M + offs_m, lse_sum)
    tl.store(rows_ptr + 4 * M + offs_m, lse_sum_comp)
    tl.store(acc_ptr + offs, acc)
    tl.store(comp_ptr + offs, acc_comp.to(tl.float32))


@triton.jit
def exponential_kernel(score_ptr, natural_ptr, log2_ptr, N: tl.constexpr):
    """exponential of N scores, in natural units and in log2 units."""
    offs = tl.arange(0, N)
    score = tl.load(score_ptr + offs)
    tl.store(natural_ptr + offs, exponential(score, True))
    tl.store(log2_ptr + offs, exponential(score, False))


@triton.jit
def pivot_kernel(
    pivot_ptr, candidate_ptr, whole_ptr, general_ptr, natural_ptr, M: tl.constexpr
):  # fmt: skip
    """raise_pivot of M pivots into [3, M] (pivot, base, rescale): WHOLE, not, and NATURAL."""
    offs = tl.arange(0, M)
    pivot = tl.load(pivot_ptr + offs)
    candidate = tl.load(candidate_ptr + offs)
    raised, base, rescale = raise_pivot(pivot, candidate, True, False)
    tl.store(whole_ptr + offs, raised)
    tl.store(whole_ptr + M + offs, base)
    tl.store(whole_ptr + 2 * M + offs, rescale)
    raised, base, rescale = raise_pivot(pivot, candidate, False, False)
    tl.store(general_ptr + offs, raised)
    tl.store(general_ptr + M + offs, base)
    tl.store(general_ptr + 2 * M + offs, rescale)
    raised, base, rescale = raise_pivot(pivot, candidate, False, True)
    tl.store(natural_ptr + offs, raised)
    tl.store(natural_ptr + M + offs, base)
    tl.store(natural_ptr + 2 * M + offs, rescale)


@triton.jit
def weights_kernel(
    total_ptr, comp_ptr, rescale_ptr, weights_ptr, plain_ptr, kahan_ptr,
    M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """add_weights of weights [M, N] into [2, M] (total, comp), by either method."""
    offs = tl.arange(0, M)
    total = tl.load(total_ptr + offs)
    comp = tl.load(comp_ptr + offs)
    rescale = tl.load(rescale_ptr + offs)
    weights = tl.load(weights_ptr + offs[:, None] * N + tl.arange(0, N)[None, :])
    plain, untouched = add_weights(total, comp, rescale, weights, "plain")
    tl.store(plain_ptr + offs, plain)
    tl.store(plain_ptr + M + offs, untouched)
    total, comp = add_weights(total, comp, rescale, weights, "kahan")
    tl.store(kahan_ptr + offs, total)
    tl.store(kahan_ptr + M + offs, comp)


@triton.jit
def init_kernel(
    rows_ptr, acc_ptr, comp_ptr, M: tl.constexpr, Dv: tl.constexpr, COMP_DTYPE: tl.constexpr
):
    """The state of rows that have seen nothing."""
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_init(
        M, Dv, COMP_DTYPE
    )
    store_state(
        rows_ptr, acc_ptr, comp_ptr,
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, M, Dv,
    )  # fmt: skip


@triton.jit
def update_kernel(
    rows_ptr, acc_ptr, comp_ptr, scores_ptr, values_ptr, out_rows_ptr, out_acc_ptr, out_comp_ptr,
    M: tl.constexpr, N: tl.constexpr, Dv: tl.constexpr, METHOD: tl.constexpr,
    SPLIT: tl.constexpr, NATURAL: tl.constexpr, COMP_DTYPE: tl.constexpr,
    NATURAL_SCORES: tl.constexpr = False,
):  # fmt: skip
    """One online_update of a given state by scores [M, N] and values [N, Dv]."""
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = load_state(
        rows_ptr, acc_ptr, comp_ptr, M, Dv, COMP_DTYPE
    )
    offs_n = tl.arange(0, N)
    scores = tl.load(scores_ptr + tl.arange(0, M)[:, None] * N + offs_n[None, :])
    values = tl.load(values_ptr + offs_n[:, None] * Dv + tl.arange(0, Dv)[None, :])
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_update(
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
        scores, values, METHOD, SPLIT, True, NATURAL, "ieee", False, NATURAL_SCORES,
    )  # fmt: skip
    store_state(
        out_rows_ptr, out_acc_ptr, out_comp_ptr,
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, M, Dv,
    )  # fmt: skip


@triton.jit
def merge_kernel(
    rows_ptr, acc_ptr, comp_ptr, out_rows_ptr, out_acc_ptr, out_comp_ptr,
    M: tl.constexpr, Dv: tl.constexpr, WHOLE: tl.constexpr, NATURAL: tl.constexpr,
    COMP_DTYPE: tl.constexpr,
):  # fmt: skip
    """online_merge of two states that lie behind one another, both ways round."""
    pivot_a, row_sum_a, row_comp_a, lse_sum_a, lse_comp_a, acc_a, acc_comp_a = load_state(
        rows_ptr, acc_ptr, comp_ptr, M, Dv, COMP_DTYPE
    )
    pivot_b, row_sum_b, row_comp_b, lse_sum_b, lse_comp_b, acc_b, acc_comp_b = load_state(
        rows_ptr + 5 * M, acc_ptr + M * Dv, comp_ptr + M * Dv, M, Dv, COMP_DTYPE
    )
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_merge(
        pivot_a, row_sum_a, row_comp_a, lse_sum_a, lse_comp_a, acc_a, acc_comp_a,
        pivot_b, row_sum_b, row_comp_b, lse_sum_b, lse_comp_b, acc_b, acc_comp_b, WHOLE, NATURAL,
    )  # fmt: skip
    store_state(
        out_rows_ptr, out_acc_ptr, out_comp_ptr,
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, M, Dv,
    )  # fmt: skip
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_merge(
        pivot_b, row_sum_b, row_comp_b, lse_sum_b, lse_comp_b, acc_b, acc_comp_b,
        pivot_a, row_sum_a, row_comp_a, lse_sum_a, lse_comp_a, acc_a, acc_comp_a, WHOLE, NATURAL,
    )  # fmt: skip
    store_state(
        out_rows_ptr + 5 * M, out_acc_ptr + M * Dv, out_comp_ptr + M * Dv,
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, M, Dv,
    )  # fmt: skip


@triton.jit
def fold_kernel(
    acc_ptr, comp_ptr, acc_pivot_ptr, pivot_ptr, out_acc_ptr, out_comp_ptr,
    M: tl.constexpr, Dv: tl.constexpr, WHOLE: tl.constexpr, NATURAL: tl.constexpr,
):  # fmt: skip
    """fold_segment of acc, comp [M, Dv] and two pivots [M]."""
    offs_m = tl.arange(0, M)
    offs = offs_m[:, None] * Dv + tl.arange(0, Dv)[None, :]
    acc, comp = fold_segment(
        tl.load(acc_ptr + offs), tl.load(comp_ptr + offs),
        tl.load(acc_pivot_ptr + offs_m), tl.load(pivot_ptr + offs_m), WHOLE, NATURAL,
    )  # fmt: skip
    tl.store(out_acc_ptr + offs, acc)
    tl.store(out_comp_ptr + offs, comp)


@triton.jit
def finalize_kernel(
    rows_ptr, acc_ptr, comp_ptr, out_ptr, lse_ptr,
    M: tl.constexpr, Dv: tl.constexpr, SEPARATE_LSE: tl.constexpr, LOWERED: tl.constexpr,
    NATURAL: tl.constexpr,
):  # fmt: skip
    """online_finalize of a given state."""
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = load_state(
        rows_ptr, acc_ptr, comp_ptr, M, Dv, tl.float32
    )
    out, lse = online_finalize(
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
        SEPARATE_LSE, LOWERED, NATURAL,
    )  # fmt: skip
    offs_m = tl.arange(0, M)
    tl.store(out_ptr + offs_m[:, None] * Dv + tl.arange(0, Dv)[None, :], out)
    tl.store(lse_ptr + offs_m, lse)


@triton.jit
def attend_part(
    scores_ptr, values_ptr, begin, end, row_stride,
    M: tl.constexpr, N: tl.constexpr, Dv: tl.constexpr, METHOD: tl.constexpr,
    SEGMENT: tl.constexpr, SPLIT: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr,
    COMP_DTYPE: tl.constexpr, NATURAL_SCORES: tl.constexpr,
):  # fmt: skip
    """State over the keys [begin, end), N at a time; METHOD "segment" folds every SEGMENT tiles."""
    offs_m = tl.arange(0, M)
    offs_n = tl.arange(0, N)
    WHOLE: tl.constexpr = SPLIT or values_ptr.dtype.element_ty == tl.float32
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_init(
        M, Dv, COMP_DTYPE
    )
    acc_pivot = pivot
    for start in range(begin, end, N):
        scores = tl.load(scores_ptr + offs_m[:, None] * row_stride + (start + offs_n)[None, :])
        values = tl.load(
            values_ptr + (start + offs_n)[:, None] * Dv + tl.arange(0, Dv)[None, :]
        )  # fmt: skip
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_update(
            pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
            scores, values, METHOD, SPLIT, WITH_LSE, NATURAL, "ieee", False, NATURAL_SCORES,
        )  # fmt: skip
        if METHOD == "segment":  # noqa: SIM102
            if start // N % SEGMENT == SEGMENT - 1:
                acc, acc_comp = fold_segment(acc, acc_comp, acc_pivot, pivot, WHOLE, NATURAL)
                acc_pivot = pivot
    if METHOD == "segment":
        acc, acc_comp = fold_segment(acc, acc_comp, acc_pivot, pivot, WHOLE, NATURAL)
    return pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp


@triton.jit
def attend_kernel(
    scores_ptr, values_ptr, out_ptr, lse_ptr, parts, keys,
    M: tl.constexpr, N: tl.constexpr, Dv: tl.constexpr, METHOD: tl.constexpr,
    SEGMENT: tl.constexpr, SPLIT: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr,
    COMP_DTYPE: tl.constexpr, MERGE: tl.constexpr, NATURAL_SCORES: tl.constexpr = False,
):  # fmt: skip
    """Attention over parts * keys keys, given scores [M, parts * keys] and values, N at a time.

    MERGE: each part from a state of its own, merged in order; otherwise one pass.
    """
    WHOLE: tl.constexpr = SPLIT or values_ptr.dtype.element_ty == tl.float32
    if MERGE:
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_init(
            M, Dv, COMP_DTYPE
        )
        for part in range(0, parts):
            pivot_b, row_sum_b, row_comp_b, lse_sum_b, lse_comp_b, acc_b, acc_comp_b = attend_part(
                scores_ptr, values_ptr, part * keys, part * keys + keys, parts * keys,
                M, N, Dv, METHOD, SEGMENT, SPLIT, WITH_LSE, NATURAL, COMP_DTYPE, NATURAL_SCORES,
            )  # fmt: skip
            pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_merge(
                pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
                pivot_b, row_sum_b, row_comp_b, lse_sum_b, lse_comp_b, acc_b, acc_comp_b,
                WHOLE, NATURAL,
            )  # fmt: skip
    else:
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = attend_part(
            scores_ptr, values_ptr, 0, parts * keys, parts * keys,
            M, N, Dv, METHOD, SEGMENT, SPLIT, WITH_LSE, NATURAL, COMP_DTYPE, NATURAL_SCORES,
        )  # fmt: skip
    SEPARATE_LSE: tl.constexpr = (WITH_LSE and METHOD != "plain") and not WHOLE
    LOWERED: tl.constexpr = values_ptr.dtype.element_ty == tl.float16
    out, lse = online_finalize(
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
        SEPARATE_LSE, LOWERED, NATURAL,
    )  # fmt: skip
    offs_m = tl.arange(0, M)
    tl.store(out_ptr + offs_m[:, None] * Dv + tl.arange(0, Dv)[None, :], out)
    tl.store(lse_ptr + offs_m, lse)

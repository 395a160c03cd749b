"""Wrapper kernels for the tests of `blocks.scores` and of sinks."""

from __future__ import annotations

import triton
import triton.language as tl
from softmax_kernels import load_state, store_state

from blocks.scores import above, distance, natural_base, soft_cap, to_log2
from blocks.softmax import add_sink


@triton.jit
def cap_kernel(x_ptr, out_ptr, cap, N: tl.constexpr):
    """soft_cap of [N]."""
    offs = tl.arange(0, N)
    tl.store(out_ptr + offs, soft_cap(tl.load(x_ptr + offs), cap))


@triton.jit
def distance_kernel(out_ptr, row_start, key_start, diagonal, M: tl.constexpr, N: tl.constexpr):
    """Distance into [M, N]."""
    offs_m = row_start + tl.arange(0, M)
    offs_n = key_start + tl.arange(0, N)
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + at, distance(offs_m, offs_n, diagonal))


@triton.jit
def log2_kernel(x_ptr, pivot_ptr, log2_ptr, above_ptr, N: tl.constexpr):
    """to_log2 of [N], and how far it is above a pivot."""
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(log2_ptr + offs, to_log2(x))
    tl.store(above_ptr + offs, above(x, tl.load(pivot_ptr + offs)))


@triton.jit
def base_kernel(base_ptr, candidate_ptr, top_ptr, high_ptr, low_ptr, above_ptr, N: tl.constexpr):
    """natural_base of [N], and how far the top is above it."""
    offs = tl.arange(0, N)
    top = tl.load(top_ptr + offs)
    high, low = natural_base(tl.load(base_ptr + offs), tl.load(candidate_ptr + offs), top)
    tl.store(high_ptr + offs, high)
    tl.store(low_ptr + offs, low)
    tl.store(above_ptr + offs, (top - high) - low)


@triton.jit
def sink_kernel(
    rows_ptr, acc_ptr, comp_ptr, sink_ptr, out_rows_ptr, out_acc_ptr, out_comp_ptr,
    M: tl.constexpr, Dv: tl.constexpr, WHOLE: tl.constexpr, LOWERED: tl.constexpr,
    NATURAL: tl.constexpr, COMP_DTYPE: tl.constexpr,
):  # fmt: skip
    """add_sink to a given state, of a sink in natural units."""
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = load_state(
        rows_ptr, acc_ptr, comp_ptr, M, Dv, COMP_DTYPE
    )
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = add_sink(
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, tl.load(sink_ptr),
        WHOLE, LOWERED, NATURAL,
    )  # fmt: skip
    store_state(
        out_rows_ptr, out_acc_ptr, out_comp_ptr,
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, M, Dv,
    )  # fmt: skip

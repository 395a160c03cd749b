"""Wrapper kernels that call blocks with what they refuse, on tiles of zeros."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.gemm import accumulate_product, dot, dot_add, gemm_tile, product_add
from blocks.layout import load_spread
from blocks.reduce import accumulate, row_total
from blocks.softmax import add_weights, online_init, online_update, raise_pivot
from blocks.splits import split, split_dot_add, split_left


@triton.jit
def guarded_update(
    out_ptr, ROWS: tl.constexpr, COLS: tl.constexpr, VALUES: tl.constexpr, DTYPE: tl.constexpr,
    METHOD: tl.constexpr, SPLIT: tl.constexpr, COMP_DTYPE: tl.constexpr,
):  # fmt: skip
    """online_update of a state of 16 rows and 16 columns."""
    pivot, row_sum, row_comp, lse_sum, lse_comp, acc, acc_comp = online_init(16, 16, COMP_DTYPE)
    scores = tl.zeros((ROWS, COLS), tl.float32)
    values = tl.zeros((VALUES, 16), DTYPE)
    pivot, row_sum, row_comp, lse_sum, lse_comp, acc, acc_comp = online_update(
        pivot, row_sum, row_comp, lse_sum, lse_comp, acc, acc_comp, scores, values,
        METHOD, SPLIT, False, False, "ieee",
    )  # fmt: skip
    tl.store(out_ptr + tl.arange(0, 16), row_sum)


@triton.jit
def guarded_pivot(out_ptr, WHOLE: tl.constexpr, NATURAL: tl.constexpr):
    """raise_pivot of 16 rows."""
    pivot = tl.zeros((16,), tl.float32)
    raised, _base, _rescale = raise_pivot(pivot, pivot, WHOLE, NATURAL)
    tl.store(out_ptr + tl.arange(0, 16), raised)


@triton.jit
def guarded_product(
    out_ptr, K: tl.constexpr, OTHER: tl.constexpr, DTYPE: tl.constexpr, PRODUCT: tl.constexpr
):
    """A product of [16, K] fp32 and [32, 32] of a dtype; how is PRODUCT or OTHER."""
    a = tl.zeros((16, K), tl.float16 if OTHER == "half" else tl.float32)
    b = tl.zeros((32, 32), DTYPE)
    if OTHER == "dot":
        total = dot(a, b, PRODUCT)
    elif OTHER == "dot_add":
        total = dot_add(a, b, tl.zeros((16, 32), tl.float32), PRODUCT)
    else:
        total = product_add(a, b, tl.zeros((16, 32), tl.float32), PRODUCT)
    tl.store(out_ptr + tl.arange(0, 16), tl.sum(total, axis=1))


@triton.jit
def guarded_method(x_ptr, out_ptr, WHAT: tl.constexpr, METHOD: tl.constexpr):
    """A block on zeros, [16] or [16, 16], by a METHOD: what it calls that is another matter."""
    row = tl.zeros((16,), tl.float32)
    tile = tl.zeros((16, 16), tl.float32)
    if WHAT == "gemm_tile":
        acc, _comp = gemm_tile(x_ptr, x_ptr, 0, 0, 0, 16, 16, 16, 16, 1, 16, 1, 16, 16, 16, METHOD)
        out = tl.sum(acc, axis=1)
    elif WHAT == "accumulate_product":
        acc, _comp = accumulate_product(tile, tile, tile, tile, METHOD, "ieee")
        out = tl.sum(acc, axis=1)
    elif WHAT == "accumulate":
        out, _comp = accumulate(row, row, row, METHOD)
    elif WHAT == "row_total":
        out, _comp = row_total(tile, tile, METHOD)
    elif WHAT == "add_weights":
        out, _comp = add_weights(row, row, row, tile, METHOD)
    elif WHAT == "online_init":
        out, _1, _2, _3, _4, _5, _6 = online_init(16, 16, METHOD)
    elif WHAT == "split":
        first, _second, _third = split(row, METHOD)
        out = first.to(tl.float32)
    elif WHAT == "split_left":
        first, _1, _2, _3, _4, _5 = split_left(row, METHOD)
        out = first.to(tl.float32)
    elif WHAT == "split_dot_add":
        out = tl.sum(split_dot_add(tile, tile, tile, METHOD), axis=1)
    elif WHAT == "product_add":
        out = tl.sum(product_add(tile, tile, tile, METHOD), axis=1)
    else:
        tl.static_assert(WHAT == "load_spread", "WHAT is a block that is called here")
        spread = load_spread(x_ptr, 0, 16, 0, 16, 16, 1, METHOD, 16, 16, False)
        out = tl.sum(tl.broadcast_to(spread, (16, 16)), axis=1)
    tl.store(out_ptr + tl.arange(0, 16), out)

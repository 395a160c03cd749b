"""Wrapper kernels for the tests of `blocks.gemm`, `blocks.splits` and `blocks.activations`."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.activations import gelu, gelu_tanh, relu, silu
from blocks.gemm import (
    accumulate_product,
    dot,
    dot_add,
    gemm_tile,
    grouped_order,
    product_add,
    round_pairs,
    rounded_away,
)
from blocks.layout import store_block
from blocks.splits import split, split_left


@triton.jit
def products_kernel(
    a_ptr, b_ptr, start_ptr, dot_ptr, sum_ptr,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, DOT_PRECISION: tl.constexpr,
):  # fmt: skip
    """dot(a, b) and dot_add(a, b, start) of a [M, K] and b [K, N]."""
    offs_m = tl.arange(0, M)[:, None]
    offs_n = tl.arange(0, N)[None, :]
    a = tl.load(a_ptr + offs_m * K + tl.arange(0, K)[None, :])
    b = tl.load(b_ptr + tl.arange(0, K)[:, None] * N + offs_n)
    start = tl.load(start_ptr + offs_m * N + offs_n)
    tl.store(dot_ptr + offs_m * N + offs_n, dot(a, b, DOT_PRECISION))
    # on Ascend a product may overwrite its left operand
    a = tl.load(a_ptr + offs_m * K + tl.arange(0, K)[None, :])
    tl.store(sum_ptr + offs_m * N + offs_n, dot_add(a, b, start, DOT_PRECISION))


@triton.jit
def rounded_away_kernel(x_ptr, half_ptr, half_lost_ptr, bf16_ptr, bf16_lost_ptr, N: tl.constexpr):
    """N numbers rounded to fp16 and to bf16, and what that dropped, all as fp32."""
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    half = x.to(tl.float16)
    tl.store(half_ptr + offs, half.to(tl.float32))
    tl.store(half_lost_ptr + offs, rounded_away(x, half).to(tl.float32))
    bf16 = x.to(tl.bfloat16)
    tl.store(bf16_ptr + offs, bf16.to(tl.float32))
    tl.store(bf16_lost_ptr + offs, rounded_away(x, bf16).to(tl.float32))


@triton.jit
def round_pairs_kernel(x_ptr, rounded_ptr, back_ptr, N: tl.constexpr, DTYPE: tl.constexpr):
    """N numbers rounded to DTYPE two at a time, as fp32 and as read back."""
    offs = tl.arange(0, N)
    rounded, back = round_pairs(tl.load(x_ptr + offs), DTYPE)
    tl.store(rounded_ptr + offs, rounded.to(tl.float32))
    tl.store(back_ptr + offs, back)


@triton.jit
def sums_kernel(
    a_ptr, b_ptr, start_comp_ptr, acc_ptr, comp_ptr, tiles,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, METHOD: tl.constexpr,
    COMP_DTYPE: tl.constexpr,
):  # fmt: skip
    """a @ b of a [M, tiles * K] and b [tiles * K, N], one accumulate_product a tile.

    comp starts from start_comp, [M, N], and is kept in COMP_DTYPE between tiles.
    """
    offs_m = tl.arange(0, M)[:, None]
    offs_n = tl.arange(0, N)[None, :]
    offs_k = tl.arange(0, K)
    acc = tl.zeros((M, N), tl.float32)
    comp = tl.load(start_comp_ptr + offs_m * N + offs_n).to(COMP_DTYPE)
    # on Ascend A2 and A3 a loop that runs zero times leaves its accumulators uninitialised
    for tile in range(0, tl.maximum(tiles, 1)):
        a = tl.load(a_ptr + offs_m * (tiles * K) + (tile * K + offs_k)[None, :])
        b = tl.load(b_ptr + (tile * K + offs_k)[:, None] * N + offs_n)
        acc, new_comp = accumulate_product(acc, comp.to(tl.float32), a, b, METHOD, "ieee")
        comp = new_comp.to(COMP_DTYPE)
    tl.store(acc_ptr + offs_m * N + offs_n, acc)
    tl.store(comp_ptr + offs_m * N + offs_n, comp.to(tl.float32))


@triton.jit
def tile_kernel(
    a_ptr, b_ptr, acc_ptr, comp_ptr, begin_k, end_k, M, N,
    stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, METHOD: tl.constexpr,
    SEGMENT: tl.constexpr, BRANCH: tl.constexpr, PRODUCT: tl.constexpr, WIDE: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of a @ b a program, in grouped order, as raw (acc, comp), [M, N] contiguous."""
    tile_m, tile_n = grouped_order(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP
    )
    start_m = tile_m * BLOCK_M
    start_n = tile_n * BLOCK_N
    acc, comp = gemm_tile(
        a_ptr, b_ptr, start_m, start_n, begin_k, end_k, M, N,
        stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K,
        METHOD, SEGMENT, BRANCH, PRODUCT, True, True, True, WIDE, A_BY_COLUMNS, B_BY_COLUMNS,
    )  # fmt: skip
    store_block(acc_ptr, acc, start_m, M, start_n, N, N, 1, WIDE)
    store_block(comp_ptr, comp, start_m, M, start_n, N, N, 1, WIDE)


@triton.jit
def default_kernel(
    a_ptr, b_ptr, acc_ptr, comp_ptr, M, N, K, stride_am, stride_bk, BLOCK: tl.constexpr
):
    """The first tile of a @ b, compensated and otherwise by default, as raw (acc, comp)."""
    acc, comp = gemm_tile(
        a_ptr, b_ptr, 0, 0, 0, K, M, N, stride_am, 1, stride_bk, 1, BLOCK, BLOCK, BLOCK, "kahan"
    )
    store_block(acc_ptr, acc, 0, M, 0, N, N, 1, False)
    store_block(comp_ptr, comp, 0, M, 0, N, N, 1, False)


@triton.jit
def unchecked_kernel(
    a_ptr, b_ptr, acc_ptr, M, N, K, stride_am, stride_bk, BLOCK: tl.constexpr,
    METHOD: tl.constexpr, CHECK_M: tl.constexpr, CHECK_N: tl.constexpr, CHECK_K: tl.constexpr,
):  # fmt: skip
    """The first tile of a @ b, of which some sides are known to be whole."""
    acc, _comp = gemm_tile(
        a_ptr, b_ptr, 0, 0, 0, K, M, N, stride_am, 1, stride_bk, 1, BLOCK, BLOCK, BLOCK, METHOD,
        1, False, "ieee", CHECK_M, CHECK_N, CHECK_K,
    )  # fmt: skip
    store_block(acc_ptr, acc, 0, M, 0, N, N, 1, False)


@triton.jit
def order_kernel(out_ptr, tiles_m, tiles_n, GROUP: tl.constexpr):
    """For each program the number of its tile, row by row."""
    task = tl.program_id(0)
    tile_m, tile_n = grouped_order(task, tiles_m, tiles_n, GROUP)
    tl.store(out_ptr + task, tile_m * tiles_n + tile_n)


@triton.jit
def split_kernel(x_ptr, out_ptr, N: tl.constexpr, DTYPE: tl.constexpr):
    """The nine parts that split and split_left make of N numbers, [9, N] as fp32."""
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    first, second, third = split(x, DTYPE)
    left1, left1_again, left1_once_more, left2, left2_again, left3 = split_left(x, DTYPE)
    tl.store(out_ptr + offs, first.to(tl.float32))
    tl.store(out_ptr + N + offs, second.to(tl.float32))
    tl.store(out_ptr + 2 * N + offs, third.to(tl.float32))
    tl.store(out_ptr + 3 * N + offs, left1.to(tl.float32))
    tl.store(out_ptr + 4 * N + offs, left1_again.to(tl.float32))
    tl.store(out_ptr + 5 * N + offs, left1_once_more.to(tl.float32))
    tl.store(out_ptr + 6 * N + offs, left2.to(tl.float32))
    tl.store(out_ptr + 7 * N + offs, left2_again.to(tl.float32))
    tl.store(out_ptr + 8 * N + offs, left3.to(tl.float32))


@triton.jit
def split_product_kernel(
    a_ptr, b_ptr, start_ptr, out_ptr,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """start + a @ b of contiguous a [M, K] and b [K, N] by one product_add."""
    offs_m = tl.arange(0, M)[:, None]
    offs_n = tl.arange(0, N)[None, :]
    a = tl.load(a_ptr + offs_m * K + tl.arange(0, K)[None, :])
    b = tl.load(b_ptr + tl.arange(0, K)[:, None] * N + offs_n)
    start = tl.load(start_ptr + offs_m * N + offs_n)
    tl.store(out_ptr + offs_m * N + offs_n, product_add(a, b, start, PRODUCT))


@triton.jit
def activations_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """relu, silu, gelu and gelu_tanh of N numbers, [4, N]."""
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, relu(x))
    tl.store(out_ptr + N + offs, silu(x))
    tl.store(out_ptr + 2 * N + offs, gelu(x))
    tl.store(out_ptr + 3 * N + offs, gelu_tanh(x))

"""Wrapper kernels for the tests of `blocks.gemm`."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.gemm import accumulate_product, dot, dot_add, rounded_away


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

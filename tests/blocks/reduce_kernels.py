"""Wrapper kernels for the tests of `blocks.accurate` and `blocks.reduce`."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.accurate import row_sum2, sum2_add
from blocks.compensated import extract
from blocks.constants import NEG_INF
from blocks.reduce import (
    accumulate,
    corrected_spread,
    normalised,
    pivot_of,
    row_logsumexp,
    row_max,
    row_moments,
    row_norm,
    row_softmax,
    row_total,
    scale_of,
    square_sum,
    tile_sum,
    weights_over,
)


@triton.jit
def sum2_kernel(a_ptr, comp_ptr, b_ptr, sum_ptr, error_ptr, N: tl.constexpr):
    """sum2_add of b to (a, comp)."""
    offs = tl.arange(0, N)
    acc, comp = sum2_add(tl.load(a_ptr + offs), tl.load(comp_ptr + offs), tl.load(b_ptr + offs))
    tl.store(sum_ptr + offs, acc)
    tl.store(error_ptr + offs, comp)


@triton.jit
def row_sum2_kernel(acc_ptr, comp_ptr, total_ptr, error_ptr, M: tl.constexpr, N: tl.constexpr):
    """row_sum2 of [M, N] pairs."""
    rows = tl.arange(0, M)
    at = rows[:, None] * N + tl.arange(0, N)[None, :]
    total, error = row_sum2(tl.load(acc_ptr + at), tl.load(comp_ptr + at))
    tl.store(total_ptr + rows, total)
    tl.store(error_ptr + rows, error)


@triton.jit
def extract_kernel(x_ptr, high_ptr, low_ptr, exact_ptr, M: tl.constexpr, N: tl.constexpr):
    """Extract from [M, N]."""
    rows = tl.arange(0, M)
    at = rows[:, None] * N + tl.arange(0, N)[None, :]
    high, low, exact = extract(tl.load(x_ptr + at))
    tl.store(high_ptr + at, high)
    tl.store(low_ptr + at, low)
    tl.store(exact_ptr + rows, tl.where(exact, 1.0, 0.0))


@triton.jit
def lanes_kernel(x_ptr, total_ptr, error_ptr, tiles, M: tl.constexpr, N: tl.constexpr,
                 METHOD: tl.constexpr):  # fmt: skip
    """Sum [M, tiles * N] by `accumulate` over tiles of N columns, then `row_total`."""
    rows = tl.arange(0, M)
    at = rows[:, None] * (tiles * N) + tl.arange(0, N)[None, :]
    acc = tl.zeros((M, N), tl.float32)
    comp = tl.zeros((M, N), tl.float32)
    for tile in range(0, tiles):
        acc, comp = accumulate(acc, comp, tl.load(x_ptr + tile * N + at), METHOD)
    total, error = row_total(acc, comp, METHOD)
    tl.store(total_ptr + rows, total)
    tl.store(error_ptr + rows, error)


@triton.jit
def tile_kernel(
    x_ptr, sum_ptr, max_ptr, mean_ptr, spread_ptr, square_ptr, norm_ptr, lse_ptr, soft_ptr,
    over_ptr, normed_ptr, count, eps, M: tl.constexpr, N: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    """Every reduction of the first `count` of N columns, [M, N]."""
    rows = tl.arange(0, M)
    cols = tl.arange(0, N)
    at = rows[:, None] * N + cols[None, :]
    inside = (cols < count)[None, :]
    x = tl.load(x_ptr + at)
    zeroed = tl.where(inside, x, 0.0)
    hidden = tl.where(inside, x, NEG_INF)
    tl.store(sum_ptr + rows, tile_sum(zeroed, METHOD))
    largest = row_max(hidden)
    tl.store(max_ptr + rows, largest)
    mean, lack, spread = row_moments(zeroed, inside, count, METHOD)
    tl.store(mean_ptr + rows, mean + lack)
    tl.store(spread_ptr + rows, spread)
    tl.store(square_ptr + rows, square_sum(zeroed, METHOD))
    tl.store(norm_ptr + rows, row_norm(zeroed, METHOD))
    tl.store(lse_ptr + rows, row_logsumexp(hidden, METHOD))
    tl.store(soft_ptr + at, row_softmax(hidden, METHOD))
    divisor = tile_sum(tl.exp(hidden - pivot_of(largest)[:, None]), METHOD)
    tl.store(over_ptr + at, weights_over(hidden, largest[:, None], divisor[:, None]))
    apart = zeroed - mean[:, None]
    normed = normalised(apart, lack[:, None], (spread / count)[:, None], eps, True)
    tl.store(normed_ptr + at, normed)


@triton.jit
def scales_kernel(x_ptr, scale_ptr, unscale_ptr, pivot_ptr, N: tl.constexpr):
    """scale_of and pivot_of N numbers."""
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    scale, unscale = scale_of(tl.abs(x))
    tl.store(scale_ptr + offs, scale)
    tl.store(unscale_ptr + offs, unscale)
    tl.store(pivot_ptr + offs, pivot_of(x))


@triton.jit
def spread_kernel(squares_ptr, apart_ptr, out_ptr, count, N: tl.constexpr):
    """corrected_spread of N pairs."""
    offs = tl.arange(0, N)
    tl.store(
        out_ptr + offs,
        corrected_spread(tl.load(squares_ptr + offs), tl.load(apart_ptr + offs), count),
    )

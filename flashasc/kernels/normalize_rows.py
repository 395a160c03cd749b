"""Rows brought to a common scale: softmax, RMS norm and layer norm.

A row that lies in one tile is read once, and what it is divided by comes from the tile. A longer
row's comes from reductions before, and the tiles of a row are then tasks of their own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.constants import NEG_INF
from blocks.layout import advance, load_spread, store_block
from blocks.masking import within
from blocks.reduce import normalised, row_moments, row_softmax, square_sum, weights_over


@triton.jit
def _normalize_task(
    task, weight, bias, x_ptr, out_ptr, weight_ptr, bias_ptr, first_ptr, second_ptr,
    stride_xo, stride_xm, stride_xn, stride_oo, stride_om, stride_on,
    rows, numbers, tiles_m, tiles_n, eps,
    MODE: tl.constexpr, METHOD: tl.constexpr, GIVEN: tl.constexpr, WEIGHT: tl.constexpr,
    BIAS: tl.constexpr, HELD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Write one tile: task = row tile * tiles_n + tile of the row; weight and bias where HELD."""
    tile_m = task
    start_n = 0
    if GIVEN:
        tile_m = task // tiles_n
        start_n = task % tiles_n * BLOCK_N
    outer = tile_m // tiles_m
    start_m = tile_m % tiles_m * BLOCK_M
    x_ptr = advance(x_ptr, outer, stride_xo)
    x = load_spread(
        x_ptr, start_m, rows, start_n, numbers, stride_xm, stride_xn, "full",
        BLOCK_M, BLOCK_N, WIDE,
    ).to(tl.float32)  # [BLOCK_M, BLOCK_N]  # fmt: skip
    inside = within(start_n + tl.arange(0, BLOCK_N), numbers)[None, :]
    if GIVEN:
        # of a layer norm two numbers a row: the mean, and what it lacks
        PARTS: tl.constexpr = 2 if MODE == "layer_norm" else 1
        first_ptr = advance(first_ptr, outer, PARTS * rows)
        first = load_spread(
            first_ptr, start_m, rows, 0, 1, 1, 1, "rows", BLOCK_M, 1, False
        )  # [BLOCK_M, 1]
        second = load_spread(
            advance(second_ptr, outer, rows), start_m, rows, 0, 1, 1, 1, "rows", BLOCK_M, 1, False
        )  # [BLOCK_M, 1]
    if MODE == "softmax":
        if GIVEN:
            y = weights_over(x, first, second)
        else:
            y = row_softmax(tl.where(inside, x, NEG_INF), METHOD)
    else:
        # an int that is known to be 1 is no tensor
        count = numbers * 1.0
        if GIVEN:
            mean = first
            mean_square = second
            if MODE == "layer_norm":
                x = x - first
                mean = load_spread(
                    advance(first_ptr, 1, rows), start_m, rows, 0, 1, 1, 1, "rows", BLOCK_M, 1,
                    False,
                )  # [BLOCK_M, 1]  # fmt: skip
        elif MODE == "layer_norm":
            row_mean, lack, spread = row_moments(x, inside, count, METHOD)
            x = x - row_mean[:, None]
            mean = lack[:, None]
            mean_square = (spread / count)[:, None]
        else:
            mean_square = (square_sum(x, METHOD) / count)[:, None]
            mean = tl.zeros_like(mean_square)
        y = normalised(x, mean, mean_square, eps, MODE == "layer_norm")
        if WEIGHT:
            if not HELD:
                weight = _of_columns(weight_ptr, start_n, numbers, BLOCK_M, BLOCK_N)
            y = y * weight.to(tl.float32)
        if BIAS:
            if not HELD:
                bias = _of_columns(bias_ptr, start_n, numbers, BLOCK_M, BLOCK_N)
            y = y + bias.to(tl.float32)
    out_ptr = advance(out_ptr, outer, stride_oo)
    store_block(out_ptr, y, start_m, rows, start_n, numbers, stride_om, stride_on, WIDE)


@triton.jit
def _of_columns(ptr, start_n, numbers, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A tile of a weight or a bias as it is stored, [1, BLOCK_N]."""
    return load_spread(ptr, 0, 1, start_n, numbers, 0, 1, "columns", BLOCK_M, BLOCK_N, False)


# counts are not worth a compilation each; whether a row's length is a multiple of 16 is
@triton.jit(do_not_specialize=["rows", "tiles_m", "tiles_n", "tasks"])
def normalize_kernel(
    x_ptr, out_ptr, weight_ptr, bias_ptr, first_ptr, second_ptr,
    stride_xo, stride_xm, stride_xn, stride_oo, stride_om, stride_on,
    rows, numbers, tiles_m, tiles_n, tasks, eps,
    MODE: tl.constexpr, METHOD: tl.constexpr, GIVEN: tl.constexpr, WEIGHT: tl.constexpr,
    BIAS: tl.constexpr, HELD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDE: tl.constexpr, CORE_LOOP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Normalise rows, [outer, rows] of them, of `numbers` numbers each.

    Args:
        x_ptr, out_ptr: fp16, bf16 or fp32; strides in elements: rows' outer and inner, numbers'.
        weight_ptr, bias_ptr: [numbers], contiguous, any float dtype.
        first_ptr, second_ptr: fp32, a number a row: for softmax the largest score and the sum of
            weights, for an RMS norm 0 and the mean square; for a layer norm [outer, 2, rows], the
            mean and what it lacks, and the mean square of x - mean.
        eps: fp32, added to the mean square.
        MODE: "softmax", "rms_norm" or "layer_norm".
        METHOD: how sums within a tile are kept: "plain", "kahan" or "sum2".
        GIVEN: take first_ptr and second_ptr; otherwise a row lies in one tile.
        WEIGHT, BIAS: multiply by the weight, add the bias.
        HELD: weight and bias are loaded once a program; for rows in one tile.
        WIDE: see `blocks.layout.tile_offsets`.
        CORE_LOOP: programs loop over the tasks; otherwise there is one for each.
        STAGES: tiles that a loop keeps on the way (GPU).
    """
    tl.static_assert(not (HELD and GIVEN), "tiles of a long row have weights of their own")
    weight = None
    bias = None
    if HELD:
        if WEIGHT:
            weight = _of_columns(weight_ptr, 0, numbers, BLOCK_M, BLOCK_N)
        if BIAS:
            bias = _of_columns(bias_ptr, 0, numbers, BLOCK_M, BLOCK_N)
    if CORE_LOOP:
        if STAGES == 1:
            for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
                _normalize_task(
                    task, weight, bias, x_ptr, out_ptr, weight_ptr, bias_ptr, first_ptr, second_ptr,
                    stride_xo, stride_xm, stride_xn, stride_oo, stride_om, stride_on,
                    rows, numbers, tiles_m, tiles_n, eps,
                    MODE, METHOD, GIVEN, WEIGHT, BIAS, HELD, BLOCK_M, BLOCK_N, WIDE,
                )  # fmt: skip
        else:
            for task in tl.range(tl.program_id(0), tasks, tl.num_programs(0), num_stages=STAGES):
                _normalize_task(
                    task, weight, bias, x_ptr, out_ptr, weight_ptr, bias_ptr, first_ptr, second_ptr,
                    stride_xo, stride_xm, stride_xn, stride_oo, stride_om, stride_on,
                    rows, numbers, tiles_m, tiles_n, eps,
                    MODE, METHOD, GIVEN, WEIGHT, BIAS, HELD, BLOCK_M, BLOCK_N, WIDE,
                )  # fmt: skip
    else:
        _normalize_task(
            tl.program_id(0), weight, bias,
            x_ptr, out_ptr, weight_ptr, bias_ptr, first_ptr, second_ptr,
            stride_xo, stride_xm, stride_xn, stride_oo, stride_om, stride_on,
            rows, numbers, tiles_m, tiles_n, eps,
            MODE, METHOD, GIVEN, WEIGHT, BIAS, HELD, BLOCK_M, BLOCK_N, WIDE,
        )  # fmt: skip

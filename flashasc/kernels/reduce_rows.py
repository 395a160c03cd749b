"""Reductions of rows to a number each: sums of what TERM says, and maxima.

A task is one tile of rows and one chunk of their numbers. Where a row has one chunk, the result is
stored; where it has several, each chunk's raw state is, and the states are reduced as rows of
numbers by the same kernel: two stages, whose order never changes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.constants import NEG_INF
from blocks.layout import advance, load_spread, store_rows, store_tile
from blocks.masking import within
from blocks.reduce import accumulate, deviations, pivot_of, row_max, row_total


@triton.jit
def _load_numbers(
    x_ptr, start_m, rows, start_n, numbers, stride_m, stride_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALONG: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A tile of rows' numbers, fp32, as it lies: [BLOCK_M, BLOCK_N], or turned where not ALONG."""
    if ALONG:
        x = load_spread(
            x_ptr, start_m, rows, start_n, numbers, stride_m, stride_n, "full",
            BLOCK_M, BLOCK_N, WIDE,
        )  # fmt: skip
    else:
        x = load_spread(
            x_ptr, start_n, numbers, start_m, rows, stride_n, stride_m, "full",
            BLOCK_N, BLOCK_M, WIDE,
        )  # fmt: skip
    return x.to(tl.float32)


@triton.jit
def _add_step(
    acc, comp, second, second_comp, given, step, x_ptr, start_m,
    stride_xm, stride_xp, stride_xn, rows, numbers, tiles_n,
    TERM: tl.constexpr, METHOD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ALONG: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """The sums, or the maxima, of a tile's lanes with one more tile of the rows."""
    tile_ptr = advance(x_ptr, step // tiles_n, stride_xp)
    if LONG:
        # where a row's numbers outrun 32 bits they are counted from the tile's start
        begin = tl.cast(step % tiles_n, tl.int64) * BLOCK_N
        tile_ptr = tile_ptr + begin * stride_xn
        start_n = 0
        end_n = tl.minimum(numbers - begin, BLOCK_N).to(tl.int32)
    else:
        start_n = step % tiles_n * BLOCK_N
        end_n = numbers
    x = _load_numbers(
        tile_ptr, start_m, rows, start_n, end_n, stride_xm, stride_xn,
        BLOCK_M, BLOCK_N, ALONG, WIDE,
    )  # fmt: skip
    inside = within(start_n + tl.arange(0, BLOCK_N), end_n)
    if ALONG:
        inside = inside[None, :]
    else:
        inside = inside[:, None]
    if METHOD == "max":
        if TERM == "negated":
            x = -x
        elif TERM == "size":
            x = tl.abs(x)
        comp = tl.maximum(comp, tl.where(x == x, 0.0, 1.0))
        acc = tl.maximum(acc, tl.where(inside & (x == x), x, NEG_INF))
    elif TERM == "spread":
        apart = deviations(x, given, inside)
        acc, comp = accumulate(acc, comp, apart * apart, METHOD)
        second, second_comp = accumulate(second, second_comp, apart, METHOD)
    else:
        if TERM == "square":
            x = x * x
        elif TERM == "scaled":
            scaled = x * given
            x = scaled * scaled
        elif TERM == "weight":
            x = tl.where(inside, tl.exp(x - pivot_of(given)), 0.0)
        acc, comp = accumulate(acc, comp, x, METHOD)
    return acc, comp, second, second_comp


@triton.jit
def _reduce_task(
    task, x_ptr, given_ptr, out_ptr, second_ptr,
    stride_xo, stride_xm, stride_xp, stride_xn,
    rows, numbers, tiles_m, tiles_n, tiles, chunks,
    TERM: tl.constexpr, METHOD: tl.constexpr, RAW: tl.constexpr, STEPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALONG: tl.constexpr, WIDE: tl.constexpr,
    LONG: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Reduce one chunk of one tile of rows: task = row tile * chunks + chunk."""
    tile_m = task // chunks
    chunk = task % chunks
    outer = tile_m // tiles_m
    start_m = tile_m % tiles_m * BLOCK_M
    x_ptr = advance(x_ptr, outer, stride_xo)

    LANES_0: tl.constexpr = BLOCK_M if ALONG else BLOCK_N
    LANES_1: tl.constexpr = BLOCK_N if ALONG else BLOCK_M
    acc = tl.zeros((LANES_0, LANES_1), tl.float32)
    if METHOD == "max":
        acc = acc + NEG_INF
    # of a maximum: whether a NaN was met
    comp = tl.zeros((LANES_0, LANES_1), tl.float32)
    second = tl.zeros((LANES_0, LANES_1), tl.float32)
    second_comp = tl.zeros((LANES_0, LANES_1), tl.float32)
    given = None
    if (TERM == "scaled" or TERM == "weight") or TERM == "spread":
        SPREAD: tl.constexpr = "rows" if ALONG else "columns"
        given_ptr = advance(given_ptr, outer, rows)
        given = load_spread(
            given_ptr, start_m, rows, start_m, rows, 1, 1, SPREAD, LANES_0, LANES_1, False
        )  # [BLOCK_M, 1] or [1, BLOCK_M]

    first = chunk * STEPS
    # a loop that certainly runs
    last = tl.maximum(tl.minimum(first + STEPS, tiles), first + 1)
    if STAGES == 1:
        for step in range(first, last):
            acc, comp, second, second_comp = _add_step(
                acc, comp, second, second_comp, given, step, x_ptr, start_m,
                stride_xm, stride_xp, stride_xn, rows, numbers, tiles_n,
                TERM, METHOD, BLOCK_M, BLOCK_N, ALONG, WIDE, LONG,
            )  # fmt: skip
    else:
        for step in tl.range(first, last, num_stages=STAGES):
            acc, comp, second, second_comp = _add_step(
                acc, comp, second, second_comp, given, step, x_ptr, start_m,
                stride_xm, stride_xp, stride_xn, rows, numbers, tiles_n,
                TERM, METHOD, BLOCK_M, BLOCK_N, ALONG, WIDE, LONG,
            )  # fmt: skip

    if not ALONG:
        acc = tl.trans(acc)
        comp = tl.trans(comp)
        if TERM == "spread":
            second = tl.trans(second)
            second_comp = tl.trans(second_comp)
    if METHOD == "max":
        largest = row_max(tl.where(comp > 0.0, float("nan"), acc))
        if RAW:
            out_ptr = advance(advance(out_ptr, outer, rows * chunks), chunk, 1)
            store_tile(out_ptr, largest[:, None], start_m, rows, chunks, 1, 1, True)
        else:
            store_rows(advance(out_ptr, outer, rows), largest, start_m, rows)
    else:
        total, error = row_total(acc, comp, METHOD)
        _store_sum(out_ptr, total, error, outer, chunk, start_m, rows, chunks, RAW)
        if TERM == "spread":
            total, error = row_total(second, second_comp, METHOD)
            _store_sum(second_ptr, total, error, outer, chunk, start_m, rows, chunks, RAW)


@triton.jit
def _store_sum(out_ptr, total, error, outer, chunk, start_m, rows, chunks, RAW: tl.constexpr):
    """Store a tile of rows' sums; where RAW both members of the pair, [rows, 2 * chunks]."""
    if RAW:
        out_ptr = advance(advance(out_ptr, outer, 2 * rows * chunks), chunk, 2)
        store_tile(out_ptr, total[:, None], start_m, rows, 2 * chunks, 1, 1, True)
        store_tile(out_ptr + 1, error[:, None], start_m, rows, 2 * chunks, 1, 1, True)
    else:
        store_rows(advance(out_ptr, outer, rows), total + error, start_m, rows)


# counts are not worth a compilation each; whether a row's length is a multiple of 16 is
@triton.jit(do_not_specialize=["rows", "tiles_m", "tiles_n", "tiles", "chunks", "tasks"])
def reduce_kernel(
    x_ptr, given_ptr, out_ptr, second_ptr,
    stride_xo, stride_xm, stride_xp, stride_xn,
    rows, numbers, tiles_m, tiles_n, tiles, chunks, tasks,
    TERM: tl.constexpr, METHOD: tl.constexpr, RAW: tl.constexpr, STEPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALONG: tl.constexpr, WIDE: tl.constexpr,
    LONG: tl.constexpr, CORE_LOOP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Reduce rows, [outer, rows] of them, of numbers [outer, numbers] each.

    Args:
        x_ptr: fp16, bf16 or fp32; strides in elements: rows' outer and inner, numbers' outer and
            inner.
        given_ptr: fp32, a number a row: the scale, the pivot or the mean that TERM speaks of.
        out_ptr: fp32, contiguous: a number a row; where RAW the states of each row's chunks, to be
            reduced as [rows, 2 * chunks] numbers (of a maximum, [rows, chunks]).
        second_ptr: fp32, the same for TERM "spread": of the deviations, out_ptr of their squares.
        TERM: for sums "value", "square", "scaled", "weight" or "spread"; for maxima "value",
            "negated" or "size".
        METHOD: "plain", "kahan", "sum2", or "max".
        STEPS: tiles in a chunk.
        ALONG: the numbers of a row lie side by side; else the rows do.
        WIDE: see `blocks.layout.tile_offsets`.
        LONG: numbers * BLOCK_N does not fit in 32 bits.
        CORE_LOOP: one program per core, which loops over the tasks (NPU).
        STAGES: tiles that a loop keeps on the way (GPU).
    """
    if CORE_LOOP:
        for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
            _reduce_task(
                task, x_ptr, given_ptr, out_ptr, second_ptr,
                stride_xo, stride_xm, stride_xp, stride_xn,
                rows, numbers, tiles_m, tiles_n, tiles, chunks,
                TERM, METHOD, RAW, STEPS, BLOCK_M, BLOCK_N, ALONG, WIDE, LONG, STAGES,
            )  # fmt: skip
    else:
        _reduce_task(
            tl.program_id(0), x_ptr, given_ptr, out_ptr, second_ptr,
            stride_xo, stride_xm, stride_xp, stride_xn,
            rows, numbers, tiles_m, tiles_n, tiles, chunks,
            TERM, METHOD, RAW, STEPS, BLOCK_M, BLOCK_N, ALONG, WIDE, LONG, STAGES,
        )  # fmt: skip

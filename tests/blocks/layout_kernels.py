"""Wrapper kernels for the tests of `blocks.layout` and `blocks.masking`."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.gathered import load_grouped, load_paged_tile, store_grouped
from blocks.layout import (
    advance,
    load_rows,
    load_spread,
    load_tile,
    sequence,
    store_block,
    store_rows,
    store_tile,
    tile_offsets,
)
from blocks.masking import causal, key_range, not_before, within


@triton.jit
def offsets_kernel(
    out_ptr, stride_row, stride_col, ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr
):
    """tile_offsets into out, [ROWS, COLS] int64, and its dtype's size behind it."""
    offsets = tile_offsets(stride_row, stride_col, ROWS, COLS, WIDE)
    tl.static_assert(not WIDE or offsets.dtype == tl.int64, "WIDE means int64")
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(out_ptr + at, offsets.to(tl.int64))


@triton.jit
def load_kernel(
    x_ptr, out_ptr, row_start, row_end, stride_row, stride_col,
    COLS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr, WIDE: tl.constexpr, BY_COLUMNS: tl.constexpr,
):  # fmt: skip
    """load_tile into out, [BLOCK_ROWS, BLOCK_COLS] contiguous."""
    tile = load_tile(
        x_ptr, row_start, row_end, stride_row, stride_col, COLS, BLOCK_ROWS, BLOCK_COLS,
        CHECK_ROWS, WIDE, BY_COLUMNS=BY_COLUMNS,
    )  # fmt: skip
    at = tl.arange(0, BLOCK_ROWS)[:, None] * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    tl.store(out_ptr + at, tile)


@triton.jit
def store_kernel(
    x_ptr, out_ptr, row_start, row_end, stride_row, stride_col,
    COLS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """store_tile of x, [BLOCK_ROWS, BLOCK_COLS] fp32, contiguous."""
    at = tl.arange(0, BLOCK_ROWS)[:, None] * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    store_tile(out_ptr, tl.load(x_ptr + at), row_start, row_end, stride_row, stride_col, COLS, WIDE)


@triton.jit
def block_kernel(
    x_ptr, out_ptr, row_start, row_end, col_start, col_end, stride_row, stride_col,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """store_block of x, [BLOCK_ROWS, BLOCK_COLS] fp32, contiguous."""
    at = tl.arange(0, BLOCK_ROWS)[:, None] * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    store_block(
        out_ptr, tl.load(x_ptr + at), row_start, row_end, col_start, col_end,
        stride_row, stride_col, WIDE,
    )  # fmt: skip


@triton.jit
def rows_kernel(x_ptr, out_ptr, row_start, row_end, N: tl.constexpr):
    """store_rows of x, [N]."""
    store_rows(out_ptr, tl.load(x_ptr + tl.arange(0, N)), row_start, row_end)


@triton.jit
def copied_rows_kernel(x_ptr, out_ptr, row_start, row_end, N: tl.constexpr):
    """load_rows of x into store_rows of out, [N]."""
    x = load_rows(x_ptr, row_start, row_end, N)
    store_rows(out_ptr, x, row_start, row_end)


@triton.jit
def paged_kernel(
    x_ptr, table_ptr, out_ptr, pages, row_end, stride_page, stride_row,
    ROWS: tl.constexpr, COLS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """The first rows of a paged matrix into out, [ROWS, COLS]."""
    tile = load_paged_tile(
        x_ptr, table_ptr, pages, 0, row_end, stride_page, stride_row, 1,
        COLS, ROWS, COLS, PAGE, CHECK_ROWS=True, WIDE=False,
    )  # fmt: skip
    store_tile(out_ptr, tile, 0, ROWS, COLS, 1, COLS, WIDE=False)


@triton.jit
def grouped_kernel(
    x_ptr, out_ptr, rows, heads, stride_row, stride_head,
    ROWS: tl.constexpr, GROUP: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """load_grouped of x into store_grouped of out, whose heads lie one behind the other."""
    tile = load_grouped(
        x_ptr, 0, rows, heads, stride_row, stride_head, 1, COLS, ROWS, GROUP, COLS, WIDE=False
    )
    store_grouped(
        out_ptr, tile, 0, rows, heads, COLS, COLS * ROWS, 1, COLS, ROWS, GROUP, WIDE=False
    )


@triton.jit
def copy_kernel(
    x_ptr, out_ptr, stride_xb, stride_xh, stride_xm, stride_xd,
    stride_ob, stride_oh, stride_om, stride_od, H, S,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Copy [B, H, S, D] of any strides, tile by tile; program = (batch * H + head, tile)."""
    pid_bh = tl.program_id(0)
    x_ptr = advance(advance(x_ptr, pid_bh // H, stride_xb), pid_bh % H, stride_xh)
    out_ptr = advance(advance(out_ptr, pid_bh // H, stride_ob), pid_bh % H, stride_oh)
    start_m = tl.program_id(1) * BLOCK_M
    tile = load_tile(x_ptr, start_m, S, stride_xm, stride_xd, D, BLOCK_M, BLOCK_D, True, WIDE)
    store_tile(out_ptr, tile.to(tl.float32), start_m, S, stride_om, stride_od, D, WIDE)


@triton.jit
def begin_kernel(
    x_ptr, out_ptr, row_start, row_begin, row_end, stride_row, COLS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    """load_tile of the rows from row_begin on, into out, [BLOCK_ROWS, BLOCK_COLS] contiguous."""
    tile = load_tile(
        x_ptr, row_start, row_end, stride_row, 1, COLS, BLOCK_ROWS, BLOCK_COLS, True, False,
        row_begin, True,
    )  # fmt: skip
    at = tl.arange(0, BLOCK_ROWS)[:, None] * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    tl.store(out_ptr + at, tile)


@triton.jit
def spread_kernel(
    x_ptr, out_ptr, row_start, row_end, col_start, col_end, stride_row, stride_col,
    SPREAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """load_spread, broadcast, into out, [ROWS, COLS] contiguous."""
    tile = load_spread(
        x_ptr, row_start, row_end, col_start, col_end, stride_row, stride_col, SPREAD, ROWS, COLS,
        WIDE,
    )  # fmt: skip
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(out_ptr + at, tl.broadcast_to(tile, (ROWS, COLS)))


@triton.jit
def sequence_kernel(cu_ptr, out_ptr, sequences, tokens, longest):
    """Sequence of each index into out, [sequences, 2] (begin, length)."""
    for index in range(0, sequences):
        begin, length = sequence(cu_ptr, index, tokens, longest)
        tl.store(out_ptr + 2 * index, begin)
        tl.store(out_ptr + 2 * index + 1, length)


@triton.jit
def predicates_kernel(
    causal_ptr, before_ptr, within_ptr, row_start, key_start, diagonal, end,
    M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Causal and not_before into [M, N], within into [N], as fp32 0 and 1."""
    offs_m = row_start + tl.arange(0, M)
    offs_n = key_start + tl.arange(0, N)
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(causal_ptr + at, tl.where(causal(offs_m, offs_n, diagonal), 1.0, 0.0))
    tl.store(before_ptr + at, tl.where(not_before(offs_m, offs_n, diagonal), 1.0, 0.0))
    tl.store(within_ptr + tl.arange(0, N), tl.where(within(offs_n, end), 1.0, 0.0))


@triton.jit
def ranges_kernel(cases_ptr, out_ptr, cases, BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr):
    """key_range of (row_start, row_end, Sk, first, last) into [cases, 4]."""
    for case in range(0, cases):
        row_start = tl.load(cases_ptr + 5 * case)
        row_end = tl.load(cases_ptr + 5 * case + 1)
        Sk = tl.load(cases_ptr + 5 * case + 2)
        first = tl.load(cases_ptr + 5 * case + 3)
        last = tl.load(cases_ptr + 5 * case + 4)
        begin, all_begin, all_end, end = key_range(
            row_start, row_end, Sk, first, last, BOUND_LEFT, BOUND_RIGHT
        )
        tl.store(out_ptr + 4 * case, begin)
        tl.store(out_ptr + 4 * case + 1, all_begin)
        tl.store(out_ptr + 4 * case + 2, all_end)
        tl.store(out_ptr + 4 * case + 3, end)

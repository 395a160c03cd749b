"""Wrapper kernels for the tests of what `blocks.layout` gathers: pages, heads, numbers."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.gathered import load_grouped, load_paged_tile, store_grouped
from blocks.layout import load_block, load_rows


@triton.jit
def anywhere_kernel(
    x_ptr, out_ptr, row_start, row_end, col_start, col_end, stride_row, stride_col,
    ROWS: tl.constexpr, COLS: tl.constexpr, CHECK_ROWS: tl.constexpr, CHECK_COLS: tl.constexpr,
    WIDE: tl.constexpr, BY_COLUMNS: tl.constexpr,
):  # fmt: skip
    """load_block into out, [ROWS, COLS] contiguous."""
    tile = load_block(
        x_ptr, row_start, row_end, col_start, col_end, stride_row, stride_col,
        ROWS, COLS, CHECK_ROWS, CHECK_COLS, WIDE, BY_COLUMNS,
    )  # fmt: skip
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(out_ptr + at, tile)


@triton.jit
def paged_kernel(
    x_ptr, table_ptr, out_ptr, pages, row_start, row_end, row_begin,
    stride_page, stride_row, stride_col,
    COLS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, PAGE: tl.constexpr,
    CHECK_ROWS: tl.constexpr, WIDE: tl.constexpr, CHECK_BEGIN: tl.constexpr,
):  # fmt: skip
    """load_paged_tile into out, [BLOCK_ROWS, BLOCK_COLS] contiguous."""
    tile = load_paged_tile(
        x_ptr, table_ptr, pages, row_start, row_end, stride_page, stride_row, stride_col,
        COLS, BLOCK_ROWS, BLOCK_COLS, PAGE, CHECK_ROWS, WIDE, row_begin, CHECK_BEGIN,
    )  # fmt: skip
    at = tl.arange(0, BLOCK_ROWS)[:, None] * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    tl.store(out_ptr + at, tile)


@triton.jit
def load_grouped_kernel(
    x_ptr, out_ptr, row_start, row_end, heads, stride_row, stride_head, stride_col,
    COLS: tl.constexpr, BLOCK_ROWS: tl.constexpr, GROUP: tl.constexpr, BLOCK_COLS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """load_grouped into out, [BLOCK_ROWS * GROUP, BLOCK_COLS] contiguous."""
    tile = load_grouped(
        x_ptr, row_start, row_end, heads, stride_row, stride_head, stride_col,
        COLS, BLOCK_ROWS, GROUP, BLOCK_COLS, WIDE,
    )  # fmt: skip
    rows = tl.arange(0, BLOCK_ROWS * GROUP)
    at = rows[:, None] * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    tl.store(out_ptr + at, tile)


@triton.jit
def store_grouped_kernel(
    x_ptr, out_ptr, row_start, row_end, heads, stride_row, stride_head, stride_col,
    COLS: tl.constexpr, BLOCK_ROWS: tl.constexpr, GROUP: tl.constexpr, BLOCK_COLS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """store_grouped of x, [BLOCK_ROWS * GROUP, BLOCK_COLS] fp32, contiguous."""
    rows = tl.arange(0, BLOCK_ROWS * GROUP)
    at = rows[:, None] * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    store_grouped(
        out_ptr, tl.load(x_ptr + at), row_start, row_end, heads,
        stride_row, stride_head, stride_col, COLS, BLOCK_ROWS, GROUP, WIDE,
    )  # fmt: skip


@triton.jit
def numbers_kernel(x_ptr, out_ptr, row_start, row_end, stride, N: tl.constexpr):
    """load_rows into out, [N]."""
    tl.store(out_ptr + tl.arange(0, N), load_rows(x_ptr, row_start, row_end, N, stride))

"""Tiles whose rows lie apart in memory: in pages, or in several heads. Pointers as in `layout`."""

import triton
import triton.language as tl

from .layout import advance, clamped, load_tile, tile_offsets


@triton.jit
def load_paged_tile(
    ptr,
    table_ptr,
    pages,
    row_start,
    row_end,
    stride_page,
    stride_row,
    stride_col,
    COLS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    PAGE: tl.constexpr,
    CHECK_ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    row_begin=0,
    CHECK_BEGIN: tl.constexpr = False,
):
    """Load rows of a matrix whose rows lie in pages, as `load_tile` does of one in one piece.

    Args:
        ptr: pointer to the first row of page 0.
        table_ptr: to int32: page n of the matrix lies in page table[n] of the memory.
        pages: int32. Pages in memory; a number out of their range counts as the nearest in it.
        row_start: int32, a multiple of BLOCK_ROWS.
        stride_page: int32 or int64, elements from a page to the next in memory.
        PAGE: rows of a page, a power of two. Where a tile is no longer than a page, it is loaded in
            one piece; otherwise row by row, which is for GPUs.
        row_end, stride_row, ...: see `load_tile`.

    Returns:
        [BLOCK_ROWS, BLOCK_COLS] of the pointer's dtype.
    """
    if BLOCK_ROWS <= PAGE:
        page = clamped(tl.load(table_ptr + row_start // PAGE), pages - 1)
        start = (
            advance(ptr, page, stride_page)
            - tl.cast(row_start - row_start % PAGE, tl.int64) * stride_row
        )
        tile = load_tile(
            start, row_start, row_end, stride_row, stride_col, COLS, BLOCK_ROWS, BLOCK_COLS,
            CHECK_ROWS, WIDE, row_begin, CHECK_BEGIN,
        )  # fmt: skip
    else:
        rows = row_start + tl.arange(0, BLOCK_ROWS)
        cols = tl.arange(0, BLOCK_COLS)[None, :]
        mask_row = rows < row_end
        if CHECK_BEGIN:
            mask_row = mask_row & (rows >= row_begin)
        found = tl.load(table_ptr + rows // PAGE, mask=rows < row_end, other=0)
        found = tl.minimum(tl.maximum(found, 0), pages - 1).to(tl.int64)
        start = found * stride_page + (rows % PAGE) * tl.cast(stride_row, tl.int64)
        pointers = ptr + start[:, None] + tile_offsets(0, stride_col, 1, BLOCK_COLS, WIDE)
        tile = tl.load(pointers, mask=mask_row[:, None] & (cols < COLS), other=0.0)
    return tile


@triton.jit
def load_grouped(
    ptr, row_start, row_end, heads, stride_row, stride_head, stride_col,
    COLS: tl.constexpr, BLOCK_ROWS: tl.constexpr, GROUP: tl.constexpr, BLOCK_COLS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Load the rows of several heads as one tile: the heads of a row stand one below the other.

    Args:
        ptr: pointer to the first row of the first head.
        row_start, row_end: int32. First row; first row not to be read.
        heads: int32. Heads there are, at most GROUP.
        stride_row, stride_head, stride_col: int32 or int64, in elements.
        COLS: columns there are, at most BLOCK_COLS.
        BLOCK_ROWS, GROUP: rows, and heads of each, in the tile.
        WIDE: see `tile_offsets`.

    Returns:
        [BLOCK_ROWS * GROUP, BLOCK_COLS] of the pointer's dtype, 0 where not read.
    """
    start = advance(ptr, row_start, stride_row)
    offsets, mask = _grouped(
        row_end - row_start, heads, stride_row, stride_head, stride_col, COLS, BLOCK_ROWS, GROUP,
        BLOCK_COLS, WIDE,
    )  # fmt: skip
    tile = tl.load(start + offsets, mask=mask, other=0.0)
    return tl.reshape(tile, (BLOCK_ROWS * GROUP, BLOCK_COLS))


@triton.jit
def store_grouped(
    ptr, tile, row_start, row_end, heads, stride_row, stride_head, stride_col,
    COLS: tl.constexpr, BLOCK_ROWS: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Store what `load_grouped` would load, and nothing outside.

    Args:
        ptr: pointer; its dtype is what the tile is rounded to.
        tile: [BLOCK_ROWS * GROUP, BLOCK_COLS] fp32.
        row_start, ...: see `load_grouped`.
    """
    BLOCK_COLS: tl.constexpr = tile.shape[1]
    start = advance(ptr, row_start, stride_row)
    offsets, mask = _grouped(
        row_end - row_start, heads, stride_row, stride_head, stride_col, COLS, BLOCK_ROWS, GROUP,
        BLOCK_COLS, WIDE,
    )  # fmt: skip
    tile = tl.reshape(tile.to(ptr.dtype.element_ty), (BLOCK_ROWS, GROUP, BLOCK_COLS))
    tl.store(start + offsets, tile, mask=mask)


@triton.jit
def _grouped(
    rows, heads, stride_row, stride_head, stride_col,
    COLS: tl.constexpr, BLOCK_ROWS: tl.constexpr, GROUP: tl.constexpr, BLOCK_COLS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Offsets and mask of a tile [BLOCK_ROWS, GROUP, BLOCK_COLS] from its first element."""
    row = tl.arange(0, BLOCK_ROWS)
    head = tl.arange(0, GROUP)
    col = tl.arange(0, BLOCK_COLS)
    mask = ((row < rows)[:, None] & (head < heads)[None, :])[:, :, None]
    mask = mask & (col < COLS)[None, None, :]
    if WIDE:
        row = row.to(tl.int64)
        head = head.to(tl.int64)
        col = col.to(tl.int64)
    offsets = (row * stride_row)[:, None, None] + (head * stride_head)[None, :, None]
    return offsets + (col * stride_col)[None, None, :], mask

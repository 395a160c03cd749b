"""Where a tile lies in memory: the one place that builds pointers and their bounds.

BNSD, BSND and any other strided view differ by their strides alone. Offsets of whole tiles are
always int64; offsets within a tile are int32 unless WIDE, which the host sets when the strides are
so large that a tile spans 2**31 elements or more.
"""

import triton
import triton.language as tl


@triton.jit
def advance(ptr, index, stride):
    """Pointer to element `index` along one dimension, in 64-bit arithmetic.

    Args:
        ptr: pointer.
        index, stride: int32 or int64, in elements.
    """
    return ptr + tl.cast(index, tl.int64) * stride


@triton.jit
def tile_offsets(
    stride_row, stride_col, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, WIDE: tl.constexpr
):
    """Offsets of a tile's elements from its first one.

    Args:
        stride_row, stride_col: int32 or int64, in elements.
        BLOCK_ROWS, BLOCK_COLS: tile shape, powers of two.
        WIDE: compute in int64.

    Returns:
        [BLOCK_ROWS, BLOCK_COLS] int32, or int64 where WIDE.
    """
    rows = tl.arange(0, BLOCK_ROWS)
    cols = tl.arange(0, BLOCK_COLS)
    if WIDE:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
    return rows[:, None] * stride_row + cols[None, :] * stride_col


@triton.jit
def load_tile(
    ptr,
    row_start,
    row_end,
    stride_row,
    stride_col,
    COLS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    row_begin=0,
    CHECK_BEGIN: tl.constexpr = False,
    BY_COLUMNS: tl.constexpr = False,
):
    """Load rows [row_start, row_start + BLOCK_ROWS) of a matrix; what lies outside it is 0.

    Args:
        ptr: pointer to the matrix's first element.
        row_start, row_end: int32. First row of the tile; first row not to be read.
        stride_row, stride_col: int32 or int64, in elements.
        COLS: columns the matrix has, at most BLOCK_COLS.
        CHECK_ROWS: False promises that all rows lie before row_end.
        WIDE: see `tile_offsets`.
        row_begin: int32. First row to be read; it counts where CHECK_ROWS and CHECK_BEGIN.
        BY_COLUMNS: stride_row is 1 and stride_col is not: read the tile column by column and turn
            it. The same result; on Ascend pieces that lie together are moved at once.

    Returns:
        [BLOCK_ROWS, BLOCK_COLS] of the pointer's dtype.
    """
    rows = tl.arange(0, BLOCK_ROWS)
    cols = tl.arange(0, BLOCK_COLS)
    start = advance(ptr, row_start, stride_row)
    if BY_COLUMNS:
        pointers = start + tile_offsets(stride_col, stride_row, BLOCK_COLS, BLOCK_ROWS, WIDE)
        rows = rows[None, :]
        cols = cols[:, None]
    else:
        pointers = start + tile_offsets(stride_row, stride_col, BLOCK_ROWS, BLOCK_COLS, WIDE)
        rows = rows[:, None]
        cols = cols[None, :]
    mask_row = rows < row_end - row_start
    if CHECK_BEGIN:
        mask_row = mask_row & (rows >= row_begin - row_start)
    mask_col = cols < COLS
    if CHECK_ROWS and COLS < BLOCK_COLS:
        tile = tl.load(pointers, mask=mask_row & mask_col, other=0.0)
    elif CHECK_ROWS:
        tile = tl.load(pointers, mask=mask_row, other=0.0)
    elif COLS < BLOCK_COLS:
        tile = tl.load(pointers, mask=mask_col, other=0.0)
    else:
        tile = tl.load(pointers)
    if BY_COLUMNS:
        tile = tl.trans(tile)
    return tile


@triton.jit
def load_described(
    descriptor, batch, head, row_start, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr
):
    """Load a tile by a tensor descriptor: the memory system of NVIDIA's sm_90 finds the addresses.

    Args:
        descriptor: of [batches, heads, rows, columns], in tiles [1, 1, BLOCK_ROWS, BLOCK_COLS].
        batch, head: int32.
        row_start: int32. First row of the tile. What lies outside of the tensor is 0.
        BLOCK_ROWS, BLOCK_COLS: tile shape.

    Returns:
        [BLOCK_ROWS, BLOCK_COLS] of the descriptor's dtype.
    """
    tile = descriptor.load([batch, head, row_start, 0])
    return tl.reshape(tile, (BLOCK_ROWS, BLOCK_COLS))


@triton.jit
def load_block(
    ptr,
    row_start,
    row_end,
    col_start,
    col_end,
    stride_row,
    stride_col,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    CHECK_ROWS: tl.constexpr,
    CHECK_COLS: tl.constexpr,
    WIDE: tl.constexpr,
    BY_COLUMNS: tl.constexpr = False,
):
    """Load a tile from anywhere in a matrix; what lies outside its rows and columns is 0.

    Args:
        ptr: pointer to the matrix's first element.
        row_start, row_end: int32. First row of the tile; first row not to be read.
        col_start, col_end: int32. The same of columns.
        stride_row, stride_col: int32 or int64, in elements.
        BLOCK_ROWS, BLOCK_COLS: tile shape.
        CHECK_ROWS, CHECK_COLS: False promises that all rows, or columns, lie before their end.
        WIDE: see `tile_offsets`.
        BY_COLUMNS: see `load_tile`.

    Returns:
        [BLOCK_ROWS, BLOCK_COLS] of the pointer's dtype.
    """
    start = advance(advance(ptr, row_start, stride_row), col_start, stride_col)
    rows = tl.arange(0, BLOCK_ROWS)
    cols = tl.arange(0, BLOCK_COLS)
    if BY_COLUMNS:
        pointers = start + tile_offsets(stride_col, stride_row, BLOCK_COLS, BLOCK_ROWS, WIDE)
        rows = rows[None, :]
        cols = cols[:, None]
    else:
        pointers = start + tile_offsets(stride_row, stride_col, BLOCK_ROWS, BLOCK_COLS, WIDE)
        rows = rows[:, None]
        cols = cols[None, :]
    if CHECK_ROWS and CHECK_COLS:
        mask = (rows < row_end - row_start) & (cols < col_end - col_start)
        tile = tl.load(pointers, mask=mask, other=0.0)
    elif CHECK_ROWS:
        tile = tl.load(pointers, mask=rows < row_end - row_start, other=0.0)
    elif CHECK_COLS:
        tile = tl.load(pointers, mask=cols < col_end - col_start, other=0.0)
    else:
        tile = tl.load(pointers)
    if BY_COLUMNS:
        tile = tl.trans(tile)
    return tile


@triton.jit
def load_spread(
    ptr,
    row_start,
    row_end,
    col_start,
    col_end,
    stride_row,
    stride_col,
    SPREAD: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Load a tile of a matrix that may be broadcast: what is the same for all rows is read once.

    Args:
        ptr: pointer to the matrix's first element.
        row_start, row_end: int32. First row of the tile; first row not to be read.
        col_start, col_end: int32. The same of columns.
        stride_row, stride_col: int32 or int64, in elements.
        SPREAD: "full", "columns" (the rows are all alike), "rows" (the columns are), or "one"
            number.
        BLOCK_ROWS, BLOCK_COLS: tile shape.
        WIDE: see `tile_offsets`.

    Returns:
        [BLOCK_ROWS, BLOCK_COLS], [1, BLOCK_COLS], [BLOCK_ROWS, 1] or [1, 1] of the pointer's dtype,
        0 where not read.
    """
    rows = tl.arange(0, BLOCK_ROWS)[:, None]
    cols = tl.arange(0, BLOCK_COLS)[None, :]
    mask_row = rows < row_end - row_start
    mask_col = cols < col_end - col_start
    if SPREAD == "full":
        start = advance(advance(ptr, row_start, stride_row), col_start, stride_col)
        offsets = tile_offsets(stride_row, stride_col, BLOCK_ROWS, BLOCK_COLS, WIDE)
        tile = tl.load(start + offsets, mask=mask_row & mask_col, other=0)
    elif SPREAD == "columns":
        start = advance(ptr, col_start, stride_col)
        offsets = tile_offsets(0, stride_col, 1, BLOCK_COLS, WIDE)
        tile = tl.load(start + offsets, mask=mask_col, other=0)
    elif SPREAD == "rows":
        start = advance(ptr, row_start, stride_row)
        offsets = tile_offsets(stride_row, 0, BLOCK_ROWS, 1, WIDE)
        tile = tl.load(start + offsets, mask=mask_row, other=0)
    else:
        tl.static_assert(SPREAD == "one", "SPREAD is 'full', 'columns', 'rows' or 'one'")
        tile = tl.full((1, 1), 0, ptr.dtype.element_ty) + tl.load(ptr)
    return tile


@triton.jit
def sequence(cu_ptr, index, tokens, longest):
    """Where one of several sequences packed one after another lies.

    Args:
        cu_ptr: pointer to [B + 1] int32 or int64: where each begins, and the last ends.
        index: int32. Which one.
        tokens: int32. Length of all together: nothing outside is ever addressed.
        longest: int32. What lies beyond this length of one sequence is left out.

    Returns:
        (begin, length): int32.
    """
    begin = clamped(tl.load(cu_ptr + index), tokens)
    end = clamped(tl.load(cu_ptr + index + 1), tokens)
    return begin, clamped(end - begin, longest)


@triton.jit
def clamped(length, limit):
    """A length from a user's tensor, brought into [0, limit].

    Args:
        length: int32 or int64.
        limit: int32.

    Returns:
        int32.
    """
    return tl.minimum(tl.maximum(length, 0), limit).to(tl.int32)


@triton.jit
def store_tile(
    ptr,
    tile,
    row_start,
    row_end,
    stride_row,
    stride_col,
    COLS: tl.constexpr,
    WIDE: tl.constexpr,
    chosen=None,
):
    """Store a tile as rows [row_start, ...) of a matrix, and nothing outside it.

    Args:
        ptr: pointer to the matrix's first element; its dtype is what the tile is rounded to.
        tile: [BLOCK_ROWS, BLOCK_COLS] fp32.
        row_start, row_end: int32. First row of the tile; first row not to be written.
        stride_row, stride_col: int32 or int64, in elements.
        COLS: columns the matrix has, at most BLOCK_COLS.
        WIDE: see `tile_offsets`.
        chosen: bool, of the tile's shape: store these alone. None: all.
    """
    BLOCK_ROWS: tl.constexpr = tile.shape[0]
    BLOCK_COLS: tl.constexpr = tile.shape[1]
    offsets = tile_offsets(stride_row, stride_col, BLOCK_ROWS, BLOCK_COLS, WIDE)
    mask_row = tl.arange(0, BLOCK_ROWS)[:, None] < row_end - row_start
    mask_col = tl.arange(0, BLOCK_COLS)[None, :] < COLS
    mask = mask_row & mask_col
    if chosen is not None:
        mask = mask & chosen
    tl.store(
        advance(ptr, row_start, stride_row) + offsets,
        tile.to(ptr.dtype.element_ty),
        mask=mask,
    )


@triton.jit
def store_block(
    ptr, tile, row_start, row_end, col_start, col_end, stride_row, stride_col, WIDE: tl.constexpr
):
    """Store a tile anywhere in a matrix, and nothing outside its rows and columns.

    Args:
        ptr: pointer to the matrix's first element; its dtype is what the tile is rounded to.
        tile: [BLOCK_ROWS, BLOCK_COLS] fp32.
        row_start, row_end: int32. First row of the tile; first row not to be written.
        col_start, col_end: int32. The same of columns.
        stride_row, stride_col: int32 or int64, in elements.
        WIDE: see `tile_offsets`.
    """
    start = advance(advance(ptr, row_start, stride_row), col_start, stride_col)
    offsets = tile_offsets(stride_row, stride_col, tile.shape[0], tile.shape[1], WIDE)
    mask_row = tl.arange(0, tile.shape[0])[:, None] < row_end - row_start
    mask_col = tl.arange(0, tile.shape[1])[None, :] < col_end - col_start
    tl.store(start + offsets, tile.to(ptr.dtype.element_ty), mask=mask_row & mask_col)


@triton.jit
def store_rows(ptr, values, row_start, row_end):
    """Store one number a row into a contiguous vector, and nothing from row_end on.

    Args:
        ptr: pointer to the vector's first element.
        values: [BLOCK_ROWS] fp32.
        row_start, row_end: int32.
    """
    rows = tl.arange(0, values.shape[0])
    tl.store(ptr + row_start + rows, values, mask=rows < row_end - row_start)


@triton.jit
def load_rows(ptr, row_start, row_end, BLOCK_ROWS: tl.constexpr, stride=1):
    """Load one number a row of a vector; from row_end on they are 0.

    Args:
        ptr: pointer to the vector's first element.
        row_start, row_end: int32.
        stride: int32, elements from a number to the next.

    Returns:
        [BLOCK_ROWS] of the pointer's dtype.
    """
    rows = tl.arange(0, BLOCK_ROWS)
    start = advance(ptr, row_start, stride)
    return tl.load(start + rows * stride, mask=rows < row_end - row_start, other=0.0)


@triton.jit
def piece_of(pieces_ptr, row, pieces, LEVELS: tl.constexpr):
    """Which piece of a matrix a row belongs to, one of sixteen in a level.

    Args:
        pieces_ptr: to int32 [pieces + 1, 4], see `owner_of`.
        row: int32; rows outside count as those of the nearest piece.
        pieces: int32, from 1 to 16**LEVELS.
        LEVELS: at most 7. Each waits for memory once.

    Returns:
        int32: number of the piece.
    """
    piece = row * 0
    for level in tl.static_range(LEVELS):
        # the last that does not begin behind the row, of sixteen that are a power of 16 apart
        apart = 1 << 4 * (LEVELS - 1 - level)
        ones = tl.arange(0, 16) * apart
        inside = ones < pieces - piece
        begins = tl.load(pieces_ptr + piece * 4 + ones * 4, mask=inside, other=0)
        before = tl.sum((inside & (begins <= row)).to(tl.int32), axis=0)
        piece += tl.maximum(before - 1, 0) * apart
    return piece


@triton.jit
def owner_of(pieces_ptr, row, piece):
    """Who owns a row of a matrix that is cut into pieces, and where it lies there.

    Args:
        pieces_ptr: to int32 [pieces + 1, 4]: a piece's first row, its owner, the place of that row
            among the owner's, and how many rows the owner has. No piece is empty, each begins where
            the one before it ends, and the last line says with its first number where all end.
        row: int32.
        piece: int32. Its piece, see `piece_of`.

    Returns:
        (owner, place, rows, first, end): int32. `place` is that of the row itself, `rows` how many
        the owner has; first and end are the piece's first row and the first behind.
    """
    first = tl.load(pieces_ptr + piece * 4)
    owner = tl.load(pieces_ptr + piece * 4 + 1)
    place = tl.load(pieces_ptr + piece * 4 + 2) + row - first
    rows = tl.load(pieces_ptr + piece * 4 + 3)
    end = tl.load(pieces_ptr + piece * 4 + 4)
    return owner, place, rows, first, end

"""How the raw softmax state of query rows lies in memory.

    rows  [..., 5, S]        fp32: pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp
    acc   [..., S, 2, Dv]    fp32: acc, acc_comp

S is the number of rows. See `blocks.softmax` for what each of the seven is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.layout import advance, load_rows, load_tile, store_rows, store_tile


@triton.jit
def store_state(
    rows_ptr, acc_ptr, pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
    row_start, row_end, rows_stride, stride_acc, Dv: tl.constexpr, PLAIN: tl.constexpr,
    WIDE: tl.constexpr, chosen=None,
):  # fmt: skip
    """Store the state of a tile of rows, and nothing from row_end on.

    Args:
        rows_ptr, acc_ptr: to the state's first row.
        pivot ... acc_comp: the state.
        row_start, row_end: int32. First row of the tile; first row not to be written.
        rows_stride: int32, elements from one of the five rows to the next.
        stride_acc: elements from one row of acc to the next.
        PLAIN: the sums are not compensated: acc_comp is not stored.
        WIDE: see `blocks.layout.tile_offsets`.
        chosen: bool, of acc's shape: of acc and acc_comp store these alone, and nothing else. None:
            everything.
    """
    if chosen is None:
        store_rows(rows_ptr, pivot, row_start, row_end)
        store_rows(advance(rows_ptr, 1, rows_stride), row_sum, row_start, row_end)
        store_rows(advance(rows_ptr, 2, rows_stride), row_sum_comp, row_start, row_end)
        store_rows(advance(rows_ptr, 3, rows_stride), lse_sum, row_start, row_end)
        store_rows(advance(rows_ptr, 4, rows_stride), lse_sum_comp, row_start, row_end)
    store_tile(acc_ptr, acc, row_start, row_end, stride_acc, 1, Dv, WIDE, chosen)
    if not PLAIN:
        store_tile(acc_ptr + Dv, acc_comp, row_start, row_end, stride_acc, 1, Dv, WIDE, chosen)


@triton.jit
def load_state(
    rows_ptr, acc_ptr, row_start, row_end, rows_stride, stride_acc, Dv: tl.constexpr,
    COLS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Load what `store_state` stored; rows from row_end on are 0 throughout.

    COLS: how many of the Dv columns there are to load, from acc_ptr on.

    Returns:
        The seven tiles of the state, fp32.
    """
    pivot = load_rows(rows_ptr, row_start, row_end, BLOCK_M)
    row_sum = load_rows(advance(rows_ptr, 1, rows_stride), row_start, row_end, BLOCK_M)
    row_sum_comp = load_rows(advance(rows_ptr, 2, rows_stride), row_start, row_end, BLOCK_M)
    lse_sum = load_rows(advance(rows_ptr, 3, rows_stride), row_start, row_end, BLOCK_M)
    lse_sum_comp = load_rows(advance(rows_ptr, 4, rows_stride), row_start, row_end, BLOCK_M)
    acc = load_tile(
        acc_ptr, row_start, row_end, stride_acc, 1, COLS, BLOCK_M, BLOCK_DV, True, False
    )  # [BLOCK_M, BLOCK_DV]
    if PLAIN:
        acc_comp = tl.zeros_like(acc)
    else:
        acc_comp = load_tile(
            acc_ptr + Dv, row_start, row_end, stride_acc, 1, COLS, BLOCK_M, BLOCK_DV, True, False
        )  # [BLOCK_M, BLOCK_DV]
    return pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp

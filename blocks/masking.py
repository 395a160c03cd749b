"""Which keys a query may see: predicates on offset tiles, and the key range a tile needs.

Row and key numbers count from 0. `diagonal` is the offset of the causal diagonal: query i is
aligned with key i + diagonal.
"""

import triton
import triton.language as tl


@triton.jit
def causal(offs_m, offs_n, diagonal):
    """Keys not after the query they are seen from.

    Args:
        offs_m: [M] int32. Query rows.
        offs_n: [N] int32. Keys.
        diagonal: int32. 0 aligns the first query with the first key (top-left), Sk - Sq the last
            query with the last key (bottom-right).

    Returns:
        [M, N] bool. True where key <= row + diagonal.
    """
    return offs_n[None, :] <= offs_m[:, None] + diagonal


@triton.jit
def within(offs, end):
    """Positions before the end of a sequence.

    Args:
        offs: [N] int32.
        end: int32, exclusive.

    Returns:
        [N] bool.
    """
    return offs < end


@triton.jit
def not_before(offs_m, offs_n, first):
    """Keys that a window to the left still reaches.

    Args:
        offs_m: [M] int32. Query rows.
        offs_n: [N] int32. Keys.
        first: int32. The first key that query 0 reaches; it may be negative.

    Returns:
        [M, N] bool. True where key >= row + first.
    """
    return offs_n[None, :] >= offs_m[:, None] + first


@triton.jit
def key_range(
    row_start, row_end, Sk, first, last, BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr
):
    """Which keys a tile of queries needs, and which of them need no mask.

    Args:
        row_start, row_end: int32. Query rows [row_start, row_end) of the tile. None of them: no key
            is needed.
        Sk: int32. Number of keys.
        first, last: int32. Query i sees the keys from i + first to i + last.
        BOUND_LEFT, BOUND_RIGHT: whether first and last hold at all.

    Returns:
        (begin, all_begin, all_end, end): int32. No row of the tile sees a key outside [begin, end);
        each sees all of [all_begin, all_end), where that is not empty.
        0 <= begin <= end <= Sk, begin <= all_begin, all_end <= end.
    """
    end = tl.where(row_start < row_end, Sk, 0)
    all_end = end
    begin = tl.minimum(end, 0)
    all_begin = begin
    if BOUND_RIGHT:
        all_end = tl.minimum(tl.maximum(row_start + last + 1, 0), end)
        end = tl.minimum(tl.maximum(row_end + last, 0), end)
    if BOUND_LEFT:
        begin = tl.minimum(tl.maximum(row_start + first, 0), end)
        all_begin = tl.maximum(row_end - 1 + first, begin)
    return begin, all_begin, all_end, end

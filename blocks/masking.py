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
def key_range(row_start, row_end, Sk, diagonal, CAUSAL: tl.constexpr):
    """Which keys a tile of queries needs, and which of them need no mask.

    Args:
        row_start, row_end: int32. Query rows [row_start, row_end) of the tile, at least one.
        Sk: int32. Number of keys.
        diagonal: int32. See `causal`.
        CAUSAL: whether the causal rule holds at all.

    Returns:
        (seen_by_all, seen_by_any): int32. Every row of the tile sees the keys [0, seen_by_all);
        no row sees a key from seen_by_any on. 0 <= seen_by_all <= seen_by_any <= Sk.
    """
    seen_by_all = Sk
    seen_by_any = Sk
    if CAUSAL:
        seen_by_all = tl.minimum(tl.maximum(row_start + diagonal + 1, 0), Sk)
        seen_by_any = tl.minimum(tl.maximum(row_end + diagonal, 0), Sk)
    return seen_by_all, seen_by_any

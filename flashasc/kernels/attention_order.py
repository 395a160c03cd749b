"""Which tile of queries a program of attention computes: results do not depend on it, times do.

Programs start in the order of their numbers, and one that starts last and takes long keeps the
others waiting. So what takes longest goes first.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def head_by_head(task, Hq, tiles_m):
    """The tiles of a head, the last rows first: of a causal problem they see the most keys.

    Args:
        task: int32, (batch * Hq + head) * tiles_m + position.
        Hq, tiles_m: int32. Heads, and tiles of each.

    Returns:
        (batch, head, tile): int32.
    """
    pid_bh = task // tiles_m
    return pid_bh // Hq, pid_bh % Hq, tiles_m - 1 - task % tiles_m


@triton.jit
def heads_together(task, tasks, Hq, tiles_m, together):
    """The last tiles of some heads, then those before them, and so on; then the next heads.

    Args:
        task: int32, below tasks = batches * Hq * tiles_m.
        together: int32, at least 1. How many heads; the last ones may be fewer.

    Returns:
        (batch, head, tile): int32.
    """
    section = task // (together * tiles_m) * together
    heads = tl.minimum(together, tasks // tiles_m - section)
    within = task - section * tiles_m
    pid_bh = section + within % heads
    return pid_bh // Hq, pid_bh % Hq, tiles_m - 1 - within // heads


@triton.jit
def longest_first(task, order_ptr, sequences, Hq):
    """The tiles of packed sequences: of those with the most keys first, head by head.

    Args:
        task: int32.
        order_ptr: to int32 [2 * sequences + 1], see `packed_order_kernel`.
        sequences: int32, at least 1.
        Hq: int32. Heads.

    Returns:
        (batch, head, tile): int32; batch is -1 where all tiles are other programs'.
    """
    first_ptr = order_ptr + sequences
    # halving: the last sequence whose tiles do not begin behind the task has some
    low = 0
    high = sequences
    while high - low > 1:
        middle = (low + high) // 2
        behind = tl.load(first_ptr + middle) * Hq > task
        low = tl.where(behind, low, middle)
        high = tl.where(behind, middle, high)
    first = tl.load(first_ptr + low)
    tiles = tl.load(first_ptr + low + 1) - first
    within = task - first * Hq
    batch = tl.where(within < tiles * Hq, tl.load(order_ptr + low), -1)
    tiles = tl.maximum(tiles, 1)
    return batch, within // tiles, tiles - 1 - within % tiles


@triton.jit
def place_of(
    task, tasks, order_ptr, sequences, Hq, tiles_m, together, ORDER: tl.constexpr
):  # fmt: skip
    """The batch, head and tile that a program computes, in one of the orders above.

    Args:
        ORDER: "heads", "together" or "longest".
    """
    if ORDER == "heads":
        batch, head, tile = head_by_head(task, Hq, tiles_m)
    elif ORDER == "together":
        batch, head, tile = heads_together(task, tasks, Hq, tiles_m, together)
    else:
        tl.static_assert(ORDER == "longest", "ORDER is 'heads', 'together' or 'longest'")
        batch, head, tile = longest_first(task, order_ptr, sequences, Hq)
    return batch, head, tile

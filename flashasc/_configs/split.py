"""How the rows of few queries fill a tile, and which row of a table their kernel runs with."""

from __future__ import annotations

from .tile import TileConfig


def rows_of_a_tile(row: TileConfig, group: int) -> tuple[int, int]:
    """(queries, heads of each) that a tile of a table's row holds.

    Args:
        row: of a table for few queries.
        group: query heads that share a key head.
    """
    heads = 1
    while heads < min(group, row.block_m):
        heads *= 2
    return row.block_m // heads, heads

"""How the rows of few queries fill a tile, and which row of a table their kernel runs with."""

from __future__ import annotations

from dataclasses import replace

from .tile import TileConfig


def within_pages(row: TileConfig, page: int) -> TileConfig:
    """A row for few queries whose tiles lie in one page each, for what moves whole pieces alone.

    A GPU gathers rows one by one, and keeps its tile. Sums are compensated as many keys apart as
    before; a tile of other keys may change last bits.

    Args:
        row: of a table for few queries.
        page: keys of a page; 0: they lie in one piece.
    """
    if not row.core_loop or not page or page >= row.block_n:
        return row
    segment = row.segment * row.block_n // page if row.segment > 1 else 1
    return replace(row, block_n=page, segment=segment)


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

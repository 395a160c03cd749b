"""blocks.layout.piece_of and owner_of: whose a row is, as the ranks' placement has it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from block_device import Device
from owner_kernels import owner_kernel

from flashasc.distributed._parcel import Pieces
from flashasc.distributed._placement import Placement, positions, shards
from flashasc.kernels.peer_launch import PeerStores

HELD: list[tuple[int, int, Placement, list[int] | None]] = [
    (1, 9, "contiguous", None),
    (2, 23, "zigzag", None),
    (3, 17, "contiguous", [11, 0, 6]),
    # chunks of no rows
    (4, 5, "zigzag", None),
    (5, 64, "zigzag", None),
]


def look_up(
    device: Device, lines: Sequence[tuple[int, ...]], rows: Sequence[int], levels: int
) -> list[list[int]]:
    """Piece, owner, place, rows of the owner, first and end of each row."""
    (found,) = device.run(
        owner_kernel,
        {
            "pieces_ptr": torch.tensor(lines, dtype=torch.int32),
            "rows_ptr": torch.tensor(rows, dtype=torch.int32),
            "rows": len(rows),
            "pieces": len(lines) - 1,
        },
        {"out_ptr": (len(rows), 6)},
        dtype=torch.int32,
        LEVELS=levels,
    )
    return [[int(x) for x in line] for line in found.tolist()]


@pytest.mark.parametrize(("world", "rows", "placement", "counts"), HELD)
@pytest.mark.parametrize("levels", [1, 2])
def test_each_row_lies_where_its_owner_has_it(
    device: Device,
    world: int,
    rows: int,
    placement: Placement,
    counts: list[int] | None,
    levels: int,
) -> None:
    held = shards([rows], world, placement, counts)
    pieces = Pieces.of(held)
    found = look_up(device, pieces.lines, range(rows), levels)
    # from the placement itself, not from the table
    places = {
        int(row): (owner, place, len(mine))
        for owner, mine in enumerate(positions(shard) for shard in held)
        for place, row in enumerate(mine)
    }
    for row, (_, owner, place, owned, first, end) in enumerate(found):
        assert (owner, place, owned) == places[row], row
        assert first <= row < end
        assert {places[other][0] for other in range(first, end)} == {owner}
        assert pieces.owner_of(row) == (owner, place, end)


@pytest.mark.parametrize("pieces", [1, 15, 16, 17, 255, 256, 257])
def test_edges_of_many_pieces(device: Device, pieces: int) -> None:
    """As many levels as launches take, and pieces on both sides of each level's edge."""
    sizes = [1 + 7 * i % 5 for i in range(pieces)]
    firsts = [sum(sizes[:i]) for i in range(pieces + 1)]
    lines = [(first, 3 * i % 11, 5 * i, 9 * i + 8) for i, first in enumerate(firsts)]
    rows = sorted({-1, firsts[-1], *(firsts[:-1]), *(end - 1 for end in firsts[1:])})
    launched = PeerStores(
        torch.empty(pieces), torch.empty(pieces + 1, 4), torch.empty(0), 0, 0, 0, 0, 1, True
    ).constants()["LEVELS"]
    assert launched == (1 if pieces <= 16 else 2 if pieces <= 256 else 3)
    for row, found in zip(rows, look_up(device, lines, rows, launched), strict=True):
        piece = max(i for i in range(pieces) if firsts[i] <= row or i == 0)
        first, owner, place, owned = lines[piece]
        assert found == [piece, owner, place + row - first, owned, first, firsts[piece + 1]], row


def test_tiles_are_counted_for_each_piece() -> None:
    """What ranks wait for: each tile of each run of their rows."""
    pieces = Pieces.of(shards([40], 2, "zigzag"))
    assert pieces.owned == (20, 20)
    tiles = [range(first, min(first + 16, 40)) for first in range(0, 40, 16)]
    for rank in range(2):
        seen = {
            (tile.start, pieces.owner_of(row)[2])
            for tile in tiles
            for row in tile
            if pieces.owner_of(row)[0] == rank
        }
        assert pieces.tiles_of(rank, 16) == len(seen)

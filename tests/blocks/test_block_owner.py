"""blocks.layout.owner_of: whose a row is, as the ranks' placement has it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from block_device import Device
from owner_kernels import owner_kernel

from flashasc.distributed._parcel import Pieces
from flashasc.distributed._placement import Placement, positions, shards

HELD: list[tuple[int, int, Placement, list[int] | None]] = [
    (1, 9, "contiguous", None),
    (2, 23, "zigzag", None),
    (3, 17, "contiguous", [11, 0, 6]),
    # chunks of no rows
    (4, 5, "zigzag", None),
    (5, 64, "zigzag", None),
]


@pytest.mark.parametrize(("world", "rows", "placement", "counts"), HELD)
@pytest.mark.parametrize("more", [0, 3])
def test_each_row_lies_where_its_owner_has_it(
    device: Device,
    world: int,
    rows: int,
    placement: Placement,
    counts: list[int] | None,
    more: int,
) -> None:
    held = shards([rows], world, placement, counts)
    pieces = Pieces.of(held)
    n = len(pieces.lines) - 1
    (found,) = device.run(
        owner_kernel,
        {
            "pieces_ptr": torch.tensor(pieces.lines, dtype=torch.int32),
            "rows": rows,
            "pieces": n,
        },
        {"out_ptr": (rows, 5)},
        dtype=torch.int32,
        STEPS=n.bit_length() + more,
    )
    # from the placement itself, not from the table
    places = {
        int(row): (owner, place, len(mine))
        for owner, mine in enumerate(positions(shard) for shard in held)
        for place, row in enumerate(mine)
    }
    for row, (owner, place, owned, first, end) in enumerate(found.tolist()):
        assert (owner, place, owned) == places[row], row
        assert first <= row < end
        assert {places[other][0] for other in range(first, end)} == {owner}
        assert pieces.owner_of(row) == (owner, place, end)


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

"""Whose rows are whose on the way back from heads to sequence, and where they lie there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ._placement import Shard, tokens_of

ALIGNMENT = 256
"""Of outputs and log-sum-exps in a buffer, in bytes."""


@dataclass(frozen=True)
class Pieces:
    """Runs of one sequence's rows, each of which one rank owns; none is empty.

    Attributes:
        lines: first row, owner, place of that row among the owner's, rows that the owner has; and a
            last line (rows of all, 0, 0, 0). `blocks.layout.owner_of` reads the same table.
        owned: how many rows each rank has.
    """

    lines: tuple[tuple[int, int, int, int], ...]
    owned: tuple[int, ...]

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Pieces:
        """Of what each rank holds of one sequence."""
        lines = []
        owned = tuple(tokens_of(shard) for shard in shards)
        for owner, shard in enumerate(shards):
            place = 0
            for piece in shard:
                if piece.tokens:
                    lines.append((piece.starts[0], owner, place, owned[owner]))
                place += piece.tokens
        return cls((*sorted(lines), (sum(owned), 0, 0, 0)), owned)

    @property
    def rows(self) -> int:
        """Rows of all ranks together."""
        return self.lines[-1][0]

    def owner_of(self, row: int) -> tuple[int, int, int]:
        """(owner, place among its rows, first row behind the piece) of a row."""
        number = bisect_right(self._firsts, row) - 1
        first, owner, place, _ = self.lines[number]
        return owner, place + row - first, self.lines[number + 1][0]

    @cached_property
    def _firsts(self) -> list[int]:
        return [line[0] for line in self.lines[:-1]]

    def tiles_of(self, owner: int, block_m: int) -> int:
        """How many tiles of block_m rows hold rows of a rank, counted for each of its pieces."""
        spans = zip(self.lines, self.lines[1:])
        return sum(
            (end[0] - 1) // block_m - line[0] // block_m + 1
            for line, end in spans
            if line[1] == owner
        )


@dataclass(frozen=True)
class Parcel:
    """What the ranks send back in one call; the same on all of them.

    Attributes:
        B: sequences of the batch.
        heads: query heads of each rank.
        world: how many ranks.
        Dv: size of a value.
        dtype: of the output.
        with_lse: a log-sum-exp goes along.
        heads_first: outputs are [B, all heads, rows, Dv], else [B, rows, all heads, Dv].
        pieces: of each sequence.
        block_m: rows of a tile.
    """

    B: int
    heads: int
    world: int
    Dv: int
    dtype: torch.dtype
    with_lse: bool
    heads_first: bool
    pieces: Pieces
    block_m: int

    @property
    def all_heads(self) -> int:
        """Query heads of all ranks."""
        return self.heads * self.world

    def out_shape(self, owner: int) -> tuple[int, int, int, int]:
        """Of a rank's output."""
        rows = self.pieces.owned[owner]
        middle = (self.all_heads, rows) if self.heads_first else (rows, self.all_heads)
        return (self.B, *middle, self.Dv)

    def lse_shape(self, owner: int) -> tuple[int, int, int]:
        """Of a rank's log-sum-exp."""
        return (self.B, self.all_heads, self.pieces.owned[owner])

    @property
    def lse_at(self) -> int:
        """Bytes from the start of a buffer to the log-sum-exp; to the output it is 0."""
        most = max(torch.Size(self.out_shape(rank)).numel() for rank in range(self.world))
        return _aligned(most * self.dtype.itemsize)

    @property
    def bytes(self) -> int:
        """Of a buffer that holds any rank's part."""
        most = max(torch.Size(self.lse_shape(rank)).numel() for rank in range(self.world))
        return self.lse_at + (_aligned(4 * most) if self.with_lse else 0)

    def signals(self, owner: int) -> int:
        """How often each rank, the owner itself too, signals it."""
        return self.B * self.heads * self.pieces.tiles_of(owner, self.block_m)

    def tiles(self) -> Iterator[tuple[int, int, int, int]]:
        """(batch, head of a rank, first row, first row behind) of a rank's tiles, as kernels go."""
        rows = self.pieces.rows
        for batch in range(self.B):
            for head in range(self.heads):
                for first in reversed(range(0, rows, self.block_m)):
                    yield batch, head, first, min(first + self.block_m, rows)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

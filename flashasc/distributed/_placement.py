"""Which tokens lie on which rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

Placement = Literal["contiguous", "zigzag"]
PLACEMENTS: tuple[Placement, ...] = ("contiguous", "zigzag")


@dataclass(frozen=True)
class Piece:
    """A run of tokens of every sequence, in one stretch of a rank's memory.

    One number a sequence; the sequences of a padded batch are alike and count as one.

    Attributes:
        starts: position of the first token in its sequence.
        lengths: how many there are.
    """

    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """How many tokens of memory it takes (of one sequence of a padded batch)."""
        return sum(self.lengths)


Shard = tuple[Piece, ...]
"""What one rank holds, in the order of its memory."""


def tokens_of(shard: Shard) -> int:
    """How many tokens a rank holds."""
    return sum(piece.tokens for piece in shard)


def shards(
    lengths: Sequence[int],
    world: int,
    placement: Placement,
    counts: Sequence[int] | None = None,
) -> list[Shard]:
    """What each rank holds.

    Args:
        lengths: of each sequence; one for a padded batch.
        world: how many ranks there are.
        placement: "contiguous": the sequences one after another, cut into `world` runs. "zigzag":
            each sequence cut into 2 * world chunks, of which rank r holds number r of every
            sequence, and behind them number 2 * world - 1 - r of every sequence.
        counts: how many tokens each rank holds, of a contiguous placement; None: as evenly as
            it goes.

    Chunk i of n covers the tokens L * i // n to L * (i + 1) // n - 1 of L.
    """
    if placement == "zigzag":
        cut = 2 * world
        return [(_chunk(lengths, r, cut), _chunk(lengths, cut - 1 - r, cut)) for r in range(world)]
    total = sum(lengths)
    if counts is None:
        edges = [total * r // world for r in range(world + 1)]
    else:
        assert len(counts) == world and sum(counts) == total, (counts, lengths)
        edges = [0, *accumulate(counts)]
    return [(_run(lengths, edges[r], edges[r + 1]),) for r in range(world)]


def _chunk(lengths: Sequence[int], number: int, cut: int) -> Piece:
    starts = tuple(length * number // cut for length in lengths)
    stops = (length * (number + 1) // cut for length in lengths)
    return Piece(starts, tuple(stop - start for start, stop in zip(starts, stops, strict=True)))


def _run(lengths: Sequence[int], start: int, stop: int) -> Piece:
    """The tokens from start to stop - 1 of the sequences one after another."""
    starts, found, begin = [], [], 0
    for length in lengths:
        first = min(max(start - begin, 0), length)
        last = min(max(stop - begin, 0), length)
        starts.append(first)
        found.append(last - first)
        begin += length
    return Piece(tuple(starts), tuple(found))


def positions(shard: Shard) -> Tensor:
    """[tokens] int64: position of each token of a rank in its own sequence."""
    return _joined(
        torch.arange(start, start + length)
        for piece in shard
        for start, length in zip(piece.starts, piece.lengths, strict=True)
    )


def stream_index(shard: Shard, lengths: Sequence[int]) -> Tensor:
    """[tokens] int64: place of each token of a rank among all, the sequences one after another."""
    begins = [0, *accumulate(lengths)]
    return _joined(
        torch.arange(begin + start, begin + start + length)
        for piece in shard
        for begin, start, length in zip(begins, piece.starts, piece.lengths, strict=False)
    )


def _joined(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.int64), *parts])

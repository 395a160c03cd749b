"""Every token on one rank, and the same work on each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashasc._arguments import Arguments
from flashasc._problem import Extras
from flashasc.distributed._blocks import BlockAttention
from flashasc.distributed._call import Geometry, LocalCall
from flashasc.distributed._placement import Piece, positions, shards, stream_index, tokens_of

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=4)


@given(LENGTHS, st.integers(1, 6), st.sampled_from(["contiguous", "zigzag"]))
def test_every_token_lies_on_one_rank(lengths: list[int], world: int, placement: str) -> None:
    held = shards(lengths, world, placement)  # type: ignore[arg-type]
    places = torch.cat([stream_index(shard, lengths) for shard in held])
    assert torch.equal(places.sort().values, torch.arange(sum(lengths)))
    own = torch.cat([torch.arange(length) for length in lengths])
    assert torch.equal(torch.cat([positions(shard) for shard in held]), own[places])
    assert [tokens_of(shard) for shard in held] == [len(positions(shard)) for shard in held]


def test_zigzag_by_hand() -> None:
    held = shards([9, 4], 2, "zigzag")
    # chunks of 9: 0 1 | 2 3 | 4 5 | 6 7 8; of 4: one each
    assert stream_index(held[0], [9, 4]).tolist() == [0, 1, 9, 6, 7, 8, 12]
    assert stream_index(held[1], [9, 4]).tolist() == [2, 3, 10, 4, 5, 11]
    assert positions(held[0]).tolist() == [0, 1, 0, 6, 7, 8, 3]


def work(world: int, placement: str, S: int) -> list[list[float]]:
    """Scores that each rank computes at each step; half of a block on the diagonal."""
    q = torch.empty(1, 1, 0, 4)
    call = LocalCall.checked(Arguments(q, q, q, causal=True), placement)
    held = shards([S], world, placement)  # type: ignore[arg-type]
    geometry = Geometry(held, held, (0,))
    found = []
    for rank in range(world):
        blocks = BlockAttention(call.problem, Extras(), "auto", geometry, rank)
        steps = []
        for step in range(world):
            pairs = [
                pair
                for number in range(len(held[rank]))
                for pair in blocks.pairs(number, (rank - step) % world, q.device)
            ]
            areas = [p.problem.Sq * p.problem.Sk / (2 if p.problem.causal else 1) for p in pairs]
            steps.append(sum(areas))
        found.append(steps)
    return found


@pytest.mark.parametrize("world", (2, 3, 4, 8))
def test_causal_work_is_even_in_zigzag_placement(world: int) -> None:
    S = 16 * world
    zigzag = work(world, "zigzag", S)
    assert all(steps == zigzag[0] for steps in zigzag)
    assert sum(map(sum, zigzag)) == S * S / 2
    contiguous = [sum(steps) for steps in work(world, "contiguous", S)]
    assert sum(contiguous) == S * S / 2
    # the picture of the docs: 1, 3, 5, 7, ...
    assert contiguous == [(2 * rank + 1) * contiguous[0] for rank in range(world)]


BOUND = st.none() | st.integers(0, 8)


@given(
    st.lists(st.tuples(*[st.integers(0, 5)] * 4, st.integers(-6, 6)), min_size=1, max_size=3),
    BOUND,
    BOUND,
)
def test_what_a_piece_sees(sequences: list[tuple[int, ...]], left: Any, right: Any) -> None:
    """Against every query and key of every sequence."""
    q = torch.empty(1, 1, 0, 4)
    window = Arguments(q, q, q, window=(left, right))
    problem = LocalCall.checked(window, "contiguous").problem
    first_q, count_q, first_k, count_k, offsets = zip(*sequences, strict=True)
    queries, keys = Piece(first_q, count_q), Piece(first_k, count_k)
    blocks = BlockAttention(
        problem, Extras(), "auto", Geometry([(queries,)], [(keys,)], offsets), 0
    )
    seen = [
        (left is None or i + offset - j <= left) and (right is None or j - i - offset <= right)
        for start, n, first, m, offset in sequences
        for i in range(start, start + n)
        for j in range(first, first + m)
    ]
    found = blocks.visibility(queries, keys)
    assert found == ("none" if not any(seen) else "all" if all(seen) else "some")

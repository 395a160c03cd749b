"""Tags: each value tells rank, block and position, and what came from elsewhere is named."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashasc.precision import Tags

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8]


@settings(max_examples=40)
@given(
    ranks=st.integers(1, 8),
    blocks=st.integers(1, 5),
    positions=st.integers(1, 1500),
    dtype=st.sampled_from(DTYPES[:4]),
)
def test_every_value_tells_its_place(
    ranks: int, blocks: int, positions: int, dtype: torch.dtype
) -> None:
    tags = Tags(ranks, blocks, positions, dtype)
    values = [tags.block(r, b) for r in range(ranks) for b in range(blocks)]
    together = torch.cat(values)
    assert together.dtype == dtype
    assert together.unique().numel() == ranks * blocks * positions
    assert bool((together != 0).all())
    if dtype.is_floating_point:
        assert bool(together.isfinite().all())
        assert bool((together.abs() >= torch.finfo(dtype).smallest_normal).all())
    expected = [(r, b, p) for r in range(ranks) for b in range(blocks) for p in range(positions)]
    assert tags.places(together) == expected


@pytest.mark.parametrize(
    "dtype, most",
    [(torch.bfloat16, 65024), (torch.float16, 61440), (torch.int8, 127), (torch.int16, 32767)],
)
def test_how_many_there_are(dtype: torch.dtype, most: int) -> None:
    values = Tags(1, 1, most, dtype).block(0)
    assert values.unique().numel() == most
    assert Tags(1, 1, most, dtype).places(values)[-1] == (0, 0, most - 1)
    with pytest.raises(ValueError, match=f"has {most} values for tags, {most + 1} are needed"):
        Tags(1, 1, most + 1, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_misplaced_block_is_named(dtype: torch.dtype) -> None:
    tags = Tags(ranks=4, blocks=2, positions=256, dtype=dtype)
    assert tags.describe(tags.block(3, 0), expect=(3, 0)) == ""
    assert tags.describe(tags.block(1, 1), expect=(3, 0)) == (
        "all: rank 1, block 1 where rank 3, block 0 belongs"
    )
    part = tags.block(2, 1)
    part[64:128] = tags.block(0, 0)[64:128]
    part[200:] = 0
    assert tags.describe(part, expect=(2, 1)) == (
        "elements 64 to 127: rank 0, block 0 where rank 2, block 1 belongs; "
        "elements 200 to 255: no tag at all where rank 2, block 1 belongs"
    )
    assert tags.describe(tags.block(1).roll(-3), expect=(1, 0)).startswith(
        "elements 0 to 252: rank 1, block 0, 3 positions too far"
    )


def test_a_position_for_each_row() -> None:
    tags = Tags(2, 1, positions=6, dtype=torch.bfloat16)
    rows = tags.block(1, shape=(3, 6, 4), axis=1)
    assert bool((rows == rows[:1, :, :1]).all()) and rows.is_contiguous()
    assert tags.describe(rows, expect=(1, 0)) == ""
    wrong = rows.clone()
    wrong[2, 4] = tags.block(0)[4]
    assert tags.describe(wrong, expect=(1, 0)) == (
        "elements 64 to 67: rank 0, block 0 where rank 1, block 0 belongs"
    )
    whole = tags.block(1, shape=(3, 2))
    assert tags.places(whole) == [(1, 0, p) for p in range(6)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_garbage_is_no_tag(dtype: torch.dtype) -> None:
    for positions in (5, 20000):
        tags = Tags(1, 1, positions, dtype)
        nothing = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf], dtype=dtype)
        assert tags.places(nothing) == [None] * 5
        assert tags.places(torch.full((1,), 1e-40).to(dtype)) == [None]
    assert Tags(1, 1, 5, dtype).places(torch.tensor([1.5, 6.0, 1e30, -1.0], dtype=dtype)) == (
        [None] * 4
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 1, 1), "ranks: expected 1 or more"),
        ((1, 1, 1, torch.bool), "dtype: expected floats or integers"),
        ((1, 1, 1, torch.complex64), "dtype: expected floats or integers"),
    ],
)
def test_wrong_tags(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tags(*arguments)  # type: ignore[arg-type]


def test_wrong_blocks() -> None:
    tags = Tags(2, 3, 4)
    with pytest.raises(ValueError, match="rank: expected 0 to 1, got 2"):
        tags.block(2)
    with pytest.raises(ValueError, match="block: expected 0 to 2, got -1"):
        tags.block(0, -1)
    with pytest.raises(ValueError, match=r"shape: \(3, 5\) has neither 4 elements"):
        tags.block(0, 0, (3, 5))
    with pytest.raises(ValueError, match="read in the dtype that they were made in"):
        tags.places(torch.ones(2, dtype=torch.float16))
    with pytest.raises(ValueError, match="does not tell which axis"):
        tags.describe(torch.ones(4, 4), expect=(0, 0))

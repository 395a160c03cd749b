"""blocks.masking against the sentences that define it, counted out in torch."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from block_device import Device
from layout_kernels import predicates_kernel, ranges_kernel

M, N = 16, 32


@pytest.mark.parametrize(
    "row_start, key_start, diagonal, end",
    [
        (0, 0, 0, 20),
        (48, 32, 0, 40),
        # more keys than queries, and fewer, bottom-right
        (16, 96, 100, 128),
        (16, 0, -20, 7),
        (0, 64, -33, 64),
        # far out, where a product of two positions would not fit in 32 bits
        (2**30, 2**30 - 5, 3, 2**30 + 9),
        (0, 2**31 - 40, 2**31 - 20, 2**31 - 10),
    ],
)
def test_predicates(
    device: Device, row_start: int, key_start: int, diagonal: int, end: int
) -> None:
    args = {"row_start": row_start, "key_start": key_start, "diagonal": diagonal, "end": end}
    shapes = {"causal_ptr": (M, N), "before_ptr": (M, N), "within_ptr": (N,)}
    causal, before, within = device.run(predicates_kernel, args, shapes, M=M, N=N)
    rows, keys = row_start + torch.arange(M), key_start + torch.arange(N)
    assert torch.equal(causal.bool(), keys[None, :] <= rows[:, None] + diagonal)
    assert torch.equal(before.bool(), keys[None, :] >= rows[:, None] + diagonal)
    assert torch.equal(within.bool(), keys < end)


@pytest.mark.parametrize("left, right", [*itertools.product([False, True], repeat=2)])
def test_key_range(device: Device, left: bool, right: bool) -> None:
    starts, heights, keys = (0, 5, 60), (0, 1, 3, 16), (0, 1, 17, 64)
    cases = [
        (start, start + height, Sk, first, first + width)
        for start, height, Sk in itertools.product(starts, heights, keys)
        for first in (-70, -17, -1, 0, 30, 1000)
        for width in (0, 2, 40)
    ]
    table = torch.tensor(cases, dtype=torch.int32)
    (found,) = device.run(
        ranges_kernel, {"cases_ptr": table, "cases": len(cases)}, {"out_ptr": (len(cases), 4)},
        dtype=torch.int32, BOUND_LEFT=left, BOUND_RIGHT=right,
    )  # fmt: skip
    for case, (begin, all_begin, all_end, end) in zip(cases, found.tolist(), strict=True):
        row_start, row_end, Sk, first, last = case
        rows, positions = torch.arange(row_start, row_end)[:, None], torch.arange(Sk)[None, :]
        visible = torch.ones(len(rows), Sk, dtype=torch.bool)
        if left:
            visible &= positions >= rows + first
        if right:
            visible &= positions <= rows + last
        assert 0 <= begin <= end <= Sk, case
        assert begin <= all_begin, case
        assert all_end <= end, case
        seen = visible.any(0).nonzero().flatten().tolist()
        # exactly the keys that some row sees: no tile is visited for nothing
        assert list(range(begin, end)) == seen, case
        by_all = visible.all(0) if len(rows) else torch.zeros(Sk, dtype=torch.bool)
        assert list(range(all_begin, all_end)) == by_all.nonzero().flatten().tolist(), case

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
    shapes = {"causal_ptr": (M, N), "within_ptr": (N,)}
    causal, within = device.run(predicates_kernel, args, shapes, M=M, N=N)
    rows, keys = row_start + torch.arange(M), key_start + torch.arange(N)
    assert torch.equal(causal.bool(), keys[None, :] <= rows[:, None] + diagonal)
    assert torch.equal(within.bool(), keys < end)


def test_key_range(device: Device) -> None:
    starts, heights, keys = (0, 5, 16, 60), (1, 3, 16), (0, 1, 17, 64)
    cases = [
        (start, start + height, Sk, diagonal)
        for start, height, Sk in itertools.product(starts, heights, keys)
        for diagonal in (-70, -17, -1, 0, 1, 30, 1000)
    ]
    table = torch.tensor(cases, dtype=torch.int32)
    shapes = dict.fromkeys(("full_ptr", "causal_ptr"), (len(cases), 2))
    full, causal = device.run(
        ranges_kernel, {"cases_ptr": table, "cases": len(cases)}, shapes, dtype=torch.int32
    )
    for case, found_full, found_causal in zip(cases, full.tolist(), causal.tolist(), strict=True):
        row_start, row_end, Sk, diagonal = case
        rows, positions = torch.arange(row_start, row_end), torch.arange(Sk)
        visible = positions[None, :] <= rows[:, None] + diagonal
        # visible keys are a prefix of each row, so that counting them is enough
        counted = [int(visible.all(0).sum()), int(visible.any(0).sum())]
        assert found_causal == counted, case
        assert found_full == [Sk, Sk], case

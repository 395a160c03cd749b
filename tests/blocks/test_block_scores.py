"""blocks.scores and sinks, against float64."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton.language as tl
from block_device import Device
from hostile_numbers import U, normals, uniforms
from scores_kernels import cap_kernel, distance_kernel, sink_kernel

NEG_INF = -math.inf


def test_soft_cap(device: Device) -> None:
    spread = torch.logspace(-30, 3, 240, dtype=torch.float64).float()
    edges = torch.tensor([0.0, 0.625, 0.62500006, 9.1, 40.0, 88.8, 3e38, math.inf])
    x = torch.cat([torch.cat([spread, edges]), -torch.cat([spread, edges])])
    x = torch.cat([x, torch.full((16,), math.nan)])
    (out,) = device.run(cap_kernel, {"x_ptr": x, "cap": 50.0}, {"out_ptr": (512,)}, N=512)
    exact = 50.0 * torch.tanh(x.double())
    assert out[-16:].isnan().all()
    error = (out.double() - exact).abs()[:-16]
    # of the polynomial, or of exp and a division; and of the multiplication
    assert (error <= 8 * U * exact.abs()[:-16]).all(), (error / exact.abs()[:-16]).max() / U
    assert (out[:-16].abs() <= 50).all()


@pytest.mark.parametrize("diagonal, key_start", [(0, 0), (-40, 3), (1000, 64), (2**23, 0)])
def test_distance(device: Device, diagonal: int, key_start: int) -> None:
    args = {"row_start": 16, "key_start": key_start, "diagonal": diagonal}
    (out,) = device.run(distance_kernel, args, {"out_ptr": (16, 32)}, M=16, N=32)
    rows, keys = 16 + torch.arange(16)[:, None], key_start + torch.arange(32)[None, :]
    assert torch.equal(out, (rows + diagonal - keys).abs().float())


@pytest.mark.parametrize("natural", [False, True])
@pytest.mark.parametrize("sink", [NEG_INF, -300.0, -3.3, 0.0, 5.7, 90.0, 1000.0])
def test_a_sink_counts_in_the_sums_alone(device: Device, sink: float, natural: bool) -> None:
    M = Dv = 16
    whole = not natural
    pivot = (normals(M, seed=1) * 20).ceil()
    pivot[3] = NEG_INF
    sums = 1 + uniforms(2, M, seed=2) * 1000
    sums[:, 3] = 0.0
    rows = torch.stack([pivot, sums[0], sums[0] * U / 3, sums[1], sums[1] * U / 3])
    acc = normals(M, Dv, seed=3) * sums[0][:, None]
    comp = acc * U / 3
    new_rows, new_acc, new_comp = device.run(
        sink_kernel,
        {"rows_ptr": rows, "acc_ptr": acc, "comp_ptr": comp, "sink_ptr": torch.tensor([sink])},
        {"out_rows_ptr": (5, M), "out_acc_ptr": (M, Dv), "out_comp_ptr": (M, Dv)},
        M=M, Dv=Dv, WHOLE=whole, NATURAL=natural, COMP_DTYPE=tl.float32,
    )  # fmt: skip
    power = torch.exp if natural else torch.exp2
    before, after = rows.double(), new_rows.double()
    top = torch.maximum(before[0], torch.tensor(sink).double())
    top = torch.where(top == NEG_INF, 0.0, top)
    # everything relative to the larger of pivot and sink
    for total in (1, 3):
        exact = (before[total] + before[total + 1]) * power(before[0] - top) + power(sink - top)
        got = (after[total] + after[total + 1]) * power(after[0] - top)
        got = torch.where(after[0] == NEG_INF, 0.0, got)
        distance = (before[0] - sink).abs().nan_to_num(0).clamp(max=2000)
        assert ((got - exact).abs() <= (8 + 2 * distance) * U * exact.abs() + 2.0**-120).all()
    exact = (acc.double() + comp.double()) * power(before[0] - top)[:, None]
    got = (new_acc.double() + new_comp.double()) * power(after[0] - top)[:, None]
    got = torch.where((after[0] == NEG_INF)[:, None], 0.0, got)
    factor = (8 + 2 * (before[0] - sink).abs().nan_to_num(0).clamp(max=2000))[:, None]
    assert ((got - exact).abs() <= factor * U * exact.abs() + 2.0**-120).all()
    if whole:
        assert torch.equal(new_rows[0], new_rows[0].ceil())

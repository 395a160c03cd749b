"""blocks.scores and sinks, against float64."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton.language as tl
from block_device import Device
from hostile_numbers import U, normals, uniforms
from scores_kernels import base_kernel, cap_kernel, distance_kernel, log2_kernel, sink_kernel

from blocks import constants

NEG_INF = -math.inf


def test_constants_are_what_they_are_called() -> None:
    assert torch.finfo(torch.float32).max == constants.LARGEST.value
    assert constants.LN2_HIGH.value + constants.LN2_LOW.value == constants.LN2.value
    # 8 bits, so that 16 more fit into a product
    assert (constants.LN2_HIGH.value * 2**8).is_integer()
    assert constants.FP16_PIVOT_FACTOR.value == 2.0**-constants.FP16_PIVOT_DROP.value
    assert constants.LOG2E.value * constants.LN2.value == pytest.approx(1.0, rel=1e-15)


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


def test_log2_units(device: Device) -> None:
    """Large and small, and those that are out of range in log2 units."""
    sizes = torch.exp2(torch.linspace(-100, 127, 238))
    x = sizes * (1 + uniforms(238, seed=1)) * torch.tensor([1.0, -1.0]).repeat(119)
    special = [3e38, -3e38, math.inf, NEG_INF, math.nan, 0.0, -0.0, 1e-40, *[7.0] * 10]
    x = torch.cat([x, torch.tensor(special)])
    log2, _ = device.run(
        log2_kernel, {"x_ptr": x, "pivot_ptr": x * 0},
        {"log2_ptr": (256,), "above_ptr": (256,)}, N=256,
    )  # fmt: skip
    largest = torch.finfo(torch.float32).max * math.log(2.0)
    bounded = torch.where(x.isfinite(), x.double().clamp(-largest, largest), x.double())
    exact = bounded / math.log(2.0)
    finite = x.isfinite()
    assert torch.equal(log2.isfinite(), finite)
    assert torch.equal(log2[240:242], x[240:242]) and log2[242].isnan()
    assert ((log2 - exact).abs() <= 3 * U * exact.abs() + 2.0**-126)[finite].all()


def test_differences_of_natural_scores_to_log2_pivots_are_exact(device: Device) -> None:
    pivot = torch.exp2(torch.linspace(0, 15.9, 248)).ceil() * torch.tensor([1.0, -1.0]).repeat(124)
    x = (pivot.double() * math.log(2.0) - uniforms(248, seed=1) * 3).float()
    pivot = torch.cat([pivot, torch.tensor([0.0, 0.0, 5.0, 3.4e38, -3.4e38, 2e9, 0.0, 0.0])])
    x = torch.cat([x, torch.tensor([NEG_INF, math.nan, 0.0, 2.36e38, -2.35e38, 1.4e9, 7.5, -3e38])])
    _, above = device.run(
        log2_kernel, {"x_ptr": x, "pivot_ptr": pivot},
        {"log2_ptr": (256,), "above_ptr": (256,)}, N=256,
    )  # fmt: skip
    exact = x.double() - pivot.double() * math.log(2.0)
    # a rounding of the result, and one of what is left of the pivot
    error = (above - exact).abs()[:248]
    assert (error <= U * (2 * exact.abs()[:248] + 2.0**-8 * pivot.abs()[:248])).all()
    assert above[248] == NEG_INF and above[249].isnan() and above[254:].tolist() == [7.5, x[255]]
    assert (above[251:254] <= 11).all()


def test_what_natural_scores_are_subtracted_from(device: Device) -> None:
    """A whole pivot in two parts; beyond those that are exact, what keeps some weight alive."""
    base = torch.exp2(torch.linspace(0, 23.9, 240)).ceil() * torch.tensor([1.0, -1.0]).repeat(120)
    top = (base.double() * math.log(2.0) - uniforms(240, seed=1) * 0.6).float()
    # the pivot of this tile, of another, -14 in fp16 where it is rounded, without one, and infinite
    huge = torch.tensor([3.4e38, 3.4e38, 2.0**30, 2.0**30, 2.0**24 + 2, 0.0, math.inf, -3.4e38])
    tops = torch.tensor([2.35e38, 1e30, 7.4427e8, 7.4e8, 11629100.0, NEG_INF, math.inf, -3.4e38])
    own = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]).bool()
    spare = torch.zeros(8)
    base, top = torch.cat([base, huge, spare]), torch.cat([top, tops, spare])
    candidate = torch.where(torch.cat([torch.ones(240).bool(), own, spare.bool()]), base, NEG_INF)
    high, low, above = device.run(
        base_kernel, {"base_ptr": base, "candidate_ptr": candidate, "top_ptr": top},
        dict.fromkeys(("high_ptr", "low_ptr", "above_ptr"), (256,)), N=256,
    )  # fmt: skip
    exact = base.double() * math.log(2.0)
    # ln 2 is rounded in its low part, and so is the product with it; where the pivot has more than
    # 16 bits their sum with the rest of it too
    lost = U * (2.0**-8 * base.abs() + torch.where(base.abs() < 2.0**16, 0.0, low.abs()))
    assert ((high.double() + low - exact).abs() <= lost)[:240].all()
    assert ((above - (top - exact)).abs() <= lost + U * (top - exact).abs())[:240].all()
    assert high[240] == top[240] and high[242] == top[242] and high[246:248].equal(top[246:248])
    assert above[240] == above[242] == above[247] == 0
    assert above[241] == NEG_INF or above[241] < -1e30
    assert -1e7 < above[243] < 0
    assert above[244] <= 11 and above[245] == NEG_INF


@pytest.mark.parametrize(
    "WHOLE, LOWERED, NATURAL",
    [(True, False, False), (True, True, False), (False, False, True), (False, True, True)],
)
@pytest.mark.parametrize("sink", [NEG_INF, -300.1, 0.0, 5.7, 90.0, 1000.3, 40000.7])
def test_a_sink_counts_in_the_sums_alone(
    device: Device, sink: float, WHOLE: bool, LOWERED: bool, NATURAL: bool
) -> None:
    if device.route == "hfusion" and not WHOLE and sink not in (NEG_INF, 1000.3):
        pytest.skip("one sink and none are enough at hfusion")
    M = Dv = 16
    unit = 1.0 if NATURAL else math.log2(math.e)
    given = torch.tensor([sink])
    exact_sink = given.double() * unit
    # pivots of the sink's own size: there it shows in how many digits a sink is known
    pivot = (normals(M, seed=1) * 20 + (0.0 if sink == NEG_INF else exact_sink)).ceil().float()
    pivot[3] = NEG_INF
    sums = 1 + uniforms(2, M, seed=2) * 1000
    sums[:, 3] = 0.0
    rows = torch.stack([pivot, sums[0], sums[0] * U / 3, sums[1], sums[1] * U / 3])
    acc = normals(M, Dv, seed=3) * sums[0][:, None]
    comp = acc * U / 3
    new_rows, new_acc, new_comp = device.run(
        sink_kernel,
        {"rows_ptr": rows, "acc_ptr": acc, "comp_ptr": comp, "sink_ptr": given},
        {"out_rows_ptr": (5, M), "out_acc_ptr": (M, Dv), "out_comp_ptr": (M, Dv)},
        M=M, Dv=Dv, WHOLE=WHOLE, LOWERED=LOWERED, NATURAL=NATURAL, COMP_DTYPE=tl.float32,
    )  # fmt: skip
    power = torch.exp if NATURAL else torch.exp2
    before, after = rows.double(), new_rows.double()
    top = torch.maximum(before[0], exact_sink)
    top = torch.where(top == NEG_INF, 0.0, top)
    # everything relative to the larger of pivot and sink, and the last bits of a pivot of many
    lost = 24 + 2.0**-8 * top.abs()
    distance = (before[0] - exact_sink).abs().nan_to_num(0, posinf=0)
    for total in (1, 3):
        exact = (before[total] + before[total + 1]) * power(before[0] - top)
        exact = exact + power(exact_sink - top)
        got = (after[total] + after[total + 1]) * power(after[0] - top)
        got = torch.where(after[0] == NEG_INF, 0.0, got)
        assert ((got - exact).abs() <= (lost + 2 * distance) * U * exact.abs() + 2.0**-120).all()
    exact = (acc.double() + comp.double()) * power(before[0] - top)[:, None]
    got = (new_acc.double() + new_comp.double()) * power(after[0] - top)[:, None]
    got = torch.where((after[0] == NEG_INF)[:, None], 0.0, got)
    factor = (lost + 2 * distance)[:, None]
    assert ((got - exact).abs() <= factor * U * exact.abs() + 2.0**-120).all()
    drop = (14.0 if LOWERED else 0.0) / (1.0 if WHOLE else math.log2(math.e))
    lifted = (exact_sink.ceil() if WHOLE else exact_sink) - drop
    assert ((after[0] - torch.maximum(before[0], lifted)).abs().nan_to_num(0) < 0.01).all()
    if WHOLE:
        assert torch.equal(new_rows[0], new_rows[0].ceil())


@pytest.mark.parametrize(
    "WHOLE, LOWERED, NATURAL",
    [(True, False, False), (True, True, False), (False, False, True), (False, True, True)],
)
def test_an_infinite_sink_leaves_nothing_to_the_keys(
    fast_device: Device, WHOLE: bool, LOWERED: bool, NATURAL: bool
) -> None:
    M = Dv = 16
    rows = torch.stack([(normals(M, seed=1) * 20).ceil(), *(1 + uniforms(4, M, seed=2))])
    rows[0, 3], rows[1:, 3] = NEG_INF, 0.0
    new_rows, new_acc, new_comp = fast_device.run(
        sink_kernel,
        {"rows_ptr": rows, "acc_ptr": normals(M, Dv, seed=3), "comp_ptr": normals(M, Dv, seed=4),
         "sink_ptr": torch.tensor([math.inf])},
        {"out_rows_ptr": (5, M), "out_acc_ptr": (M, Dv), "out_comp_ptr": (M, Dv)},
        M=M, Dv=Dv, WHOLE=WHOLE, LOWERED=LOWERED, NATURAL=NATURAL, COMP_DTYPE=tl.float32,
    )  # fmt: skip
    # the sink's weight under a pivot that is infinite too: out is 0, the log-sum-exp infinite
    assert (new_rows[0] == math.inf).all()
    assert (new_rows[[1, 3]] + new_rows[[2, 4]] == 1.0).all()
    assert (new_acc == 0.0).all() and (new_comp == 0.0).all()

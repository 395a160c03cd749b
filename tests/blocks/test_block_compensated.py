"""blocks.compensated against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from block_device import Device
from compensated_kernels import (
    PAIR_ROWS,
    chain_kernel,
    merge_chain_kernel,
    pairs_kernel,
    power_of_two_kernel,
    row_sum_kernel,
)
from hostile_numbers import (
    U,
    below_last_bit,
    condition,
    exact_sums,
    fractions,
    ill_conditioned,
    normals,
    pairs,
    subnormals,
    uniforms,
)
from torch import Tensor

MAX = torch.finfo(torch.float32).max
LAST = 2.0**-149
"""Smallest positive fp32 number: no error bound is finer."""


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int32)


Pairs = dict[str, tuple[Tensor, Tensor]]
"""Block -> (sum, error)."""


def run_pairs(device: Device, a: Tensor, b: Tensor, comp_a: Tensor, comp_b: Tensor) -> Pairs:
    (n,) = a.shape
    outputs = {"sum_ptr": (6, n), "error_ptr": (6, n)}
    args = {"a_ptr": a, "b_ptr": b, "comp_a_ptr": comp_a, "comp_b_ptr": comp_b}
    total, error = device.run(pairs_kernel, args, outputs, N=n)
    return dict(zip(PAIR_ROWS, zip(total, error, strict=True), strict=True))


def hostile_results(device: Device) -> tuple[tuple[Tensor, ...], Pairs]:
    a, b = pairs()
    comp_a, comp_b = below_last_bit(a, seed=8), below_last_bit(b, seed=9)
    return (a, b, comp_a, comp_b), run_pairs(device, a, b, comp_a, comp_b)


def test_two_sum_is_exact(device: Device) -> None:
    (a, b, _, _), results = hostile_results(device)
    total, error = results["two_sum"]
    assert torch.equal(bits(total), bits(a + b))
    exact = [x + y for x, y in zip(fractions(a), fractions(b), strict=True)]
    assert [x + y for x, y in zip(fractions(total), fractions(error), strict=True)] == exact
    assert error.count_nonzero() > 500


def test_fast_two_sum_is_exact_where_the_first_is_larger(device: Device) -> None:
    (a, b, _, _), results = hostile_results(device)
    total, error = results["fast_two_sum"]
    assert torch.equal(bits(total), bits(a + b))
    missed = 0
    for x, y, t, e in zip(*map(fractions, (a, b, total, error)), strict=True):
        off = abs(x + y - t - e)
        if abs(x) >= abs(y) or x == 0:
            assert off == 0
        else:
            assert off <= U * abs(y)
            missed += off > 0
    assert missed > 100, "the order of the operands made no difference: the data is too kind"


def test_fold_and_kahan_add_lose_no_more_than_a_rounding(device: Device) -> None:
    (a, b, comp, _), results = hostile_results(device)
    total, error = results["fold"]
    assert torch.equal(bits(total), bits(results["fast_two_sum"][0]))
    assert torch.equal(bits(error), bits(results["fast_two_sum"][1]))
    total, error = results["kahan_add"]
    for x, y, c, t, e in zip(*map(fractions, (a, b, comp, total, error)), strict=True):
        # one rounding of y + c; fast_two_sum's own where that is larger than x
        rounded = abs(y + c) * Fraction(U)
        bound = 2 * rounded if abs(x) < abs(y + c) else rounded
        assert abs(x + y + c - t - e) <= bound * (1 + Fraction(U)) + Fraction(LAST)


def test_merge_loses_a_rounding_of_the_compensations(device: Device) -> None:
    data, results = hostile_results(device)
    for a, b, ca, cb, t, e in zip(*map(fractions, (*data, *results["merge"])), strict=True):
        rounding = abs(a + b) * Fraction(U)
        bound = Fraction(U) * (abs(ca + cb) + 2 * (rounding + abs(ca + cb))) * (1 + Fraction(4 * U))
        assert abs(a + b + ca + cb - t - e) <= bound + Fraction(LAST)


def test_merge_is_symmetric_bit_for_bit(device: Device) -> None:
    _, results = hostile_results(device)
    for x, y in zip(results["merge"], results["merge_swapped"], strict=True):
        assert torch.equal(bits(x), bits(y))


def test_compensation_never_makes_a_nan(device: Device) -> None:
    inf, nan = math.inf, math.nan
    cases = [
        # a, comp_a, b, comp_b, sum
        (inf, 0.0, 1.0, 0.0, inf),
        (-1.0, 0.0, -inf, 0.0, -inf),
        (inf, 0.0, inf, 0.0, inf),
        (inf, 0.0, -inf, 0.0, nan),
        (nan, 0.0, 1.0, 0.0, nan),
        (1.0, 1e-9, nan, 0.0, nan),
        # overflow of finite numbers, and up to the last number without one
        (MAX, 0.0, MAX, 0.0, inf),
        (-MAX, 0.0, -1e32, 0.0, -inf),
        (MAX, 0.0, 2.0**102, 0.0, MAX),
    ]
    a, comp_a, b, comp_b, expected = torch.tensor(cases * 2, dtype=torch.float32)[:16].T
    results = run_pairs(device, *(x.contiguous() for x in (a, b, comp_a, comp_b)))
    for name in ("fold", "kahan_add", "merge", "merge_swapped"):
        total, comp = results[name]
        torch.testing.assert_close(total + comp, expected, rtol=0, atol=0, equal_nan=True)
        assert comp.isfinite().all(), name
        assert (comp[~total.isfinite()] == 0).all(), name


def test_merge_at_the_end_of_the_range(device: Device) -> None:
    half_ulp = torch.full((16,), 2.0**103)
    a, b = torch.full((16,), MAX), half_ulp * 0.9
    acc, comp = run_pairs(device, a, b, half_ulp, half_ulp)["merge"]
    assert not (acc + comp).isnan().any(), (
        "the compensations carried the sum past the largest number"
    )
    assert comp.isfinite().all()


def long_rows(steps: int) -> dict[str, Tensor]:
    """Named rows of `steps` numbers that a plain sum gets wrong."""
    huge_and_tiny = torch.tensor([1e30, 1e-30, -1e30, 3e-30]).repeat(steps // 4)
    falling = 2.0 ** -torch.linspace(0, 60, steps)
    return {
        "positive": uniforms(steps, seed=1),
        "positive fp16": uniforms(steps, seed=2).half().float(),
        "positive bf16": uniforms(steps, seed=3).bfloat16().float(),
        "normal": normals(steps, seed=4),
        "huge next to tiny": huge_and_tiny,
        "falling": falling,
        "rising": falling.flip(0),
        "equal": torch.full((steps,), 0.1),
        "subnormal": subnormals(steps, seed=5),
        "alternating": torch.tensor([1.0, -1.0 + 2.0**-24]).repeat(steps // 2),
        "condition 1e2": ill_conditioned(steps, 1e2, seed=6),
        "condition 1e4": ill_conditioned(steps, 1e4, seed=7),
        "condition 1e6": ill_conditioned(steps, 1e6, seed=8),
        "condition 1e9": ill_conditioned(steps, 1e9, seed=9),
        "condition 1e12": ill_conditioned(steps, 1e12, seed=10),
        "condition 1e15": ill_conditioned(steps, 1e15, seed=11),
    }


def test_the_condition_numbers_are_what_they_are_called() -> None:
    for asked in (1e2, 1e4, 1e6, 1e9, 1e12, 1e15):
        for count in (64, 4096):
            assert condition(ill_conditioned(count, asked)) == pytest.approx(asked, rel=1e-2)


def kahan_error_is_bounded(device: Device, parts: int, merged: bool) -> None:
    """Error of `parts` chains, or of their merged sum, against Kahan's bound and a plain sum."""
    steps = device.steps(4096, 256) // parts * parts
    rows = long_rows(device.steps(4096, 256))
    x = torch.stack([row[:steps] for row in rows.values()])  # [M, steps]
    (M, _), chain = x.shape, steps // parts
    in_order = x.view(M, parts, chain).permute(1, 2, 0).contiguous()
    outputs = dict.fromkeys(("acc_ptr", "comp_ptr", "plain_ptr"), (parts, M))
    acc, comp, plain = device.run(
        chain_kernel, {"x_ptr": in_order, "steps": chain}, outputs, grid=(parts,), M=M
    )
    if merged:
        args = {"acc_ptr": acc, "comp_ptr": comp, "parts": parts}
        shapes = {"out_acc_ptr": (M,), "out_comp_ptr": (M,)}
        acc, comp = device.run(merge_chain_kernel, args, shapes, M=M)
    else:
        acc, comp = acc[0], comp[0]
    exact, size = exact_sums(x), exact_sums(x.abs())
    error = (acc.double() + comp.double() - exact).abs()
    bound = (2 * U + 2 * steps * U**2) * size + LAST * steps * (size < 1e-30)
    over = {name: (e / b).item() for name, e, b in zip(rows, error, bound, strict=True) if e > b}
    assert not over, f"error / bound: {over}"
    plain_error = (plain.double().sum(0) - exact).abs()
    assert (plain_error > 8 * error).sum() >= 8, "the data is too kind: a plain sum is as good"


def test_kahan_error_does_not_grow_with_the_number_of_terms(device: Device) -> None:
    kahan_error_is_bounded(device, parts=1, merged=False)


@pytest.mark.parametrize("parts", range(2, 9))
def test_merged_parts_are_as_good_as_one_chain(fast_device: Device, parts: int) -> None:
    kahan_error_is_bounded(fast_device, parts, merged=True)


def test_an_infinite_term_stays_infinite(device: Device) -> None:
    steps, M = 64, 16
    x = uniforms(steps, M)
    x[20, 0], x[20, 1], x[20, 2] = math.inf, -math.inf, math.nan
    # overflows on the way and stays there
    x[:, 3] = 1e37
    outputs = dict.fromkeys(("acc_ptr", "comp_ptr", "plain_ptr"), (1, M))
    acc, comp, _ = device.run(chain_kernel, {"x_ptr": x, "steps": steps}, outputs, grid=(1,), M=M)
    total = (acc + comp)[0]
    assert total[0] == math.inf
    assert total[1] == -math.inf
    assert total[2].isnan()
    assert total[3] == math.inf
    assert total[4:].isfinite().all()


def tile_rows(n: int) -> Tensor:
    """[16, n]: rows for row_sum, all finite, no sum near the end of the range."""
    x = torch.stack(list(long_rows(4096).values()))[:, :n].contiguous()
    # magnitudes next to each other, where partial sums use every bit of the grid
    x[7] = 1.0 - uniforms(n, seed=20) * 2.0**-20
    x[4, :2] = torch.tensor([0.0, -0.0])
    x[9] = ill_conditioned(n, 1e3, seed=21)
    x[10] = ill_conditioned(n, 1e5, seed=22)
    x[11] = 0.0
    # the largest grid there is
    x[12] = (uniforms(n, seed=23) * 2 - 1) * 2.0**125 / n
    return x


@pytest.mark.parametrize("n", [16, 64, 1024])
def test_row_sum(device: Device, n: int) -> None:
    x = tile_rows(n)
    outputs = {"total_ptr": (16,), "comp_ptr": (16,)}
    total, comp = device.run(row_sum_kernel, {"x_ptr": x}, outputs, M=16, N=n)
    exact = exact_sums(x)
    error = (total.double() + comp.double() - exact).abs()
    bound = n**3 * 2.0**-46 * x.abs().amax(1).double()
    assert (error <= bound).all(), (error / bound).tolist()
    plain = (x.sum(1).double() - exact).abs()
    assert (plain > 4 * error).sum() >= 4, "the data is too kind: a plain sum is as good"


def test_row_sum_falls_back_to_the_plain_sum(device: Device) -> None:
    n = 64
    x = uniforms(16, n)
    x[0, 5], x[1, 6], x[2, 7] = math.inf, -math.inf, math.nan
    x[3, 5], x[3, 6] = math.inf, -math.inf
    x[4] = 2.0**125
    # no sum overflows in any order, but there is no grid above 2 * n times the largest
    x[5] = 1.7 * 2.0**120 * (1 - 2 * (torch.arange(n) % 2))
    x[6] = x[5] * (1 + uniforms(n) / 8)
    x[7] = MAX
    x[8] = 1.0001 * 2.0**127 / (2 * n)
    outputs = {"total_ptr": (16,), "comp_ptr": (16,)}
    total, comp = device.run(row_sum_kernel, {"x_ptr": x}, outputs, M=16, N=n)
    inf, nan = math.inf, math.nan
    for row, expected in enumerate([inf, -inf, nan, nan, inf]):
        torch.testing.assert_close(total[row].item(), expected, equal_nan=True)
    assert (comp[:9] == 0).all()
    assert total[7] == inf
    for row in (5, 6, 8):
        exact, size = math.fsum(x[row].tolist()), math.fsum(x[row].abs().tolist())
        assert abs(total[row].item() - exact) <= n * U * size
    torch.testing.assert_close(total[9:].double() + comp[9:], exact_sums(x[9:]), rtol=1e-12, atol=0)


def test_power_of_two_is_exact_over_the_whole_range(device: Device) -> None:
    exponents = torch.arange(-256.0, 128.0).tolist()
    special = [-math.inf, -1e30, -3.4e38, -0.0]
    padded = torch.tensor(exponents + special + [0.0] * (512 - len(exponents) - len(special)))
    (found,) = device.run(power_of_two_kernel, {"exponent_ptr": padded}, {"out_ptr": (512,)}, N=512)
    expected = torch.tensor([2.0**e if e >= -126 else 0.0 for e in padded.tolist()])
    assert torch.equal(bits(found), bits(expected))

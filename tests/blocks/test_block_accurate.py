"""blocks.accurate against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from block_device import Device
from hostile_numbers import (
    U,
    below_last_bit,
    exact_sums,
    fractions,
    ill_conditioned,
    normals,
    pairs,
    uniforms,
)
from reduce_kernels import extract_kernel, row_sum2_kernel, sum2_kernel
from torch import Tensor

MAX = torch.finfo(torch.float32).max
LAST = 2.0**-149


def run_sum2(device: Device, a: Tensor, comp: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    args = {"a_ptr": a, "comp_ptr": comp, "b_ptr": b}
    outputs = {"sum_ptr": a.shape, "error_ptr": a.shape}
    total, error = device.run(sum2_kernel, args, outputs, N=len(a))
    return total, error


def test_an_addition_loses_twice_u_squared(device: Device) -> None:
    a, b = pairs()
    comp = below_last_bit(a, seed=3)
    total, error = run_sum2(device, a, comp, b)
    coarse = 0
    for x, c, y, t, e in zip(*map(fractions, (a, comp, b, total, error)), strict=True):
        lost = abs(x + c + y - t - e)
        assert lost <= 2 * Fraction(U) ** 2 * (abs(x) + abs(y)) + Fraction(LAST)
        # normalised: what is left is no more than the last bit of the sum
        assert abs(e) <= Fraction(U) * abs(t) * (1 + Fraction(4 * U)) + Fraction(LAST)
        coarse += lost > 0
    assert coarse > 100, "nothing is ever rounded: the data is too kind"


def test_infinities_and_the_end_of_the_range_leave_no_error(device: Device) -> None:
    inf, nan = math.inf, math.nan
    cases = [
        (inf, 0.0, 1.0, inf),
        (1.0, 0.0, -inf, -inf),
        (inf, 0.0, -inf, nan),
        (nan, 0.0, 1.0, nan),
        (MAX, 0.0, MAX, inf),
        # the compensation alone would carry the sum over
        (MAX, 2.0**103 * 0.99, 2.0**102, MAX),
    ]
    a, comp, b, expected = torch.tensor((cases * 3)[:16], dtype=torch.float32).T
    total, error = run_sum2(device, *(x.contiguous() for x in (a, comp, b)))
    torch.testing.assert_close(total, expected, rtol=0, atol=0, equal_nan=True)
    assert error.isfinite().all()
    assert (error[~total.isfinite()] == 0).all()


def cancelling(n: int) -> Tensor:
    """[16, n]: rows that cancel down to a millionth and less, and rows that do not."""
    rows = [ill_conditioned(n, 10.0**k, seed=k) for k in (1, 2, 3, 4, 5, 6, 6, 7, 9)]
    wide = normals(n, seed=30) * 2.0 ** (uniforms(n, seed=31) * 60 - 30)
    # all roundings one way, in digits that each extraction leaves to the next
    leftovers = torch.full((n,), 0.3 * 2.0**-6)
    leftovers[0], leftovers[n // 2 :] = 1.0, 0.3 * 2.0**-14
    rows += [uniforms(n, seed=32), leftovers, wide, torch.zeros(n)]
    rows += [1.0 - uniforms(n, seed=34) * 2.0**-20, torch.full((n,), LAST * 5)]
    rows.append((uniforms(n, seed=35) * 2 - 1) * 2.0**125 / n)
    return torch.stack(rows)


@pytest.mark.parametrize("n", [16, 1024])
def test_row_sum2(device: Device, n: int) -> None:
    acc = cancelling(n)
    comp = below_last_bit(acc, seed=36) * (torch.arange(16) % 2)[:, None]
    comp = torch.where(acc.abs() < 2.0**-100, 0.0, comp)
    outputs = {"total_ptr": (16,), "error_ptr": (16,)}
    args = {"acc_ptr": acc, "comp_ptr": comp}
    total, error = device.run(row_sum2_kernel, args, outputs, M=16, N=n)
    for row in range(16):
        exact = sum(fractions(acc[row]) + fractions(comp[row]), Fraction(0))
        found = Fraction(total[row].item()) + Fraction(error[row].item())
        size = Fraction(math.fsum(acc[row].abs().tolist()))
        bound = 8 * Fraction(U) ** 2 * size + Fraction(LAST)
        assert abs(found - exact) <= bound, (row, float(abs(found - exact) / size))
        rounded = Fraction(total[row].item() + 0.0)
        assert abs(Fraction(error[row].item())) <= Fraction(U) * abs(rounded) * 2 + Fraction(LAST)


def test_row_sum2_falls_back_to_the_plain_sum(device: Device) -> None:
    acc = uniforms(16, 64)
    acc[0, 5], acc[1, 6], acc[2, 7] = math.inf, -math.inf, math.nan
    acc[3, 5], acc[3, 6] = math.inf, -math.inf
    acc[4] = 2.0**125
    # no sum overflows in any order, but there is no grid above 2 * n times the largest
    acc[5] = 1.7 * 2.0**120 * (1 - 2 * (torch.arange(64) % 2))
    # nor where the sum itself is above the last grid
    acc[6] = 1.5 * 2.0**121 * (1 + uniforms(64, seed=37) / 8)
    comp = torch.zeros_like(acc)
    outputs = {"total_ptr": (16,), "error_ptr": (16,)}
    args = {"acc_ptr": acc, "comp_ptr": comp}
    total, error = device.run(row_sum2_kernel, args, outputs, M=16, N=64)
    inf, nan = math.inf, math.nan
    for row, expected in enumerate([inf, -inf, nan, nan, inf, 0.0]):
        torch.testing.assert_close(total[row].item(), expected, equal_nan=True)
    assert (error[:7] == 0).all()
    torch.testing.assert_close(total[6].double(), acc[6].double().sum(), rtol=64 * U, atol=0)
    torch.testing.assert_close(
        total[7:].double() + error[7:], exact_sums(acc[7:]), rtol=1e-13, atol=0
    )


def test_extract_is_exact_and_its_high_parts_add_up(device: Device) -> None:
    x = cancelling(64)
    outputs = {"high_ptr": (16, 64), "low_ptr": (16, 64), "exact_ptr": (16,)}
    high, low, exact = device.run(extract_kernel, {"x_ptr": x}, outputs, M=16, N=64)
    assert (exact == 1).all()
    assert torch.equal(high.double() + low, x.double())
    # in another order too
    for order in (torch.arange(64), torch.arange(63, -1, -1), torch.randperm(64)):
        plain = torch.zeros(16)
        for column in high[:, order].T:
            plain = plain + column
        assert torch.equal(plain.double(), exact_sums(high))
    assert (low.abs() <= 64 * 2.0**-22 * x.abs().amax(1, keepdim=True)).all()

"""Sums against math.fsum, from short rows to such as take several programs."""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flashasc import ops
from flashasc.testing import ulps
from tests.attention.routes import Route

sys.path.insert(0, str(Path(__file__).parent.parent / "blocks"))

from hostile_numbers import U, exact_sums, ill_conditioned

CONDITIONS = (1e2, 1e3, 1e4, 1e5, 1e6)
ACROSS_PROGRAMS = 200_003
"""More numbers than one program sums, and a multiple of no tile."""


PART = 1024


@functools.cache
def part(condition: float) -> Tensor:
    """[PART] numbers that cancel."""
    return ill_conditioned(PART, condition)


def rows(n: int) -> Tensor:
    """[8, n]: positive, normal, and cancelling to each of CONDITIONS and to 1e7."""
    cancelling = [part(condition) for condition in (*CONDITIONS, 1e7)]
    # longer ones: the same condition, as every part has it
    tiled = [numbers.repeat(n // PART) for numbers in cancelling]
    padded = [torch.nn.functional.pad(numbers, (0, n - len(numbers))) for numbers in tiled]
    return torch.stack([torch.rand(n), torch.randn(n), *padded])


def test_sums_of_every_condition(every_route: Route) -> None:
    x = rows(ACROSS_PROGRAMS).to(every_route.device)
    exact, size = exact_sums(x.cpu()), exact_sums(x.abs().cpu())
    condition = size / exact.abs()
    assert condition[-2] > 0.9e6
    found = {
        level: ops.sum(x, 1, compensated=level, impl=every_route.impl).cpu()
        for level in (False, True, "sum2")
    }
    off = {level: (s.double() - exact).abs() for level, s in found.items()}
    # Kahan's bound at every condition, 1e7 included; and one rounding of the result
    assert (off[True] <= 2.1 * U * size + U * exact.abs()).all(), (off[True] / size / U).tolist()
    good = condition < 1.1e6
    assert good.sum() == 7
    off_by = ulps(found["sum2"], exact)
    assert (off_by[good] <= 2).all(), off_by.tolist()
    assert (off[False] > 4 * off["sum2"]).sum() >= 4, "a plain sum is as good: the data is too kind"


def test_a_million_numbers(route: Route) -> None:
    """A plain sum of positive numbers goes wrong; compensated, each length is as good."""
    x = torch.rand(2, 1 << 20, device=route.device)
    # every addition is rounded the same way
    x[1] = 0.1
    exact = exact_sums(x.cpu())
    for level in (True, "auto", "sum2"):
        found = ops.sum(x, 1, compensated=level, impl=route.impl).cpu()
        assert (ulps(found, exact) <= 1).all(), level
    plain = ops.sum(x, 1, compensated=False, impl=route.impl).cpu()
    assert (ulps(plain, exact) > 1).any()


def test_16_bit_sums_are_rounded_once(route: Route) -> None:
    dtype = torch.bfloat16
    x = torch.rand(3, 30_000, device=route.device).to(dtype)
    exact = exact_sums(x.float().cpu())
    wide = ops.sum(x, 1, out_dtype=torch.float32, impl=route.impl)
    assert wide.dtype == torch.float32
    assert (ulps(wide.cpu(), exact) <= 1).all()
    assert torch.equal(ops.sum(x, 1, impl=route.impl), wide.to(dtype))


def test_a_variance_does_not_cancel(route: Route) -> None:
    """The mean is a hundred thousand standard deviations; in order, so that no start is typical."""
    x = torch.randn(2, ACROSS_PROGRAMS).sort(1).values * 0.01 + 1000.0
    x = x.to(route.device)
    exact = x.double().var(1)
    found = ops.var(x, 1, impl=route.impl)
    assert ((found - exact).abs() <= 8 * U * exact).all()
    one_pass = x.square().mean(1) - x.mean(1).square()
    assert ((one_pass - exact).abs() > exact).any(), "the data is too kind"


def test_what_a_norm_of_large_and_small_numbers_is(route: Route) -> None:
    x = torch.rand(4, 5000, device=route.device) + 0.5
    x *= torch.tensor([2.0**119, 2.0**-140, 1.0, 2.0**-100], device=route.device)[:, None]
    exact = torch.linalg.vector_norm(x.double(), dim=1)
    found = ops.norm(x, 1, impl=route.impl)
    assert ((found - exact).abs() <= 4 * U * exact + 2.0**-149).all()
    assert ops.norm(x * 2.0**8, 1, impl=route.impl)[0] == math.inf


@pytest.mark.parametrize("n", [400, ACROSS_PROGRAMS])
def test_log_sum_exp_and_softmax(route: Route, n: int) -> None:
    x = (torch.randn(3, n) * torch.tensor([1.0, 20.0, 0.01])[:, None] + 50).to(route.device)
    exact = x.double()
    lse = ops.logsumexp(x, 1, compensated=True, impl=route.impl)
    assert ((lse - exact.logsumexp(1)).abs() <= 4 * U * lse.abs()).all()
    softmax = ops.softmax(x, 1, compensated=True, impl=route.impl)
    far = exact.amax(1, keepdim=True) - exact
    bound = (8 + 2 * far) * U * exact.softmax(1) + 2.0**-126
    assert ((softmax - exact.softmax(1)).abs() <= bound).all()


@pytest.mark.parametrize("n", [8, 400, 1023, 4096, 40_000])
def test_large_means_take_nothing_from_a_layer_norm(route: Route, n: int) -> None:
    """Means of 0, 300 and 10000 standard deviations: no worse than torch, and one as the other."""
    x = torch.randn(3, 4, n, dtype=torch.float64) + torch.tensor([0.0, 300.0, 1e4])[:, None, None]
    x = x.float().to(route.device)
    exact = torch.nn.functional.layer_norm(x.double(), (n,))
    found = ops.layer_norm(x, n, impl=route.impl)
    off, torchs = (
        (y.double() - exact).abs().amax((1, 2))
        for y in (found, torch.nn.functional.layer_norm(x, (n,)))
    )
    # without compensation a variance of n numbers is off by up to n roundings, the output by half
    bound = 8 * U * (1.0 + 0.02 * n * (n < 1024)) * exact.abs().amax((1, 2))
    assert (off <= bound).all(), (off / bound).tolist()
    assert (off[1:] <= torchs[1:]).all(), (off / torchs).tolist()


def test_large_means_take_nothing_from_gradients() -> None:
    x = (torch.randn(4, 300, dtype=torch.float64) + 300.0).float()
    weight = torch.randn(4, 300)
    pairs = [
        (lambda t: ops.layer_norm(t, 300), lambda t: torch.nn.functional.layer_norm(t, (300,))),
        (lambda t: ops.var(t, 1)[:, None], lambda t: t.var(1)[:, None]),
    ]
    for ours, torchs in pairs:
        grads = []
        for run, leaf in ((ours, x.clone()), (torchs, x.clone()), (torchs, x.double())):
            leaf.requires_grad_()
            (run(leaf) * weight).sum().backward()
            assert leaf.grad is not None
            grads.append(leaf.grad.double())
        found, theirs, exact = grads
        off, their = ((g - exact).abs().max() for g in (found, theirs))
        assert off <= 16 * U * exact.abs().max() and off <= their, (off, their)

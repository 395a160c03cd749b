"""The error of a product against the length of its sums, and against how ill they are."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from gemm_routes import Route, prepare
from torch import Tensor

from flashasc import ops
from flashasc._configs.compensation import PRODUCT_LENGTH
from flashasc.testing import (
    ill_conditioned_factors,
    normal_factors,
    positive_factors,
    relative_error,
)

U = 2.0**-24
M = N = 16
MAKE = {"positive": positive_factors, "normal": normal_factors}


@lru_cache(maxsize=2)
def problem(data: str, K: int) -> tuple[Tensor, Tensor, Tensor]:
    a, b = MAKE[data](M, N, K)
    return a, b, a.double() @ b.double()


def error(route: Route, data: str, K: int, compensated: bool) -> float:
    a, b, exact = problem(data, K)
    a, b = a.to(route.device), b.to(route.device)
    out = ops.matmul(a, b, compensated=compensated, impl=route.impl)
    return relative_error(out.cpu(), exact)


@pytest.mark.parametrize("data", MAKE)
def test_a_compensated_error_is_flat_in_k(fast_gemm_route: Route, data: str) -> None:
    errors = [error(fast_gemm_route, data, K, True) for K in (4096, 65536, 1048576)]
    assert max(errors) <= 1.5 * errors[0]
    assert max(errors) <= 5 * U


def test_a_plain_error_is_eight_times_as_large_at_1m(fast_gemm_route: Route) -> None:
    plain, compensated = (error(fast_gemm_route, "positive", 1048576, c) for c in (False, True))
    assert compensated <= U
    assert plain >= 8 * compensated


def test_after_hfusion_the_error_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    linalg = error(prepare("native-linalg", monkeypatch), "positive", 4096, True)
    hfusion = error(prepare("native-hfusion", monkeypatch), "positive", 4096, True)
    assert hfusion <= 1.05 * linalg


@pytest.mark.parametrize("power", [2, 4, 7])
def test_ill_conditioned_sums(fast_gemm_route: Route, power: int) -> None:
    """What cancels magnifies the rounding of each segment, and nothing else."""
    condition = 10.0**power
    a, b = ill_conditioned_factors(M, N, 16384, condition)
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert condition / 2 < float(size.norm() / exact.norm()) < condition * 2
    a, b = a.to(fast_gemm_route.device), b.to(fast_gemm_route.device)
    out = ops.matmul(a, b, impl=fast_gemm_route.impl).cpu().double()
    # Kahan's bound; and most of it is not used, as segments' roundings differ in sign
    assert ((out - exact).abs() <= 2 * U * size).all()
    assert (out - exact).norm() <= 0.1 * U * size.norm() + U * exact.norm()


def test_16_bit_factors_keep_float32_sums(fast_gemm_route: Route) -> None:
    a, b = (x.bfloat16() for x in positive_factors(M, N, 65536))
    exact = a.double() @ b.double()
    a, b = a.to(fast_gemm_route.device), b.to(fast_gemm_route.device)
    wide = ops.matmul(a, b, out_dtype=torch.float32, impl=fast_gemm_route.impl)
    # tensor cores truncate as they add: what a segment loses so stays
    limit = 64 if fast_gemm_route.device == "cuda" else 2
    assert relative_error(wide.cpu(), exact) < limit * U


@pytest.mark.parametrize("K, compensated", [(PRODUCT_LENGTH - 1, False), (PRODUCT_LENGTH, True)])
def test_auto_compensates_from_the_threshold_on(K: int, compensated: bool) -> None:
    a, b = positive_factors(M, N, K)
    auto = ops.matmul(a, b)
    assert torch.equal(auto, ops.matmul(a, b, compensated=compensated))
    assert not torch.equal(auto, ops.matmul(a, b, compensated=not compensated))

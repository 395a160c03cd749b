"""Accuracy as rows grow: the error of compensated sums stays, that of plain sums does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashasc.testing import (
    INPUTS,
    Case,
    exact_attention,
    ill_conditioned,
    relative_error,
    share_correctly_rounded,
)
from tests.attention.routes import Route
from tests.cases_table import BFLOAT16, FLOAT16

# one head, few queries, and as many keys as a test likes
CASE = Case(Hq=1, Sq=64, D=64)


def errors(route: Route, kind: str, Sk: int, **shape: Any) -> tuple[float, float]:
    """Relative errors of (standard, compensated) against float64."""
    q, k, v = INPUTS[kind](CASE.but(Sk=Sk), device=route.device, **shape)
    exact = exact_attention(q, k, v).out
    standard, compensated = (
        relative_error(route(q, k, v, precision=precision), exact)
        for precision in ("standard", "compensated")
    )
    return standard, compensated


@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_the_error_is_the_same_at_64k_keys_as_at_1k(every_route: Route, kind: str) -> None:
    _, short = errors(every_route, kind, 1024)
    _, long = errors(every_route, kind, 65536)
    assert long <= 1.5 * short


def test_ten_times_below_plain_sums(every_kernel_route: Route) -> None:
    """At 65 536 keys, values of one sign: nothing cancels, and every rounding goes one way."""
    standard, compensated = errors(every_kernel_route, "positive", 65536)
    assert compensated <= standard / 10
    # and close to what rounding the result itself costs
    assert compensated <= 2.0**-23


@pytest.mark.parametrize("log2_units", [1.0, 50.0])
def test_scores_that_rise_all_along(every_kernel_route: Route, log2_units: float) -> None:
    """At 256K keys every tile has a new maximum, and every rescale is exact."""
    standard, compensated = errors(every_kernel_route, "rising", 1 << 18, log2_units=log2_units)
    assert compensated <= standard / 10


@pytest.mark.parametrize("Sk", [1000, 30000])
@pytest.mark.parametrize("condition", [1e3, 1e6])
def test_sums_that_nearly_cancel(every_route: Route, condition: float, Sk: int) -> None:
    """The error is a rounding of one term, u = 2**-24 of its size, however many terms there are."""
    case = CASE.but(Sq=4, Sk=Sk)
    q, k, v = ill_conditioned(case, device=every_route.device, condition=condition)
    exact = exact_attention(q, k, v).out
    error = (every_route(q, k, v).double() - exact).abs().max().item()
    assert error <= 2.0**-24 * v.abs().mean().item()
    assert exact.abs().max() <= 3 / condition


SHARES = [
    # dtype, kind, least share of outputs that are the float64 result correctly rounded, for
    # standard and for compensated, at 4096 keys
    (BFLOAT16, "positive", 0.985, 0.993),
    (BFLOAT16, "normal", 0.57, 0.57),
    (FLOAT16, "positive", 0.990, 0.996),
    (FLOAT16, "normal", 0.57, 0.57),
]


@pytest.mark.parametrize(("dtype", "kind", "standard", "compensated"), SHARES, ids=str)
def test_share_of_correctly_rounded_outputs(
    every_route: Route, dtype: torch.dtype, kind: str, standard: float, compensated: float
) -> None:
    q, k, v = INPUTS[kind](CASE.but(Sk=4096, dtype=dtype), device=every_route.device)
    exact = exact_attention(q, k, v).out
    shares = {
        precision: share_correctly_rounded(every_route(q, k, v, precision=precision), exact)
        for precision in ("standard", "compensated")
    }
    assert shares["compensated"] >= compensated
    # a tensor core truncates as it adds, which "standard" lets pile up: on an H200 it has 0.960 in
    # fp16 with positive values, the very fault that "compensated" is there for
    if every_route.device != "cuda":
        assert shares["standard"] >= standard


def test_rounded_weights_cancel_out(route: Route) -> None:
    """bf16, values of one sign: dividing by the sum of the weights as rounded halves the error."""
    q, k, v = INPUTS["positive"](CASE.but(Sk=2048, dtype=BFLOAT16), device=route.device)
    exact = exact_attention(q, k, v).out
    standard, compensated = (
        relative_error(
            route(q, k, v, precision=precision, out_dtype=torch.float32, return_lse=True)[0], exact
        )
        for precision in ("standard", "compensated")
    )
    assert compensated <= 0.6 * standard

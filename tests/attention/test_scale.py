"""The factor of q @ k^T: given or not, zero, negative, tiny, huge."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import flashasc
from flashasc import ops
from flashasc.testing import Case, assert_accurate, exact_attention, normal
from tests.attention.routes import Route

CASE = Case(Hq=2, Sq=70, Sk=300)


@pytest.mark.parametrize("scale", [-0.3, -5.0, 1e-20, 1e-3, 1.0, 7.0, 100.0])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_any_scale(route: Route, scale: float, causal: bool) -> None:
    case = CASE.but(scale=scale, causal=causal)
    q, k, v = normal(case, device=route.device)
    out, lse = route(q, k, v, return_lse=True, **case.options)
    if abs(scale) > 1:
        # scores of several hundred: what rounding q @ k^T in float32 does to them decides
        exact = exact_attention(q, k, v, **case.options)
        score_error = 2.0**-22 * abs(scale) * float((q.double() @ k.double().mT).abs().max())
        assert (out.double() - exact.out).abs().max() <= score_error * float(v.abs().max())
        return
    assert_accurate(out, q, k, v, lse, **case.options)


@pytest.mark.parametrize("scale", [1e10, 1e30, -1e30])
def test_a_huge_scale_picks_the_largest_product(route: Route, scale: float) -> None:
    q, k, v = normal(CASE, device=route.device)
    out = route(q, k, v, scale=scale)
    exact = exact_attention(q, k, v, scale=scale)
    torch.testing.assert_close(out.double(), exact.out, rtol=2**-23, atol=0)


@pytest.mark.parametrize("scale", [0, 0.0, -0.0])
def test_zero_is_a_scale_like_any_other(route: Route, scale: float) -> None:
    """The mean of what is visible, not the default scale."""
    q, k, v = normal(CASE.but(Sk=70), device=route.device)
    mean = v.double().mean(2, keepdim=True).expand(1, 2, 70, 64)
    torch.testing.assert_close(route(q, k, v, scale=scale).double(), mean, rtol=1e-6, atol=1e-6)
    counts = torch.arange(1, 71, device=route.device).view(1, 1, 70, 1)
    running = v.double().cumsum(2) / counts
    out = route(q, k, v, scale=scale, causal=True)
    torch.testing.assert_close(out.double(), running, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("D", [24, 72, 80, 1])
def test_the_default_comes_from_the_head_size_and_not_from_a_padded_one(
    route: Route, D: int
) -> None:
    case = Case(Sq=30, Sk=30, D=D)
    q, k, v = normal(case, device=route.device)
    q = q * 2
    assert torch.equal(route(q, k, v), route(q, k, v, scale=D**-0.5))
    assert_accurate(route(q, k, v), q, k, v)


@pytest.mark.parametrize(
    "scale", [1, 0.25, np.float32(0.25), np.int64(1), np.float64(0.25)], ids=repr
)
def test_any_kind_of_number(scale: float) -> None:
    q, k, v = normal(Case(Sq=5, Sk=5, D=16))
    route = Route("reference", "reference")
    assert torch.equal(route(q, k, v, scale=scale), route(q, k, v, scale=float(scale)))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble, Fraction])
@pytest.mark.filterwarnings("error")
def test_numbers_of_other_libraries(kind: Any) -> None:
    """Compared in their own precision, limits beyond it would overflow with a warning."""
    q, k, v = normal(CASE)
    number = kind(0.25)
    found = flashasc.attention(q, k, v, scale=number, softcap=number)
    assert torch.equal(found, flashasc.attention(q, k, v, scale=0.25, softcap=0.25))
    assert torch.equal(ops.layer_norm(q, 64, eps=number), ops.layer_norm(q, 64, eps=0.25))
    assert torch.equal(ops.var(q, correction=number), ops.var(q, correction=0.25))
    if kind is not Fraction:
        with pytest.raises(ValueError, match="scale must be finite"):
            flashasc.attention(q, k, v, scale=kind("inf"))

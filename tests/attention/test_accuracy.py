"""The forward pass against float64, within the error budget, over the table of cases."""

from __future__ import annotations

import math

import pytest
import torch

from flashasc.testing import INPUTS, Case, assert_accurate, exact_attention, normal
from tests.attention.routes import Route
from tests.cases_table import BY_HEAD_SIZE, BY_HEADS, BY_LENGTH, CORE, DTYPES, FLOAT16, RAGGED


def check(route: Route, case: Case, kind: str = "normal", **options: object) -> None:
    q, k, v = INPUTS[kind](case, device=route.device)
    out, lse = route(q, k, v, return_lse=True, **case.options, **options)
    assert_accurate(out, q, k, v, lse, **case.options)


# every kernel is compiled for this: tests elsewhere take sizes and options from here where they can
@pytest.mark.parametrize("case", CORE, ids=str)
def test_core(core_route: Route, case: Case) -> None:
    check(core_route, case)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_core_with_plain_sums(every_route: Route, dtype: torch.dtype) -> None:
    check(every_route, RAGGED.but(dtype=dtype), precision="standard")


@pytest.mark.parametrize("case", CORE, ids=str)
def test_causal_with_plain_sums(route: Route, case: Case) -> None:
    if case.causal:
        check(route, case, precision="standard")


@pytest.mark.parametrize("case", BY_HEAD_SIZE, ids=str)
def test_head_sizes(route: Route, case: Case) -> None:
    check(route, case)


@pytest.mark.parametrize("case", BY_HEADS, ids=str)
def test_grouped_heads(route: Route, case: Case) -> None:
    check(route, case)


@pytest.mark.parametrize("case", BY_LENGTH, ids=str)
def test_lengths(route: Route, case: Case) -> None:
    check(route, case)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_kinds_of_input(route: Route, kind: str, dtype: torch.dtype) -> None:
    check(route, RAGGED.but(dtype=dtype, Sk=600), kind)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("precision", ["standard", "compensated"])
def test_float32_output_of_16_bit_inputs(route: Route, dtype: torch.dtype, precision: str) -> None:
    """Only the last rounding goes away: rounding that output gives the 16-bit output."""
    case = RAGGED.but(dtype=dtype)
    q, k, v = normal(case, device=route.device)
    options = {**case.options, "precision": precision, "return_lse": True}
    wide, _ = route(q, k, v, out_dtype=torch.float32, **options)
    narrow, _ = route(q, k, v, **options)
    assert wide.dtype == torch.float32
    assert torch.equal(wide.to(dtype), narrow)
    assert not torch.equal(wide, narrow.float())
    assert_accurate(wide, q, k, v, **case.options)


def test_float64_is_computed_in_float64() -> None:
    case = RAGGED.but(dtype=torch.float64, causal=True)
    q, k, v = normal(case)
    out, lse = Route("auto", "auto")(q, k, v, return_lse=True, **case.options)
    exact = exact_attention(q, k, v, **case.options)
    assert out.dtype == lse.dtype == torch.float64
    torch.testing.assert_close(out, exact.out, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(lse, exact.lse, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_log_sum_exp(route: Route, dtype: torch.dtype, layout: str) -> None:
    """float32, [B, Hq, Sq] in either layout, natural logarithm; asking for it changes no output."""
    case = RAGGED.but(dtype=dtype, layout=layout)
    q, k, v = normal(case, device=route.device)
    out, lse = route(q, k, v, return_lse=True, **case.options)
    assert lse.shape == (case.B, case.Hq, case.Sq)
    assert lse.dtype == torch.float32
    assert lse.is_contiguous()
    exact = exact_attention(q, k, v, **case.options).lse
    torch.testing.assert_close(lse.double(), exact, rtol=1e-6, atol=1e-6)
    assert torch.equal(out, route(q, k, v, **case.options))


def test_log_sum_exp_of_one_key_is_its_score(route: Route) -> None:
    """A logarithm of the wrong base or a forgotten scale cannot hide here."""
    q = torch.full((1, 1, 1, 64), 2.0, device=route.device)
    _, lse = route(q, q, q, scale=0.25, return_lse=True)
    assert lse.item() == pytest.approx(0.25 * 64 * 4, rel=1e-6)
    _, lse = route(q, q.expand(1, 1, 100, 64), q.expand(1, 1, 100, 64), scale=0, return_lse=True)
    assert lse.item() == pytest.approx(math.log(100), rel=1e-6)


def test_parts_of_the_keys_can_be_joined_by_their_log_sum_exp(route: Route) -> None:
    case = Case(Hq=2, Sq=5, Sk=48)
    q, k, v = normal(case, device=route.device)
    whole = route(q, k, v)
    (a, lse_a), (b, lse_b) = (
        route(q, k[:, :, keys], v[:, :, keys], return_lse=True)
        for keys in (slice(0, 16), slice(16, 48))
    )
    share = torch.sigmoid(lse_a - lse_b)[..., None]
    torch.testing.assert_close(share * a + (1 - share) * b, whole, rtol=1e-5, atol=1e-6)


def test_the_last_query_alone_is_the_last_row(route: Route) -> None:
    case = Case(B=2, Hq=3, Sq=90, Sk=90, causal=True)
    q, k, v = normal(case, device=route.device)
    full = route(q, k, v, causal=True)
    last = route(q[:, :, -1:], k, v, causal=True)
    torch.testing.assert_close(last, full[:, :, -1:], rtol=1e-6, atol=1e-6)
    assert not torch.equal(full, route(q, k, v))


@pytest.mark.parametrize("length", [2049, 8192])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_add_up_to_one(route: Route, dtype: torch.dtype, length: int) -> None:
    """A row sum kept in 16 bits would get stuck long before this."""
    q = torch.zeros(1, 1, 1, 64, dtype=dtype, device=route.device)
    k = torch.randn(1, 1, length, 64).to(route.device, dtype)
    out = route(q, k, torch.ones_like(k))
    assert torch.equal(out, torch.ones_like(out))


def test_every_column_of_a_large_head_counts(route: Route) -> None:
    """Scores come from the columns beyond the first 64 alone."""
    cases = [case for case in BY_HEAD_SIZE if case.D > 64 and case.dtype == FLOAT16]
    assert len(cases) >= 4
    for case in cases:
        q, k, v = normal(case, device=route.device)
        q[..., :64] = 0
        out, lse = route(q, k, v, return_lse=True, **case.options)
        assert_accurate(out, q, k, v, lse, **case.options)


def test_the_softmax_is_not_skipped(route: Route) -> None:
    """Each query is 400 times one of the keys: it gets that key's value, not the mean."""
    k = torch.nn.functional.normalize(torch.randn(1, 2, 50, 64), dim=-1).to(route.device, FLOAT16)
    v = torch.randn(1, 2, 50, 64).to(route.device, FLOAT16)
    assert (route(k * 400, k, v) - v).abs().max() < 5e-3

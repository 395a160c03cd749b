"""NaN and inf: they reach the rows that see them, and stay where nobody looks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flashasc._problem import Precision
from flashasc.testing import Case, assert_accurate, cut_from_nan, eager_attention, normal
from tests.attention.routes import Route
from tests.cases_table import DTYPES, FLOAT16, FLOAT32

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_behind_the_last_one_hold_nan(every_route: Route, dtype: torch.dtype) -> None:
    """A cache with room for 600 keys of which 270 are valid: same strides, NaN right behind."""
    case = Case(B=2, Hq=4, Hk=2, Sq=70, Sk=270, dtype=dtype)
    q, k, v = normal(case, device=every_route.device)
    cached = (cut_from_nan(x, dim=2, before=3, after=330) for x in (k, v))
    q_cut = cut_from_nan(q, dim=2, before=5, after=100)
    out, lse = every_route(q_cut, *cached, return_lse=True)
    every_route.assert_same(out, every_route(q, k, v, return_lse=True)[0])
    assert_accurate(out, q, k, v, lse)


@pytest.mark.parametrize("dim", [0, 1, 3])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_nan_beside_the_tensors(route: Route, dtype: torch.dtype, dim: int) -> None:
    """In other batches, in other heads, and in columns behind the head size."""
    case = Case(B=2, Hq=4, Hk=2, Sq=70, Sk=270, D=40, dtype=dtype)
    q, k, v = normal(case, device=route.device)
    out = route(*(cut_from_nan(x, dim=dim, before=1, after=1) for x in (q, k, v)))
    route.assert_same(out, route(q, k, v))


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_hidden_from_every_row(route: Route, dtype: torch.dtype, poison: float) -> None:
    """Causal, aligned top-left: keys from Sq on are hidden from all, in a tile that others see."""
    case = Case(Hq=2, Hk=1, Sq=70, Sk=270, dtype=dtype, causal=True, causal_align="top_left")
    q, k, v = normal(case, device=route.device)
    k[:, :, 70:] = poison
    v[:, :, 70:] = poison
    out, lse = route(q, k, v, return_lse=True, **case.options)
    assert_accurate(out, q, k, v, lse, **case.options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_in_a_query_stays_in_its_row(route: Route, dtype: torch.dtype) -> None:
    case = Case(Hq=2, Hk=1, Sq=70, Sk=270, dtype=dtype)
    q, k, v = normal(case, device=route.device)
    clean, clean_lse = route(q, k, v, return_lse=True)
    q[0, 1, 13, 5] = NAN
    out, lse = route(q, k, v, return_lse=True)
    assert out[0, 1, 13].isnan().all()
    assert lse[0, 1, 13].isnan()
    out[0, 1, 13], lse[0, 1, 13] = clean[0, 1, 13], clean_lse[0, 1, 13]
    assert torch.equal(out, clean)
    assert torch.equal(lse, clean_lse)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_in_a_key_reaches_those_who_see_it(route: Route, dtype: torch.dtype) -> None:
    """And nobody else: not even the rows before it in the same tile."""
    case = Case(Hq=2, Hk=1, Sq=270, Sk=270, dtype=dtype, causal=True)
    q, k, v = normal(case, device=route.device)
    clean, _ = route(q, k, v, return_lse=True, **case.options)
    k[0, 0, 100, 3] = NAN
    out, lse = route(q, k, v, return_lse=True, **case.options)
    assert torch.equal(out[:, :, :100], clean[:, :, :100])
    assert out[:, :, 100:].isnan().all()
    assert torch.equal(lse.isnan(), out[..., 0].isnan())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_a_value_reaches_those_who_see_it(route: Route, dtype: torch.dtype, poison: float) -> None:
    """Its own column alone; and no row of a tile in which nobody sees it."""
    case = Case(Hq=2, Hk=1, Sq=300, Sk=600, dtype=dtype, causal=True, scale=0.05)
    q, k, v = normal(case, device=route.device)
    clean, _ = route(q, k, v, return_lse=True, **case.options)
    v[0, 0, 550, 3] = poison
    out, _ = route(q, k, v, return_lse=True, **case.options)
    others = [c for c in range(64) if c != 3]
    assert torch.equal(out[..., others], clean[..., others])
    # query i is aligned with key i + 300
    seeing = out[:, :, 250:, 3]
    assert seeing.isnan().all() if math.isnan(poison) else (seeing == poison).all()
    if route.name != "reference":
        # whose tile holds all rows of a call as small as this
        assert torch.equal(out[:, :, :128], clean[:, :, :128])


@pytest.mark.parametrize("precision", ["standard", "compensated"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compensation_leaves_an_infinity_alone(
    every_route: Route, dtype: torch.dtype, precision: str
) -> None:
    """Infinities of one sign in several tiles stay one; of two signs, or times 0, they are NaN."""
    case = Case(Hq=1, Sq=4, Sk=800, dtype=dtype, scale=0.05)
    q, k, v = normal(case, device=every_route.device)
    v[0, 0, [10, 300, 790], 0] = INF
    v[0, 0, [10, 790], 1] = -INF
    v[0, 0, 300, 2], v[0, 0, 10, 2] = INF, -INF
    out, _ = every_route(q, k, v, return_lse=True, scale=0.05, precision=precision)
    assert (out[..., 0] == INF).all()
    assert (out[..., 1] == -INF).all()
    assert out[..., 2].isnan().all()
    assert out[..., 3:].isfinite().all()


@pytest.mark.parametrize("precision", ["standard", "compensated"])
def test_sums_that_overflow_are_infinite(route: Route, precision: str) -> None:
    """float32 values at the end of its range: inf or the right value, and never NaN."""
    v = torch.full((1, 1, 900, 64), 3e38, device=route.device)
    q = torch.zeros(1, 1, 2, 64, device=route.device)
    out, _ = route(q, torch.zeros_like(v), v, return_lse=True, precision=precision)
    assert not out.isnan().any()
    assert ((out == INF) | ((out - 3e38).abs() < 1e33)).all()


def test_scores_that_overflow_stay_in_their_row(route: Route) -> None:
    case = Case(Hq=1, Sq=16, Sk=16, causal=True)
    q, k, v = normal(case, device=route.device)
    clean = route(q, k, v, **case.options)
    # the last row alone sees the last key, and their product is beyond float32
    q[0, 0, 15] = 1e25
    k[0, 0, 15] = 1e25
    out = route(q, k, v, **case.options)
    assert torch.equal(out[:, :, :15], clean[:, :, :15])


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_a_score_of_minus_infinity_hides_its_key(route: Route, dtype: torch.dtype) -> None:
    case = Case(Hq=1, Sq=70, Sk=270, dtype=dtype)
    q, k, v = normal(case, device=route.device)
    q[..., 0] = 1.0
    k[0, 0, [0, 100, 269], 0] = -INF
    kept = [j for j in range(270) if j not in (0, 100, 269)]
    assert_accurate(route(q, k, v), q, k[:, :, kept], v[:, :, kept])


def test_nan_where_eager_has_nan(route: Route) -> None:
    """A score of +inf has no softmax."""
    case = Case(Hq=1, Sq=3, Sk=300)
    q, k, v = normal(case, device=route.device)
    q[..., 0] = 1.0
    k[0, 0, 100, 0] = INF
    assert eager_attention(q, k, v).out.isnan().all()
    assert route(q, k, v).isnan().all()


def test_nan_left_on_chip_by_an_earlier_call(route: Route) -> None:
    def call(Sq: int, Sk: int, fill: float | None = None) -> tuple[Tensor, ...]:
        case = Case(Hq=4, Sq=Sq, Sk=Sk, D=64, dtype=FLOAT16)
        q, k, v = normal(case, device=route.device)
        if fill is not None:
            q, k, v = (torch.full_like(x, fill) for x in (q, k, v))
        return route(q, k, v), q, k, v

    assert call(128, 256, NAN)[0].isnan().all()
    for Sq, Sk in ((9, 9), (12, 12), (301, 203)):
        assert_accurate(*call(Sq, Sk))


@pytest.mark.parametrize("precision", ["standard", "compensated", "high"])
@pytest.mark.parametrize("dtype", [FLOAT16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("option", ["none", "causal", "softcap", "alibi_slopes"])
def test_infinite_values_stay_infinite_in_their_columns(
    route: Route, dtype: torch.dtype, precision: Precision, option: str
) -> None:
    """Also where a weight is multiplied as two numbers: the second may be 0, or negative."""
    case = Case(Hq=2, Hk=1, Sq=70, Sk=2300, dtype=dtype)
    q, k, v = normal(case, device=route.device)
    # slopes under which the farthest key keeps a weight
    slopes = torch.tensor([2.0**-8, 2.0**-9], device=route.device)
    value = {"none": None, "causal": True, "softcap": 30.0, "alibi_slopes": slopes}[option]
    options = {} if value is None else {option: value}
    clean, _ = route(q, k, v, return_lse=True, precision=precision, **options)
    for key, column, infinite in ((5, 3, INF), (900, 7, -INF), (2000, 9, INF), (2001, 9, -INF)):
        v[0, 0, key, column] = infinite
    out, lse = route(q, k, v, return_lse=True, precision=precision, **options)
    assert (out[..., 3] == INF).all()
    assert (out[..., 7] == -INF).all()
    assert out[..., 9].isnan().all()
    assert lse.isfinite().all()
    others = [i for i in range(out.shape[-1]) if i not in (3, 7, 9)]
    assert torch.equal(out[..., others], clean[..., others])

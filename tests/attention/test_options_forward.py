"""Every option, alone and combined, against float64 and within the error budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashasc.reference import packed as packed_reference
from flashasc.testing import Case, assert_accurate, exact_attention, normal
from tests.attention.option_cases import ALONE, BASE, PACKED, combinations, option, packed, together
from tests.attention.routes import ROUTES, Route, prepare
from tests.cases_table import DTYPES, FLOAT16

pytestmark = pytest.mark.usefixtures("_small_tiles")
ALIGNED = (
    {},
    {"causal": True},
    {"causal": True, "causal_align": "top_left"},
    {"causal_align": "top_left"},
)
PRECISIONS = ("standard", "compensated", "high")
LENGTHS = ([70, 0, 33, 1, 5], [20, 9, 90, 0, 5])


def check(route: Route, inputs: Any, options: dict[str, Any], precision: str) -> None:
    out, lse = route(*inputs, precision=precision, return_lse=True, **options)
    assert out.is_contiguous()
    if inputs[0].dtype == torch.float64:
        # the oracle computes in float64 itself: its own last digits are no yardstick
        exact = exact_attention(*inputs, **options)
        torch.testing.assert_close((out, lse), tuple(exact), rtol=1e-11, atol=1e-12)
    else:
        assert_accurate(out, *inputs, lse, **options)


def by_turns(route: Route, *places: int) -> None:
    """Natively one combination in four, as each is a kernel to compile; a GPU runs them all."""
    if route.native and sum(places) % 4:
        pytest.skip("natively one combination in four, by turns")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("aligned", ALIGNED, ids=str)
@pytest.mark.parametrize("name", ALONE)
def test_alone(
    options_route: Route, name: str, aligned: dict[str, Any], dtype: torch.dtype
) -> None:
    names = list(ALONE)
    by_turns(options_route, names.index(name), ALIGNED.index(aligned), DTYPES.index(dtype))
    case = BASE.but(dtype=dtype, layout="BSND" if "causal" in aligned else "BNSD")
    inputs = normal(case, device=options_route.device)
    options = {"layout": case.layout, **aligned, **option(name, case, device=options_route.device)}
    check(options_route, inputs, options, "high" if dtype == FLOAT16 else "compensated")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("aligned", ALIGNED, ids=str)
@pytest.mark.parametrize("name", [*PACKED, None])
def test_packed(
    options_route: Route, name: str | None, aligned: dict[str, Any], dtype: torch.dtype
) -> None:
    names = [*PACKED, None]
    by_turns(options_route, names.index(name), ALIGNED.index(aligned), DTYPES.index(dtype))
    case = BASE.but(dtype=dtype, B=len(LENGTHS[0]))
    inputs, options = packed(case, *LENGTHS, device=options_route.device)
    more = option(name, case, device=options_route.device) if name else {}
    check(options_route, inputs, {**options, **aligned, **more}, "compensated")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_everything_at_once(options_route: Route, dtype: torch.dtype, precision: str) -> None:
    if precision == "high" and dtype == torch.float32:
        pytest.skip("high is for 16 bits")
    case = BASE.but(dtype=dtype, Dv=24, causal=True)
    names = ["window", "softcap", "mask", "bias of heads", "alibi_slopes", "sinks", "kv_lens"]
    options = {**case.options, **together(names, case, 5, options_route.device)}
    check(options_route, normal(case, device=options_route.device), options, precision)


def test_a_window_as_wide_as_can_be_is_none(options_route: Route) -> None:
    q, k, v = normal(BASE, device=options_route.device)
    wide = options_route(q, k, v, window=(10**30, 2**31))
    options_route.assert_same(wide, options_route(q, k, v))
    causal = options_route(q, k, v, window=(None, 0))
    options_route.assert_same(causal, options_route(q, k, v, causal=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_high_is_correctly_rounded(options_route: Route, dtype: torch.dtype) -> None:
    from flashasc.testing import share_correctly_rounded

    case = Case(Hq=2, Sq=128, Sk=2048, D=64, dtype=dtype)
    q, k, v = normal(case, device=options_route.device)
    exact = exact_attention(q * 2, k, v).out
    shares = {
        precision: share_correctly_rounded(options_route(q * 2, k, v, precision=precision), exact)
        for precision in ("compensated", "high")
    }
    assert shares["high"] > 0.99
    assert shares["high"] > shares["compensated"] + 0.05


def test_packed_equals_each_alone(options_route: Route) -> None:
    (q, k, v), options = packed(BASE, *LENGTHS, device=options_route.device)
    out, lse = options_route(q, k, v, causal=True, return_lse=True, **options)
    edges_q, edges_k = (options[f"cu_seqlens_{x}"].tolist() for x in "qk")
    for b in range(len(LENGTHS[0])):
        rows, keys = slice(*edges_q[b : b + 2]), slice(*edges_k[b : b + 2])
        alone = (x[None] for x in (q[rows], k[keys], v[keys]))
        one, one_lse = options_route(*alone, layout="BSND", causal=True, return_lse=True)
        options_route.assert_same(out[rows], one[0])
        options_route.assert_same(lse[:, rows], one_lse[0])


def test_largest_lengths_are_read_where_they_are_not_given(options_route: Route) -> None:
    (q, k, v), options = packed(BASE, *LENGTHS, device=options_route.device)
    known = options_route(q, k, v, causal=True, **options)
    for name in ("max_seqlen_q", "max_seqlen_k"):
        del options[name]
    assert torch.equal(options_route(q, k, v, causal=True, **options), known)


@pytest.mark.parametrize("name", [*PACKED, None])
@pytest.mark.parametrize("aligned", ALIGNED[:3], ids=str)
def test_lengths_that_stay_on_the_device(
    monkeypatch: pytest.MonkeyPatch, name: str | None, aligned: dict[str, Any]
) -> None:
    """The reference as it runs where reading a length would wait: nothing is read."""
    case = BASE.but(B=len(LENGTHS[0]))
    inputs, options = packed(case, *LENGTHS)
    options |= {**aligned, **(option(name, case) if name else {})}
    monkeypatch.setattr(packed_reference, "_on_host", lambda device: False)
    for method in ("item", "tolist", "__int__", "__bool__", "__index__"):
        monkeypatch.setattr(torch.Tensor, method, _read)
    out, lse = ROUTES["reference"](*inputs, return_lse=True, **options)
    monkeypatch.undo()
    assert_accurate(out, *inputs, lse, **options)


def _read(*_: Any) -> None:
    raise AssertionError("a value was read")


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
HEADS = st.tuples(st.integers(1, 2), st.integers(1, 3))
DRAWN = {
    "seed": st.integers(0, 2**31),
    "heads": HEADS,
    "sizes": st.tuples(st.integers(1, 40), st.integers(16, 40)),
    "aligned": st.sampled_from(ALIGNED),
    "dtype": st.sampled_from((*DTYPES, torch.float64)),
    "precision": st.sampled_from(PRECISIONS),
    "scale": st.none() | st.floats(-1, 1),
}
OPTION_ROUTES = ("reference",)


def precision_for(dtype: torch.dtype, precision: str) -> str:
    return precision if dtype.itemsize == 2 or precision != "high" else "compensated"


@pytest.mark.parametrize("name", OPTION_ROUTES)
@given(
    names=combinations(ALONE),
    lengths=st.tuples(st.integers(0, 3), st.integers(0, 150), st.integers(0, 100)),
    layout=st.sampled_from(("BNSD", "BSND")),
    **DRAWN,
)
@settings(max_examples=150, suppress_health_check=QUIET)
def test_combinations(
    name: str, names: list[str], lengths: Any, layout: Any, seed: int, heads: Any, sizes: Any,
    aligned: Any, dtype: torch.dtype, precision: str, scale: float | None,
) -> None:  # fmt: skip
    (B, Sq, Sk), (Hk, group), (D, Dv) = lengths, heads, sizes
    case = Case(
        B=B, Hq=Hk * group, Hk=Hk, Sq=Sq, Sk=Sk, D=D, Dv=Dv, dtype=dtype, layout=layout, scale=scale
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as monkeypatch:
        route = prepare(name, monkeypatch)
        options = {**case.options, **aligned, **together(names, case, seed, route.device)}
        inputs = normal(case, seed, route.device)
        check(route, inputs, options, precision_for(dtype, precision))


SEQUENCES = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 50)), max_size=4)


@pytest.mark.parametrize("name", OPTION_ROUTES)
@given(
    names=st.just([]) | combinations(PACKED),
    lengths=SEQUENCES,
    announced=st.sampled_from((None, 0, 13)),
    **DRAWN,
)
@settings(max_examples=100, suppress_health_check=QUIET)
def test_packed_combinations(
    name: str, names: list[str], lengths: Any, announced: int | None, seed: int, heads: Any,
    sizes: Any, aligned: Any, dtype: torch.dtype, precision: str, scale: float | None,
) -> None:  # fmt: skip
    (Hk, group), (D, Dv) = heads, sizes
    case = Case(B=len(lengths), Hq=Hk * group, Hk=Hk, D=D, Dv=Dv, dtype=dtype)
    lengths_q, lengths_k = [n for n, _ in lengths], [m for _, m in lengths]
    with pytest.MonkeyPatch.context() as monkeypatch:
        route = prepare(name, monkeypatch)
        inputs, options = packed(case, lengths_q, lengths_k, seed, route.device)
        options |= {"scale": scale, **aligned, **together(names, case, seed, route.device)}
        for key in ("max_seqlen_q", "max_seqlen_k"):
            # longer than any sequence, or not given at all
            options[key] = None if announced is None else options[key] + announced
        check(route, inputs, options, precision_for(dtype, precision))

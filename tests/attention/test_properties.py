"""Attention on drawn shapes, strides and options, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from flashasc.testing import Case, assert_accurate, exact_attention, normal
from tests.attention.routes import ROUTES, prepare

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LENGTHS = st.integers(0, 40) | st.integers(41, 700)

# each head size and dtype is a kernel of its own to compile: few of them for the kernels
ANY_HEAD = st.integers(1, 300)
# a handful of outputs, all small by cancellation, would say nothing about the rounding
ANY_VALUE = st.integers(16, 300)
FEW_HEADS = st.sampled_from((16, 40, 64))


@st.composite
def cases(
    draw: Any,
    heads: st.SearchStrategy[int],
    values: st.SearchStrategy[int] | None,
    dtypes: tuple[torch.dtype, ...],
) -> Case:
    Hk = draw(st.integers(1, 3))
    D = draw(heads)
    return Case(
        B=draw(st.integers(0, 3)),
        Hq=Hk * draw(st.integers(1, 3)),
        Hk=Hk,
        Sq=draw(LENGTHS),
        Sk=draw(LENGTHS),
        D=D,
        Dv=draw(values) if values is not None else D,
        dtype=draw(st.sampled_from(dtypes)),
        layout=draw(st.sampled_from(("BNSD", "BSND"))),
        causal=draw(st.booleans()),
        causal_align=draw(st.sampled_from(("bottom_right", "top_left"))),
        scale=draw(st.none() | st.floats(-1, 1)),
    )


STRIDES = ("contiguous", "swapped", "every other", "columns apart", "one batch", "offset")


def restride(x: Tensor, how: str) -> Tensor:
    """The same numbers (but for "one batch") behind other strides."""
    match how:
        case "swapped":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        case "every other":
            return x.repeat_interleave(2, dim=2)[:, :, ::2]
        case "columns apart":
            return x.mT.contiguous().mT
        case "one batch":
            return x[:1].expand_as(x)
        case "offset":
            return torch.cat([x.new_full((1,), torch.nan), x.flatten()])[1:].view(x.shape)
    return x


def check(name: str, case: Case, seed: int, strides: list[str], precision: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        route = prepare(name, monkeypatch)
        q, k, v = map(restride, normal(case, seed, route.device), strides)
        out, lse = route(q, k, v, precision=precision, return_lse=True, **case.options)
    assert out.is_contiguous()
    if case.dtype == torch.float64:
        # the oracle computes in float64 itself: its own last digits are no yardstick
        exact = exact_attention(q, k, v, **case.options)
        torch.testing.assert_close((out, lse), tuple(exact), rtol=1e-12, atol=1e-13)
    else:
        assert_accurate(out, q, k, v, lse, **case.options)


SEEDS = st.integers(0, 2**31)
DRAWN = {
    "seed": SEEDS,
    "strides": st.lists(st.sampled_from(STRIDES), min_size=3, max_size=3),
    "precision": st.sampled_from(("standard", "compensated")),
}
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


@given(case=cases(ANY_HEAD, ANY_VALUE, (*DTYPES, torch.float64)), **DRAWN)
@settings(max_examples=150, suppress_health_check=QUIET)
def test_reference(case: Case, seed: int, strides: list[str], precision: str) -> None:
    check("reference", case, seed, strides, precision)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.gpu] if n == "cuda" else []) for n in
             ("native-linalg", "cuda")]
)  # fmt: skip
@given(case=cases(FEW_HEADS, None, DTYPES), **DRAWN)
@settings(max_examples=60, suppress_health_check=QUIET)
def test_kernel(name: str, case: Case, seed: int, strides: list[str], precision: str) -> None:
    assert name in ROUTES
    check(name, case, seed, strides, precision)

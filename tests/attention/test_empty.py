"""Rows with nothing to see, and sizes of zero."""

from __future__ import annotations

import math

import pytest
import torch

from flashasc.reference import packed
from flashasc.testing import Case, assert_accurate, exact_attention, normal
from tests.attention.routes import Route
from tests.cases_table import DTYPES

# more queries than keys, so that the first rows of a causal call see nothing: whole tiles of them,
# part of a tile, all but one row
BLIND = ((200, 50), (76, 1), (65, 64), (300, 40))


@pytest.mark.parametrize("precision", ["standard", "compensated"])
@pytest.mark.parametrize("lengths", BLIND, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_see_nothing(
    route: Route, dtype: torch.dtype, lengths: tuple[int, int], precision: str
) -> None:
    Sq, Sk = lengths
    case = Case(B=2, Hq=2, Hk=1, Sq=Sq, Sk=Sk, dtype=dtype, causal=True)
    q, k, v = normal(case, device=route.device)
    out, lse = route(q * 3, k * 3, v, return_lse=True, precision=precision, **case.options)
    blind = Sq - Sk
    assert torch.equal(out[:, :, :blind], torch.zeros_like(out[:, :, :blind]))
    assert torch.equal(lse[:, :, :blind], torch.full_like(lse[:, :, :blind], -math.inf))
    assert_accurate(out, q * 3, k * 3, v, lse, **case.options)


def test_rows_that_see_nothing_at_every_level(every_route: Route) -> None:
    case = Case(B=2, Sq=200, Sk=50, dtype=torch.float16, causal=True)
    q, k, v = normal(case, device=every_route.device)
    out, lse = every_route(q, k, v, return_lse=True, **case.options)
    assert not out[:, :, :150].any()
    assert_accurate(out, q, k, v, lse, **case.options)


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"B": 0},
        {"Sq": 0},
        {"Sk": 0},
        {"Sq": 0, "Sk": 0},
        {"Hq": 0, "Hk": 0},
        {"B": 0, "Sq": 0, "Sk": 0, "Hq": 0, "Hk": 0},
    ],
    ids=str,
)
def test_sizes_of_zero(route: Route, sizes: dict[str, int], causal: bool, layout: str) -> None:
    base = Case(B=2, Hq=4, Hk=2, Sq=5, Sk=7, D=16, Dv=8, dtype=torch.float16)
    case = base.but(causal=causal, layout=layout, **sizes)
    q, k, v = normal(case, device=route.device)
    out, lse = route(q, k, v, return_lse=True, **case.options)
    expected = exact_attention(q, k, v, **case.options)
    assert torch.equal(out.double(), expected.out)
    assert torch.equal(lse.double(), expected.lse)
    assert out.is_contiguous()
    assert (out.dtype, lse.dtype) == (torch.float16, torch.float32)
    assert torch.equal(route(q, k, v, **case.options), out)


def test_no_query_after_a_kernel_was_compiled(route: Route) -> None:
    """On an NPU, starting a kernel that is already compiled with no program ends the process."""
    case = Case(Sq=8, Sk=16)
    q, k, v = normal(case, device=route.device)
    assert route(q, k, v).shape == (1, 2, 8, 64)
    assert route(q[:, :, :0], k, v).shape == (1, 2, 0, 64)
    out, lse = route(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert not out.any()
    assert torch.equal(lse, torch.full_like(lse, -math.inf))


@pytest.mark.parametrize("extra", ["nothing", "alibi_slopes", "sinks"])
def test_packed_sequences_of_no_heads(
    route: Route, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as on a device, whose lengths nobody reads
    monkeypatch.setattr(packed, "_on_host", lambda device: False)
    q = torch.zeros(10, 0, 16, dtype=torch.float16, device=route.device)
    ends = torch.tensor([0, 4, 10], dtype=torch.int32, device=route.device)
    options = {} if extra == "nothing" else {extra: torch.zeros(0, device=route.device)}
    out, lse = route(
        q, q, q, layout="TND", cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=6,
        max_seqlen_k=6, return_lse=True, **options,
    )  # fmt: skip
    assert out.shape == q.shape
    assert lse.shape == (0, 10)

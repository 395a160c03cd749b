"""Agreement with PyTorch's own attention in float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flashasc.testing import TOLERANCES, Case, normal
from tests.attention.routes import Route
from tests.cases_table import DTYPES


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward_matches_fp32_sdpa(
    every_route: Route, dtype: torch.dtype, layout: str, causal: bool
) -> None:
    case = Case(B=2, Hq=4, Sq=200, Sk=200, D=64, dtype=dtype, layout=layout, causal=causal)
    q, k, v = normal(case, device=every_route.device)
    out = every_route(q, k, v, **case.options)

    q, k, v = (x.float() if layout == "BNSD" else x.float().transpose(1, 2) for x in (q, k, v))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    if layout == "BSND":
        expected = expected.transpose(1, 2)
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(out, expected.to(dtype), rtol=rtol, atol=atol)


@pytest.mark.parametrize(("Sq", "Sk"), [(100, 300), (300, 100)])
def test_top_left_alignment_is_that_of_sdpa(every_route: Route, Sq: int, Sk: int) -> None:
    case = Case(Hq=4, Hk=2, Sq=Sq, Sk=Sk, D=64, causal=True, causal_align="top_left")
    q, k, v = normal(case, device=every_route.device)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    rtol, atol = TOLERANCES[torch.float32]
    out = every_route(q, k, v, **case.options)
    torch.testing.assert_close(out, expected, rtol=rtol, atol=atol)

"""Cumulative lengths far outside the tensors: they are clamped before anything is made of them."""

from __future__ import annotations

import pytest
import torch

from tests.attention.routes import Route

LEAST, MOST = torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max


@pytest.mark.parametrize("edges", [[LEAST, 5], [LEAST, MOST], [-1, MOST]])
def test_a_difference_that_wraps_round(route: Route, edges: list[int]) -> None:
    """The longest sequence is found from clamped lengths: MOST - LEAST is -1 in 32 bits."""
    q, k, v = (torch.randn(5, 2, 16, device=route.device) for _ in range(3))
    wild = torch.tensor(edges, dtype=torch.int32, device=route.device)
    right = torch.tensor([0, 5], dtype=torch.int32, device=route.device)
    options = {"layout": "TND", "causal": True, "return_lse": True}
    out, lse = route(q, k, v, cu_seqlens_q=wild, cu_seqlens_k=wild, **options)
    expected, lse_expected = route(q, k, v, cu_seqlens_q=right, cu_seqlens_k=right, **options)
    assert torch.equal(out, expected) and torch.equal(lse, lse_expected)
    assert lse.isfinite().all()

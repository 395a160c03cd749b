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


def test_lengths_of_any_stride(options_route: Route) -> None:
    """A column of a table, and one number expanded."""
    q, k, v = (torch.randn(3, 2, n, 16, device=options_route.device) for n in (4, 9, 9))
    table = torch.tensor([[3, 0], [9, 0], [5, 0]], device=q.device, dtype=torch.int32)
    for lengths in (table[:, 0], table[:1, 0].expand(3)):
        out = options_route(q, k, v, kv_lens=lengths)
        assert torch.equal(out, options_route(q, k, v, kv_lens=lengths.clone()))
    q, k, v = (torch.randn(9, 2, 16, device=options_route.device) for _ in range(3))
    edges = torch.tensor([[0, 0], [3, 0], [9, 0]], device=q.device, dtype=torch.int32)[:, 0]
    options = {"layout": "TND", "max_seqlen_q": 6, "max_seqlen_k": 6}
    out = options_route(q, k, v, cu_seqlens_q=edges, cu_seqlens_k=edges, **options)
    edges = edges.clone()
    assert torch.equal(
        out, options_route(q, k, v, cu_seqlens_q=edges, cu_seqlens_k=edges, **options)
    )


@pytest.mark.parametrize("tokens", [9, 40])
def test_a_generous_bound_starts_no_more_programs(
    kernel_route: Route, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flashasc.kernels import attention_launch, split_launch

    tasks: list[list[int]] = []
    for module in (attention_launch, split_launch):
        monkeypatch.setattr(
            module, "launch", lambda kernel, n, args, *_, **__: tasks[-1].append(args["tasks"])
        )
    q = torch.randn(tokens, 2, 16, device=kernel_route.device)
    edges = torch.tensor([0, tokens], device=q.device, dtype=torch.int32)
    for longest in (tokens, 2**31 - 1):
        tasks.append([])
        kernel_route(
            q, q, q, layout="TND", cu_seqlens_q=edges, cu_seqlens_k=edges, max_seqlen_q=longest,
            max_seqlen_k=longest,
        )  # fmt: skip
    assert tasks[0]
    assert tasks[0] == tasks[1]

"""In which order tiles are computed, and that each is computed once whatever the order."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from flashasc._problem import Extras
from flashasc._validate import Arguments, validate_attention
from flashasc.kernels.attention_launch import launch_attention_fwd
from flashasc.kernels.order_launch import (
    heads_together,
    launch_packed_order,
    order_of,
    tiles_of_a_head,
)
from flashasc.testing import Case, normal
from tests.attention.routes import Route

BLOCK = 64


def ends(device: str, *lengths: int, first: int = 0) -> torch.Tensor:
    return torch.tensor([first, *lengths], device=device).cumsum(0).to(torch.int32)


def packed(route: Route, cu_q: torch.Tensor, cu_k: torch.Tensor, **more: object):  # type: ignore[no-untyped-def]
    """Arguments of a call, its facts, and what its kernel is launched with, one program a tile."""
    tokens = (int(cu_q[-1]) + 70, int(cu_k[-1]))
    q, k, v = (
        torch.randn(n, heads, 16, device=route.device).to(torch.float16)
        for n, heads in ((tokens[0], 4), (tokens[1], 2), (tokens[1], 2))
    )
    options = {
        "layout": "TND", "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": 1000,
        "max_seqlen_k": 1000, "return_lse": True, "causal": True, **more,
    }  # fmt: skip
    problem = validate_attention(Arguments(q, k, v, **options))  # type: ignore[arg-type]
    plan = route.explain(q, k, v, **options)
    return (q, k, v), options, problem, plan, replace(plan.config, core_loop=False)


@pytest.mark.parametrize("sequences", [1, 3, 150])
@pytest.mark.parametrize("few", [0, 16])
def test_longer_sequences_go_first(kernel_route: Route, sequences: int, few: int) -> None:
    draw = random.Random(sequences)
    lengths_q, lengths_k = (
        [draw.choice([0, 1, 16, 17, 64, 65, 300]) for _ in range(sequences)] for _ in range(2)
    )
    lengths_q[0], lengths_k[0] = 300, 65
    cu_q, cu_k = ends(kernel_route.device, *lengths_q), ends(kernel_route.device, *lengths_k)
    _, _, problem, plan, config = packed(kernel_route, cu_q, cu_k)
    config = replace(config, block_m=BLOCK)
    order = launch_packed_order(
        None, None, (cu_q, cu_k), problem, config, plan.target, plan.route,
        longest_q=200, longest_k=200, few=few,
    ).tolist()  # fmt: skip
    expected = sorted(range(sequences), key=lambda b: -min(lengths_k[b], 200))
    assert order[:sequences] == expected
    tiles = [-(-min(n, 200) // BLOCK) if n > few else 0 for n in lengths_q]
    firsts = [sum(tiles[b] for b in expected[:i]) for i in range(sequences + 1)]
    assert order[sequences:] == firsts
    assert firsts[-1] <= tiles_of_a_head(problem, config, 200)


def test_a_program_a_tile_gives_the_bits_of_a_program_a_core(kernel_route: Route) -> None:
    """Packed: sequences that have no query, no key, few of them; and tokens that belong to none."""
    if not kernel_route.native:
        pytest.skip("on a GPU there is no program a core")
    cu_q = ends("cpu", 90, 0, 3, 200, 64, 31, first=40)
    cu_k = ends("cpu", 70, 9, 0, 300, 64, 120, first=3)
    (q, k, v), options, problem, plan, config = packed(kernel_route, cu_q, cu_k)
    expected, lse_expected = kernel_route(q, k, v, **options)
    out = torch.full((4, q.shape[0], 16), torch.nan, dtype=torch.float16)
    lse = torch.full(out.shape[:2], torch.nan)
    launch_attention_fwd(
        *(x.transpose(0, 1) for x in (q, k, v)), out, lse, problem,
        Extras(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k), config, plan.target, plan.route,
        few=plan.few,
    )  # fmt: skip
    others = torch.ones(q.shape[0], dtype=torch.bool)
    # of these the split kernel writes the rows
    others[int(cu_q[2]) : int(cu_q[3])] = False
    assert plan.few >= 3
    assert out[:, ~others].isnan().all() and lse[:, ~others].isnan().all()
    assert torch.equal(out[:, others], expected.transpose(0, 1)[:, others])
    assert torch.equal(lse[:, others], lse_expected[:, others])


def test_overlapping_sequences_leave_no_row_unwritten(kernel_route: Route) -> None:
    """Ends that go back and forth ask for more tiles than there are programs."""
    wild = torch.tensor([0, 300, 0, 300, 0, 300], dtype=torch.int32, device=kernel_route.device)
    (q, k, v), _, problem, plan, config = packed(kernel_route, wild, wild)
    out = torch.full((4, q.shape[0], 16), torch.nan, dtype=torch.float16, device=q.device)
    launch_attention_fwd(
        *(x.transpose(0, 1) for x in (q, k, v)), out, None, replace(problem, with_lse=False),
        Extras(cu_seqlens_q=wild, cu_seqlens_k=wild), config, plan.target, plan.route,
    )  # fmt: skip
    assert out.isfinite().all()


def test_heads_take_turns_as_far_as_their_keys_are_kept(kernel_route: Route) -> None:
    case = Case(B=3, Hq=6, Hk=2, Sq=300, Sk=300, D=64, dtype=torch.float16, causal=True)
    q, k, v = normal(case, device=kernel_route.device)
    problem = validate_attention(Arguments(q, k, v, **case.options, return_lse=True))
    plan = kernel_route.explain(q, k, v, **case.options)
    bits = []
    for key_heads in (0, 1, 2, 4):
        room = key_heads * 300 * 128 * 2
        config = replace(plan.config, core_loop=False, cached_bytes=room)
        assert heads_together(problem, config) == max(1, 3 * key_heads)
        assert order_of(problem, config) == ("together" if key_heads else "heads")
        out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:3], torch.nan).to(q.device)
        launch_attention_fwd(q, k, v, out, lse, problem, Extras(), config, plan.target, plan.route)
        bits.append((out, lse))
    for out, lse in bits[1:]:
        assert torch.equal(out, bits[0][0]) and torch.equal(lse, bits[0][1])
    # tiles that all take alike have no order to gain from
    for window in ({"window_left": 3}, {"causal": False}):
        assert heads_together(replace(problem, **window), config) == 1  # type: ignore[arg-type]

"""Parts of the keys, attended to apart and joined: as good as all keys at once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from flashasc._problem import Extras
from flashasc._states import AttentionState, attention_state, finalize_state, merge_states
from flashasc._validate import Arguments, validate_attention
from flashasc.testing import INPUTS, Case, assert_accurate, exact_attention, normal, relative_error
from tests.attention.option_cases import packed
from tests.attention.routes import Route
from tests.cases_table import BFLOAT16, FLOAT16, FLOAT32


def part(
    route: Route, q: Tensor, k: Tensor, v: Tensor, keys: slice, **options: Any
) -> AttentionState:
    """The state of all queries after some of the keys."""
    call = Arguments(q, k, v, return_lse=True, **options)
    problem = validate_attention(call)
    diagonal = problem.diagonal - keys.start
    problem = replace(problem, Sk=keys.stop - keys.start, diagonal=diagonal)
    return attention_state(q, k[:, :, keys], v[:, :, keys], problem, call.extras, impl=route.impl)


def joined(states: list[AttentionState]) -> AttentionState:
    total = states[0]
    for state in states[1:]:
        total = merge_states(total, state)
    return total


CUTS = (0, 7, 128, 301, 301, 600)
PARTS = [slice(a, b) for a, b in itertools.pairwise(CUTS)]
KINDS = [
    (FLOAT32, "compensated"), (BFLOAT16, "compensated"), (FLOAT16, "high"), (FLOAT16, "standard"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "precision"), KINDS, ids=str)
def test_parts_joined_are_accurate(route: Route, dtype: torch.dtype, precision: str) -> None:
    """Causal and in a window: some rows see nothing of some parts, and one part is empty."""
    case = Case(B=2, Hq=4, Hk=2, Sq=33, Sk=600, D=40, Dv=24, dtype=dtype)
    q, k, v = normal(case, device=route.device)
    options = {"causal": True, "window": (290, None)}
    states = [part(route, q, k, v, p, precision=precision, **options) for p in PARTS]
    sinks = torch.linspace(-2, 3, 4, device=q.device)
    out, lse = finalize_state(joined(states), sinks, dtype)
    assert_accurate(out, q, k, v, lse, sinks=sinks, **options)


def test_one_part_is_the_whole(every_kernel_route: Route) -> None:
    """The state of all keys, finished by itself, has the bits of an ordinary call."""
    case = Case(B=2, Hq=4, Hk=2, Sq=90, Sk=300, D=40, Dv=24, dtype=BFLOAT16)
    q, k, v = normal(case, device=every_kernel_route.device)
    sinks = torch.linspace(-2, 3, 4, device=q.device)
    out, lse = every_kernel_route(q, k, v, causal=True, sinks=sinks, return_lse=True)
    state = part(every_kernel_route, q, k, v, slice(0, 300), causal=True)
    found, found_lse = finalize_state(state, sinks, BFLOAT16)
    assert torch.equal(found, out)
    assert torch.equal(found_lse, lse)


def test_merging_is_symmetric_and_nothing_changes_nothing(every_route: Route) -> None:
    q, k, v = normal(Case(B=2, Hq=2, Sq=9, Sk=300, D=16), device=every_route.device)
    a, b = (part(every_route, q, k, v, keys) for keys in (slice(0, 100), slice(100, 300)))
    one, other = merge_states(a, b), merge_states(b, a)
    assert torch.equal(one.rows, other.rows)
    assert torch.equal(one.acc, other.acc)
    nothing = part(every_route, q, k, v, slice(300, 300))
    assert nothing.rows[:, :, 0].isneginf().all()
    for left, right in ((a, nothing), (nothing, a)):
        for found, expected in zip(
            finalize_state(merge_states(left, right)), finalize_state(a), strict=True
        ):
            assert torch.equal(found, expected)


def test_error_does_not_grow_with_the_parts(route: Route) -> None:
    """64K keys, values of one sign: raw states cost nothing, rounded pairs do."""
    q, k, v = INPUTS["positive"](Case(Hq=1, Sq=64, Sk=65536, D=64), device=route.device)
    exact = exact_attention(q, k, v).out
    once = relative_error(route(q, k, v), exact)
    step = 65536 // 8
    cut = [slice(i, i + step) for i in range(0, 65536, step)]
    found = finalize_state(joined([part(route, q, k, v, p) for p in cut]))[0]
    assert relative_error(found, exact) <= 1.1 * once


def test_packed_sequences_with_diagonals_of_their_own(route: Route) -> None:
    """Two halves of each sequence's keys, aligned by a tensor on the device."""
    case = Case(Hq=4, Hk=2, D=16)
    lengths_q, lengths_k = [3, 0, 40], [200, 9, 70]
    (q, k, v), options = packed(case, lengths_q, lengths_k, device=route.device)
    expected = exact_attention(q, k, v, causal=True, **options)
    first = [n // 2 for n in lengths_k]
    edges = options["cu_seqlens_k"].tolist()
    halves: list[list[slice]] = [[], []]
    for start, size, stop in zip(edges, first, edges[1:], strict=False):
        halves[0].append(slice(start, start + size))
        halves[1].append(slice(start + size, stop))
    states = []
    for number, half in enumerate(halves):
        lengths = torch.tensor([0, *(s.stop - s.start for s in half)])
        shift = [n - m - (f if number else 0) for n, m, f in zip(lengths_k, lengths_q, first)]
        call = Arguments(
            q, torch.cat([k[s] for s in half]), torch.cat([v[s] for s in half]), causal=True,
            return_lse=True, **{**options, "cu_seqlens_k": lengths.cumsum(0).to(q.device)},
        )  # fmt: skip
        problem = replace(validate_attention(call), has_diagonals=True)
        extras = call.extras._replace(diagonals=torch.tensor(shift, device=q.device))
        views = (x.transpose(0, 1) for x in (call.q, call.k, call.v))
        states.append(attention_state(*views, problem, extras, impl=route.impl))
    out, lse = finalize_state(joined(states))
    torch.testing.assert_close(out.transpose(0, 1).double(), expected.out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.double(), expected.lse, rtol=1e-5, atol=1e-6)


def test_states_of_different_kinds_are_not_joined() -> None:
    q, k, v = normal(Case(Sq=9, Sk=30, D=16, dtype=BFLOAT16))
    from tests.attention.routes import ROUTES

    a = part(ROUTES["reference"], q, k, v, slice(0, 30))
    b = part(ROUTES["reference"], q, k, v, slice(0, 30), precision="high")
    with pytest.raises(ValueError, match="states of the same queries"):
        merge_states(a, b)


def test_operators_of_states_are_well_formed() -> None:
    q, k, v = normal(Case(B=2, Hq=4, Hk=2, Sq=3, Sk=9, D=16))
    problem = replace(validate_attention(Arguments(q, k, v, return_lse=True)), diagonal=4)
    found = []

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        a = attention_state(q, k, v, problem, Extras())
        found.append(a)
        return finalize_state(merge_states(a, a), torch.zeros(4), BFLOAT16)

    expected = run(q, k, v)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(q, k, v)
    for x, y in zip(compiled, expected, strict=True):
        assert torch.equal(x, y)
    a = found[0]
    # the tuples of arguments as the functions above pass them
    ops = torch.ops.flashasc
    torch.library.opcheck(
        ops.merge_states, (a.rows, a.acc, a.rows, a.acc, a.whole, a.natural, a.impl)
    )
    torch.library.opcheck(
        ops.finalize_state,
        (
            *(a.rows, a.acc, torch.zeros(4), BFLOAT16),
            *(a.whole, a.lowered, a.natural, a.separate_lse, a.impl),
        ),
    )


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "TND"])
def test_rounded_pairs(layout: str) -> None:
    """The public merge: two halves, rows that one or both did not see, and gradients."""
    q, k, v = normal(Case(B=1, Hq=2, Sq=20, Sk=30, D=8, dtype=torch.float64))
    q.requires_grad_()
    whole, whole_lse = flashasc.attention(q, k, v, window=(3, 2), return_lse=True)
    mask = torch.ones(20, 30, dtype=torch.bool).tril(12) & torch.ones(20, 30).triu(7).bool()
    halves = [
        flashasc.attention(q, k[:, :, s], v[:, :, s], mask=mask[:, s], return_lse=True)
        for s in (slice(0, 14), slice(14, 30))
    ]

    def turned(out: Tensor) -> Tensor:
        return {"BNSD": out, "BSND": out.transpose(1, 2), "TND": out[0].transpose(0, 1)}[layout]

    packs = [(turned(out), lse[0] if layout == "TND" else lse) for out, lse in halves]
    out, lse = flashasc.merge_attention_states(*packs[0], *packs[1], layout=layout)
    assert out.is_contiguous()
    torch.testing.assert_close(out, turned(whole))
    torch.testing.assert_close(lse.view_as(whole_lse), whole_lse)
    (found,) = torch.autograd.grad(out.sum() + lse.sum(), q)
    (expected,) = torch.autograd.grad(whole.sum() + whole_lse.sum(), q)
    torch.testing.assert_close(found, expected)
    nothing = (torch.zeros(1, 2, 3, 4), torch.full((1, 2, 3), -torch.inf))
    out, lse = flashasc.merge_attention_states(*nothing, *nothing)
    assert torch.equal(out, nothing[0])
    assert torch.equal(lse, nothing[1])


def test_wrong_pairs() -> None:
    out, lse = torch.zeros(1, 2, 3, 4, dtype=BFLOAT16), torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match=r"lse_b must be \(1, 2, 3\) beside out_a"):
        flashasc.merge_attention_states(out, lse, out, lse[:, :, :2])
    with pytest.raises(TypeError, match="lse_a must be torch.float32 beside out_a"):
        flashasc.merge_attention_states(out, lse.double(), out, lse)
    with pytest.raises(ValueError, match="out_a must have 3 dimensions in layout TND"):
        flashasc.merge_attention_states(out, lse, out, lse, layout="TND")

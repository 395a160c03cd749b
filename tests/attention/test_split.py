"""Few queries: the keys in chunks, merged; heads that share keys in one tile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from flashasc.testing import (
    INPUTS,
    Case,
    assert_accurate,
    cut_from_nan,
    exact_attention,
    normal,
    relative_error,
)
from tests.attention.routes import Route
from tests.cases_table import BFLOAT16, FLOAT16, FLOAT32

# more than two chunks of every target, the last one ragged; heads that fill a tile, that do not,
# and that are more than a tile has rows; columns that are merged in parts which overlap
CASES = [
    (Case(B=2, Hq=32, Hk=8, Sq=1, Sk=4500, D=32, dtype=BFLOAT16), "compensated"),
    (Case(B=2, Hq=6, Hk=2, Sq=3, Sk=4500, D=32, Dv=24, dtype=FLOAT32), "compensated"),
    (Case(B=1, Hq=32, Hk=1, Sq=1, Sk=4500, D=40, dtype=FLOAT16), "high"),
    (Case(B=1, Hq=2, Hk=2, Sq=9, Sk=4500, D=32, Dv=136, dtype=FLOAT16), "standard"),
]


def every_option(case: Case, device: str) -> dict[str, Any]:
    """All that such a call can be asked for beside a mask and a bias."""
    return {
        "causal": True,
        "window": (3000, None),
        "softcap": 4.0,
        "alibi_slopes": torch.linspace(0.001, 0.5, case.Hq, device=device),
        "sinks": torch.linspace(-3, 4, case.Hq, device=device),
    }


@pytest.mark.parametrize(("case", "precision"), CASES, ids=str)
def test_accuracy(kernel_route: Route, case: Case, precision: str) -> None:
    q, k, v = normal(case, device=kernel_route.device)
    options = every_option(case, kernel_route.device)
    assert kernel_route.explain(q, k, v, precision=precision, **options).split is not None
    out, lse = kernel_route(q, k, v, precision=precision, return_lse=True, **options)
    assert_accurate(out, q, k, v, lse, **options)


# the other tests here run at the first level
@pytest.mark.parametrize(
    "every_kernel_route",
    ["native-hfusion", "native-a5", pytest.param("cuda", marks=pytest.mark.gpu)],
    indirect=True,
)
def test_every_level_of_lowering(every_kernel_route: Route) -> None:
    """A sequence that ends in its first chunk, an empty one, one whose window begins late."""
    case = Case(B=3, Hq=4, Hk=2, Sq=2, Sk=4500, D=16, dtype=BFLOAT16, causal=True)
    q, k, v = normal(case, device=every_kernel_route.device)
    options = {**case.options, "kv_lens": torch.tensor([4500, 100, 0], device=q.device)}
    options["window"] = (4000, None)
    out, lse = every_kernel_route(q, k, v, return_lse=True, **options)
    assert_accurate(out, q, k, v, lse, **options)


def test_bits_of_a_sequence(kernel_route: Route) -> None:
    """Alone, again, beside others, in a room of more chunks, and packed beside a long prompt."""
    device = kernel_route.device
    case = Case(B=1, Hq=8, Hk=2, Sq=2, Sk=2100, D=32, dtype=BFLOAT16)
    q, k, v = normal(case, device=device)
    more_q, more_k, more_v = normal(case.but(B=4, Sk=7000), seed=1, device=device)
    sinks = torch.linspace(-3, 4, 8, device=device)
    options = {"sinks": sinks, "return_lse": True}
    alone, lse = kernel_route(q, k, v, **options)
    again, _ = kernel_route(q, k, v, **options)
    assert torch.equal(again, alone)
    one_chunk, _ = kernel_route(q, k[:, :, :300], v[:, :, :300], **options)
    # what lies behind a sequence is never read
    cut = [cut_from_nan(x.clone(), dim=2, before=0, after=0) for x in (more_k, more_v)]
    for place in (0, 3):
        big_q, big_k, big_v = more_q.clone(), *(x.clone() for x in cut)
        big_q[place], big_k[place, :, :2100], big_v[place, :, :2100] = q[0], k[0], v[0]
        big_k[place, :, 2100:] = torch.nan
        big_v[place, :, 2100:] = torch.nan
        for length, expected in ((2100, alone), (300, one_chunk)):
            lens = torch.full((4,), 7000, device=device)
            lens[place] = length
            found, _ = kernel_route(big_q, big_k, big_v, kv_lens=lens, **options)
            assert torch.equal(found[place], expected[0])
    long_q, long_k, long_v = normal(case.but(Sq=90, Sk=90), seed=2, device=device)
    for order in (0, 1):
        parts = [[q, long_q], [k, long_k], [v, long_v]]
        packs = [torch.cat(x[:: -1 if order else 1], 2)[0].transpose(0, 1) for x in parts]
        edges = {
            "cu_seqlens_q": torch.tensor([0, 90, 92] if order else [0, 2, 92], device=device),
            "cu_seqlens_k": torch.tensor(
                [0, 90, 2190] if order else [0, 2100, 2190], device=device
            ),
        }
        packed = {"layout": "TND", "max_seqlen_q": 90, "max_seqlen_k": 2100, **edges}
        found, found_lse = kernel_route(*packs, **packed, **options)
        rows = slice(90, 92) if order else slice(0, 2)
        assert torch.equal(found[rows].transpose(0, 1), alone[0])
        assert torch.equal(found_lse[:, rows], lse[0])
        prompt, _ = kernel_route(long_q, long_k, long_v, **options)
        rest = slice(0, 90) if order else slice(2, 92)
        assert torch.equal(found[rest].transpose(0, 1), prompt[0])


def test_a_long_cache_costs_no_accuracy(kernel_route: Route) -> None:
    """64K keys, values of one sign, in chunks: no worse than in one piece, and flat."""
    q, k, v = INPUTS["positive"](Case(Hq=4, Hk=1, Sq=1, Sk=65536, D=64), device=kernel_route.device)
    exact = exact_attention(q, k, v).out
    # a mask that hides nothing takes the kernel that does not split
    everything = torch.ones(1, dtype=torch.bool, device=q.device)
    whole = relative_error(kernel_route(q, k, v, mask=everything), exact)
    split = relative_error(kernel_route(q, k, v), exact)
    assert split <= max(1.1 * whole, 2.0**-24)


def test_which_calls_are_split() -> None:
    """By the sequence's own queries, heads that share keys, and options: nothing else."""

    def plan(Sq: int, Hk: int, **options: Tensor) -> Any:
        q, k = torch.empty(2, 8, Sq, 64), torch.empty(2, Hk, 50, 64)
        return flashasc.explain(q, k, k, impl="triton", **options)

    pytest.importorskip("triton.backends.ascend")
    assert plan(1, 1).split is not None
    assert plan(2, 1).split is not None
    assert plan(3, 1).split is None
    assert plan(16, 8).config is None
    assert plan(17, 8).split is None
    assert plan(1, 1, mask=torch.ones(50, dtype=torch.bool)).split is None
    assert "keys split into chunks of 2048" in str(plan(1, 1))

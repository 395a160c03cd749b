"""Options at their edges: nothing to see, hostile values, lengths out of range, sizes of zero."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flashasc.reference import scores
from flashasc.testing import Case, assert_accurate, exact_attention, normal, poisoned_memory
from tests.attention.option_cases import BASE, option, packed
from tests.attention.routes import Route
from tests.cases_table import DTYPES

pytestmark = pytest.mark.usefixtures("_small_tiles")
NAN, INF = math.nan, math.inf
SMALL = Case(B=2, Hq=2, Hk=1, Sq=20, Sk=40, D=16)


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", ["mask", "kv_lens", "window", "bias", "causal"])
def test_rows_that_see_nothing(
    options_route: Route, how: str, dtype: torch.dtype, with_sinks: bool
) -> None:
    """Output 0, and the sink for a log-sum-exp; -inf without one."""
    case = SMALL.but(dtype=dtype)
    device = options_route.device
    q, k, v = normal(case, device=device)
    blind = torch.zeros(2, 2, 20, dtype=torch.bool, device=device)
    blind[1] = True
    options: dict[str, Any]
    match how:
        case "mask":
            options = {"mask": ~blind[..., None]}
        case "bias":
            options = {"bias": torch.where(blind, -INF, 0.0)[..., None]}
        case "kv_lens":
            options = {"kv_lens": torch.tensor([40, 0], device=device)}
        case "window":
            # queries 17 and up are aligned with keys beyond the last
            k, v = k[:, :, :15], v[:, :, :15]
            options = {"window": (2, None), "causal_align": "top_left"}
            blind = (torch.arange(20, device=device) >= 17).expand(2, 2, 20)
        case "causal":
            k, v = k[:, :, :15], v[:, :, :15]
            options = {"causal": True}
            blind = (torch.arange(20, device=device) < 5).expand(2, 2, 20)
    sinks = torch.tensor([1.5, -2.0], device=device) if with_sinks else None
    with poisoned_memory():
        out, lse = options_route(q, k, v, sinks=sinks, return_lse=True, **options)
    assert not out[blind].any()
    nothing = torch.full((2,), -INF, device=device) if sinks is None else sinks
    assert torch.equal(lse[blind], nothing[None, :, None].expand(2, 2, 20)[blind])
    assert not (lse[~blind] == -INF).any()
    assert_accurate(out, q, k, v, lse, sinks=sinks, **options)


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("how", ["mask", "kv_lens", "window", "packed"])
def test_hidden_keys_hold_anything(options_route: Route, how: str, poison: float) -> None:
    """Nobody sees them, so nobody can tell; nor can gradients."""
    device = options_route.device
    q, k, v = normal(SMALL, device=device)
    hidden = torch.zeros(2, 40, dtype=torch.bool, device=device)
    match how:
        case "mask":
            hidden[0, [0, 3, 17, 30]] = hidden[1, 5:] = True
            options: dict[str, Any] = {"mask": ~hidden[:, None, None]}
        case "kv_lens":
            hidden[0, 33:] = hidden[1, 7:] = True
            options = {"kv_lens": torch.tensor([33, 7], device=device)}
        case "window":
            hidden[:, :16] = True
            options = {"window": (4, 0)}
        case "packed":
            (q, k, v), options = packed(SMALL, [20, 20], [40, 40], device=device)
            # the second sequence is 7 keys long, and nobody's keys come after it
            options["cu_seqlens_k"][2] = 47
            hidden = torch.arange(80, device=device) >= 47
    where = hidden[:, None, None] if how == "packed" else hidden[:, None, :, None]
    clean = options_route(q, k, v, return_lse=True, **options)
    k, v = (x.masked_fill(where, poison).requires_grad_() for x in (k, v))
    q.requires_grad_()
    out, lse = options_route(q, k, v, return_lse=True, **options)
    options_route.assert_same(out.detach(), clean[0])
    options_route.assert_same(lse.detach(), clean[1])
    torch.autograd.backward([out, lse], [torch.ones_like(out), torch.ones_like(lse)])
    for x in (q, k, v):
        assert x.grad is not None and x.grad.isfinite().all()
    assert not k.grad.masked_select(where).any()
    assert not v.grad.masked_select(where).any()


def test_hidden_scores_hold_anything(options_route: Route) -> None:
    """A bias at a hidden place, whatever it is; NaN at a seen one reaches its row alone."""
    q, k, v = normal(SMALL, device=options_route.device)
    mask = torch.rand(20, 40, device=q.device) > 0.5
    bias = torch.randn(20, 40, device=q.device)
    clean = options_route(q, k, v, mask=mask, bias=bias)
    for poison in (NAN, INF):
        dirty = bias.masked_fill(~mask, poison)
        options_route.assert_same(options_route(q, k, v, mask=mask, bias=dirty), clean)
    mask[7, 7] = True
    bias[7, 7] = NAN
    out = options_route(q, k, v, mask=mask, bias=bias)
    assert out[:, :, 7].isnan().all()
    others = [i for i in range(20) if i != 7]
    options_route.assert_same(out[:, :, others], clean[:, :, others])


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_the_least_finite_number_is_not_minus_infinity(
    options_route: Route, dtype: torch.dtype
) -> None:
    """A row full of `finfo.min` sees all keys alike; one of -inf sees none."""
    q, k, v = normal(SMALL, device=options_route.device)
    least = torch.finfo(dtype).min
    bias = torch.zeros(20, 40, dtype=dtype, device=q.device)
    bias[:10, :] = least
    bias[3, :] = -INF
    bias[12:, 7:] = least
    out, lse = options_route(q, k, v, bias=bias, return_lse=True)
    if dtype != torch.float16:
        mean = v.mean(2, keepdim=True).expand(2, 2, 3, 16)
        torch.testing.assert_close(out[:, :, :3], mean, rtol=1e-5, atol=1e-5)
        kept = options_route(q[:, :, 12:], k[:, :, :7], v[:, :, :7])
        torch.testing.assert_close(out[:, :, 12:], kept, rtol=1e-5, atol=1e-6)
    else:
        assert_accurate(out, q, k, v, bias=bias)
    assert not out[:, :, 3].any()
    assert torch.equal(lse == -INF, torch.arange(20, device=q.device).eq(3).expand(2, 2, 20))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sinks_of_any_size(options_route: Route, dtype: torch.dtype) -> None:
    """-inf is no sink at all, a huge one takes everything, and nothing becomes NaN."""
    case = Case(Hq=6, Sq=20, Sk=40, D=16, dtype=dtype)
    q, k, v = normal(case, device=options_route.device)
    sinks = torch.tensor([-INF, -1e30, -90.0, 90.0, 1e30, INF], device=q.device)
    out, lse = options_route(q, k, v, sinks=sinks, return_lse=True)
    plain, plain_lse = options_route(q, k, v, return_lse=True)
    options_route.assert_same(out[:, :3], plain[:, :3])
    options_route.assert_same(lse[:, :3], plain_lse[:, :3])
    assert out[:, 3].float().abs().max() < 1e-30
    assert not out[:, 4:].any()
    # in log2 units a sink is rounded on the way there and on the way back
    expected = sinks[3:, None].expand(1, 3, 20)
    torch.testing.assert_close(lse[:, 3:], expected, rtol=4 * torch.finfo(lse.dtype).eps, atol=0)


@pytest.mark.parametrize("cap", [1e-30, 1e-3, 1.0, 1e4, 1e30])
def test_softcaps_of_any_size(options_route: Route, cap: float) -> None:
    q, k, v = normal(SMALL, device=options_route.device)
    out, lse = options_route(q, k, v, softcap=cap, return_lse=True)
    assert_accurate(out, q, k, v, lse, softcap=cap)


@pytest.mark.parametrize("softcap", [5.0, 50.0])
def test_a_softcap_bounds_scores_that_overflow(options_route: Route, softcap: float) -> None:
    q = torch.full((1, 1, 1, 16), 1e25, device=options_route.device)
    k = torch.cat([q, -q, q * 1e-30], dim=2)
    v = torch.eye(3, 16, device=q.device)[None, None]
    out = options_route(q, k, v, softcap=softcap)
    assert_accurate(out, *(x.double() for x in (q, k, v)), softcap=softcap)


def test_lengths_beyond_the_tensors_are_clamped(options_route: Route) -> None:
    q, k, v = normal(SMALL, device=options_route.device)
    wild = torch.tensor([10**6, -5], device=q.device)
    tame = torch.tensor([40, 0], device=q.device)
    out = options_route(q, k, v, kv_lens=wild)
    assert torch.equal(out, options_route(q, k, v, kv_lens=tame))


WILD = (
    [0, 7, 10**9],
    [-(10**9), 7, 20],
    [5, 3, 20],
    [0, 25, 10],
    [30, 40, 50],
    [20, 10, 0],
)


@pytest.mark.parametrize("which", ["cu_seqlens_q", "cu_seqlens_k"])
@pytest.mark.parametrize("edges", WILD, ids=str)
def test_cumulative_lengths_that_make_no_sense(
    options_route: Route, edges: list[int], which: str
) -> None:
    """No crash, nothing read or written outside, no NaN; gradients likewise."""
    (q, k, v), options = packed(SMALL, [7, 13], [9, 11], device=options_route.device)
    options[which] = torch.tensor(edges, device=q.device)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    with poisoned_memory():
        out, lse = options_route(q, k, v, return_lse=True, **options)
        out.sum().backward()
    assert out.isfinite().all()
    assert not lse.isnan().any()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


def test_tokens_of_no_sequence(options_route: Route) -> None:
    """Before the first sequence and behind the last one: 0 and -inf, sinks or not."""
    (q, k, v), options = packed(SMALL, [5, 10, 5], [5, 10, 5], device=options_route.device)
    whole, whole_lse = options_route(q, k, v, return_lse=True, **options)
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        options[name] = options[name][1:3]
    for more in ({}, {"sinks": torch.ones(2, device=q.device)}):
        out, lse = options_route(q, k, v, return_lse=True, **options, **more)
        outside = [*range(5), *range(15, 20)]
        assert not out[outside].any()
        assert (lse[:, outside] == -INF).all()
        if not more:
            options_route.assert_same(out[5:15], whole[5:15])
            options_route.assert_same(lse[:, 5:15], whole_lse[:, 5:15])


@pytest.mark.parametrize(
    "sizes", [{"B": 0}, {"Sq": 0}, {"Sk": 0}, {"Sq": 0, "Sk": 0}, {"Hq": 0, "Hk": 0}], ids=str
)
@pytest.mark.parametrize(
    "name", ["window", "softcap", "mask", "bias", "alibi_slopes", "sinks", "kv_lens"]
)
def test_sizes_of_zero(options_route: Route, name: str, sizes: dict[str, int]) -> None:
    case = BASE.but(dtype=torch.float16, **sizes)
    inputs = [x.requires_grad_() for x in normal(case, device=options_route.device)]
    options = option(name, case, device=options_route.device)
    out, lse = options_route(*inputs, return_lse=True, **options)
    exact = exact_attention(*inputs, **options)
    assert torch.equal(out.double(), exact.out)
    torch.testing.assert_close(lse.double(), exact.lse, rtol=1e-6, atol=1e-6)
    out.sum().backward()
    assert all(x.grad is not None and not x.grad.any() for x in inputs)


@pytest.mark.parametrize("lengths", [([], []), ([0, 0], [0, 0]), ([3, 0], [0, 0])], ids=str)
def test_packed_sizes_of_zero(options_route: Route, lengths: tuple[list[int], list[int]]) -> None:
    case = BASE.but(B=len(lengths[0]), dtype=torch.float16)
    inputs, options = packed(case, *lengths, device=options_route.device)
    for more in ({}, {"sinks": torch.ones(4, device=options_route.device)}):
        out, lse = options_route(*inputs, return_lse=True, **options, **more)
        exact = exact_attention(*inputs, **options, **more)
        assert torch.equal(out.double(), exact.out)
        assert torch.equal(lse.double(), exact.lse)


VISITED = (
    # every tile of 16 keys for each of 64 rows
    ({}, 2 * 13),
    ({"causal": True}, 9 + 13),
    ({"causal": True, "causal_align": "top_left"}, 4 + 8),
    # rows 0 to 63 see keys 80 - 5 to 143 + 5
    ({"window": (5, 5)}, 6 + 5),
    ({"window": (None, 5)}, 10 + 13),
    ({"window": (5, None)}, 9 + 5),
    ({"window": (5, 5), "causal": True}, 5 + 5),
    ({"kv_lens": torch.tensor([50, 17])}, 2 * 4),
    ({"kv_lens": torch.tensor([0, 0])}, 0),
)


@pytest.mark.parametrize("options, visits", VISITED, ids=str)
def test_tiles_that_nobody_sees_are_not_visited(
    monkeypatch: pytest.MonkeyPatch, options_route: Route, options: dict[str, Any], visits: int
) -> None:
    if options_route.name != "reference":
        pytest.skip("counts the reference's tiles")
    from flashasc.reference import forward

    seen: list[tuple[slice, slice]] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.append(args[4:6])
        return scores.score_tile(*args, **kwargs)

    monkeypatch.setattr(forward, "score_tile", counted)
    q, k, v = normal(Case(B=2, Hq=1, Sq=128, Sk=208, D=16))
    assert_accurate(options_route(q, k, v, **options), q, k, v, **options)
    assert len(seen) == visits

"""The yardsticks themselves: brute force, numbers known by hand, and results that must not pass."""

from __future__ import annotations

import math

import pytest
import torch

import flashasc
from flashasc.testing import (
    INPUTS,
    Case,
    assert_accurate,
    cut_from_nan,
    eager_attention,
    error_budget,
    exact_attention,
    ill_conditioned,
    normal,
    poisoned_memory,
    relative_error,
    rising,
    round_once,
    share_correctly_rounded,
    sink,
    ulps,
)
from tests.cases_table import BY_HEAD_SIZE, BY_LENGTH, CORE, DTYPES, FLOAT16


def by_hand(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Three loops and the definition, one number at a time."""
    q, k, v = (x if case.layout == "BNSD" else x.transpose(1, 2) for x in normal(case))
    out = torch.zeros(case.B, case.Hq, case.Sq, v.shape[-1], dtype=torch.float64)
    lse = torch.full((case.B, case.Hq, case.Sq), -math.inf, dtype=torch.float64)
    group = case.Hq // k.shape[1]
    offset = case.Sk - case.Sq if case.causal_align == "bottom_right" else 0
    scale = 1 / math.sqrt(case.D) if case.scale is None else case.scale
    for b in range(case.B):
        for h in range(case.Hq):
            for i in range(case.Sq):
                seen = [j for j in range(case.Sk) if not case.causal or j <= i + offset]
                if not seen:
                    continue
                keys, values = k[b, h // group].double(), v[b, h // group].double()
                weights = [math.exp(scale * float(q[b, h, i].double() @ keys[j])) for j in seen]
                out[b, h, i] = sum(w * values[j] for w, j in zip(weights, seen, strict=True))
                out[b, h, i] /= sum(weights)
                lse[b, h, i] = math.log(sum(weights))
    return out if case.layout == "BNSD" else out.transpose(1, 2), lse


BASE = Case(B=2, Hq=4, Hk=2, Sq=3, Sk=6, D=8, Dv=5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"causal": True},
        {"causal": True, "Sq": 6, "Sk": 3},
        {"causal": True, "causal_align": "top_left"},
        {"causal": True, "causal_align": "top_left", "Sq": 6, "Sk": 3},
        {"layout": "BSND", "causal": True},
        {"scale": -0.3, "Hk": 1},
        {"Hk": None},
    ],
    ids=str,
)
def test_exact_attention_by_brute_force(changes: dict[str, object]) -> None:
    case = BASE.but(**changes)
    out, lse = by_hand(case)
    found = exact_attention(*normal(case), **case.options)
    torch.testing.assert_close(found.out, out, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(found.lse, lse, rtol=1e-13, atol=1e-15)
    # the package's own reference, against the same
    reference = flashasc.attention(
        *(x.double() for x in normal(case)), return_lse=True, **case.options
    )
    torch.testing.assert_close(reference, (out, lse), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("in_order", [False, True])
def test_eager_attention_is_right_up_to_its_dtype(dtype: torch.dtype, in_order: bool) -> None:
    case = BASE.but(dtype=dtype, Sq=6, Sk=4, causal=True)
    out, lse = by_hand(case)
    found = eager_attention(*normal(case), in_order=in_order, **case.options)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.out.double(), out, rtol=4 * eps, atol=4 * eps)
    torch.testing.assert_close(found.lse.double(), lse, rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_budget_turns_wrong_results_away(dtype: torch.dtype) -> None:
    """Long rows of small outputs are where a loose tolerance lets everything through."""
    case = Case(Hq=2, Sq=64, Sk=1000, D=32, dtype=dtype)
    q, k, v = normal(case)
    right = exact_attention(q, k, v).out
    assert_accurate(right.to(dtype), q, k, v)
    shuffled = right[:, :, torch.randperm(64)]
    one_off = right.clone()
    one_off[0, 1, 13, 7] += 0.02
    hidden_key = exact_attention(q, k[:, :, :-1], v[:, :, :-1]).out
    wrong_scale = exact_attention(q, k, v, scale=0.9 / math.sqrt(32)).out
    nothing = torch.zeros_like(right)
    constant = torch.full_like(right, right.mean().item())
    broken = right.clone()
    broken[0, 0, 0, 0] = math.nan
    for wrong in (shuffled, one_off, wrong_scale, nothing, constant, broken):
        with pytest.raises(AssertionError, match="over the budget"):
            assert_accurate(wrong.to(dtype), q, k, v)
    if dtype == torch.float32:
        with pytest.raises(AssertionError, match="over the budget"):
            assert_accurate(hidden_key.to(dtype), q, k, v)
    with pytest.raises(AssertionError, match="not"):
        assert_accurate(right[:, :, :-1].to(dtype), q, k, v)


def test_the_budget_judges_the_log_sum_exp() -> None:
    case = Case(Sq=20, Sk=10, D=16, causal=True)
    q, k, v = normal(case)
    out, lse = exact_attention(q, k, v, **case.options)
    out, lse = out.float(), lse.float()
    assert_accurate(out, q, k, v, lse, **case.options)
    for wrong in (lse / math.log(2), lse + 1e-5, lse.masked_fill(lse == -math.inf, 0.0)):
        with pytest.raises(AssertionError, match="lse"):
            assert_accurate(out, q, k, v, wrong, **case.options)


def test_the_budget_in_numbers() -> None:
    exact = torch.tensor([1.0, -8.0], dtype=torch.float64)
    eager = torch.tensor([1.0, -8.25], dtype=torch.bfloat16)
    assert error_budget(exact, eager) == 2 * (0.25 + 2.0**-7 * 8)
    assert error_budget(exact, eager, torch.float32) == 2 * (0.25 + 2.0**-23 * 8)
    assert error_budget(exact, eager, least=16.0) == 2 * (0.25 + 2.0**-7 * 16)


def test_rounding_happens_once() -> None:
    """Just above the middle of two bf16 numbers, nearer to it than float32 can tell."""
    middle = 1.0 + 2.0**-8
    above = torch.tensor([middle + 2.0**-40, middle, -middle - 2.0**-40], dtype=torch.float64)
    assert above.to(torch.bfloat16).tolist() == [1.0, 1.0, -1.0]
    assert round_once(above, torch.bfloat16).tolist() == [1.0 + 2.0**-7, 1.0, -1.0 - 2.0**-7]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rounding_is_never_further_off_than_pytorch(dtype: torch.dtype) -> None:
    values = torch.randn(100_000, dtype=torch.float64) * torch.logspace(-6, 4, 100_000).double()
    found, twice = round_once(values, dtype), values.to(dtype)
    differ = found != twice
    assert differ.double().mean() < 1e-3
    assert ((found.double() - values).abs() < (twice.double() - values).abs())[differ].all()
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e39, 1e-300, 70000.0])
    found, twice = round_once(special.double(), dtype), special.double().to(dtype)
    torch.testing.assert_close(found, twice, rtol=0, atol=0, equal_nan=True)


def test_share_and_ulps_by_hand() -> None:
    exact = torch.tensor([1.0, 1.3, -0.7, 5.0], dtype=torch.float64)
    right = exact.to(FLOAT16)
    assert share_correctly_rounded(right, exact) == 1.0
    off = right.clone()
    off[2] = torch.nextafter(off[2], torch.tensor(0.0, dtype=FLOAT16))
    assert share_correctly_rounded(off, exact) == 0.75
    assert ulps(torch.tensor([4.0 + 2.0**-8], dtype=FLOAT16), exact[3:] - 1).item() == 1.0
    assert ulps(torch.tensor([3.998046875], dtype=FLOAT16), exact[3:] - 1).item() == 0.5
    assert relative_error(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]).double()) == 0.1


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_are_repeatable_and_in_the_layout(kind: str) -> None:
    case = Case(B=2, Hq=4, Hk=2, Sq=5, Sk=7, D=6, Dv=3, dtype=FLOAT16)
    q, k, v = INPUTS[kind](case, seed=3)
    assert (q.shape, k.shape, v.shape) == ((2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 3))
    assert q.dtype == FLOAT16
    again, other = INPUTS[kind](case, seed=3), INPUTS[kind](case, seed=4)
    assert all(torch.equal(a, b) for a, b in zip((q, k, v), again, strict=True))
    assert not torch.equal(v, other.v)
    swapped = INPUTS[kind](case.but(layout="BSND"), seed=3)
    assert all(x.is_contiguous() for x in swapped)
    assert all(torch.equal(a, b.transpose(1, 2)) for a, b in zip((q, k, v), swapped, strict=True))


def test_inputs_are_what_they_say() -> None:
    case = Case(Hq=2, Hk=1, Sq=9, Sk=100, D=16)

    def scores(q: torch.Tensor, k: torch.Tensor, scale: float = 0.25) -> torch.Tensor:
        return (q.double() @ k.double().mT) * scale

    q, k, _ = sink(case, nats=60.0, key=40)
    found = scores(q, k)
    others = torch.cat([found[..., :40], found[..., 41:]], dim=-1)
    assert (found[..., 40] - others.amax(-1)).min() > 50.0
    q, k, _ = sink(case.but(scale=-0.1), nats=60.0, key=40)
    assert (scores(q, k, -0.1).argmax(-1) == 40).all()

    q, k, _ = rising(case, log2_units=50.0)
    found = scores(q, k) / math.log(2)
    assert (found.diff(dim=-1) > 0).all()
    assert ((found[..., -1] >= 50.0 - 1e-4) & (found[..., -1] <= 55.0 + 1e-4)).all()
    assert found[0, 0, :, -1].unique().numel() == 9

    q, k, v = ill_conditioned(case, condition=1e4)
    out = exact_attention(q, k, v).out
    condition = v.abs().mean() / out.abs()
    assert ((condition > 1e3) & (condition < 1e5)).all()


def test_a_tensor_cut_from_nan() -> None:
    x = torch.randn(2, 3, 4)
    view = cut_from_nan(x, dim=1, before=2, after=1)
    assert torch.equal(view, x)
    assert view.stride() == (24, 4, 1)
    assert torch.as_strided(view, (2, 6, 4), (24, 4, 1), 0).isnan().sum() == 2 * 3 * 4


def test_poisoned_memory_and_what_was_before() -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    with poisoned_memory():
        assert torch.empty(5).isnan().all()
        assert torch.zeros(5).new_empty(3, dtype=FLOAT16).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_names_of_cases_tell_them_apart() -> None:
    for table in (BY_HEAD_SIZE, BY_LENGTH, CORE):
        assert len({str(case) for case in table}) == len(set(table)) == len(table)


def test_budget_below_the_normal_range() -> None:
    """Numbers there lie evenly apart: a result off by one of those steps is rounded right."""
    exact = torch.tensor([3.3e-41], dtype=torch.float64)
    step = torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps
    assert step <= error_budget(exact, exact.float()) <= 4 * step

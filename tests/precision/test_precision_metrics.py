"""Every figure of a report, on data whose figures are known."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashasc.precision import ULP_EDGES, compare, elementwise, round_once
from flashasc.precision.report import TensorReport


def one(*args: object, **options: object) -> TensorReport:
    (tensor,) = compare(*args, **options).tensors  # type: ignore[arg-type]
    return tensor


def figures(actual: list[float], golden: list[float], **options: object) -> dict[str, float]:
    tensor = one(torch.tensor(actual), golden=torch.tensor(golden, dtype=torch.float64), **options)
    assert tensor.errors is not None
    return vars(tensor.errors)


def test_figures() -> None:
    found = figures([1.5, -4.0, 3.0, 8.0], [1.0, -4.0, 4.0, 8.0])
    expected = {
        "elements": 4,
        "max_abs": 1.0,
        "mean_abs": 0.375,
        "rmse": math.sqrt(1.25 / 4),
        "relative": math.sqrt(1.25) / math.sqrt(97),
        "mare": 0.5,
        "mere": 0.75 / 4,
        "small_elements": 0,
        "small_max_abs": 0.0,
        "bias": -0.125,
        "too_small": 1,
        "too_large": 1,
        "relative_bias": -0.5 / 17,
        "correctly_rounded": 0.5,
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-14), name


def test_small_values_count_by_absolute_error() -> None:
    """An error of 1e-3 at 1e-6 is a relative one of 1000, and at 0 infinite."""
    actual, golden = [1e-6 + 1e-3, 0.002, 2.0], [1e-6, 0.0, 1.0]
    without = figures(actual, golden)
    assert without["mare"] == pytest.approx(1000, rel=1e-3)
    # a relative error of 0 does not exist
    assert (without["small_elements"], without["small_max_abs"]) == (1, pytest.approx(0.002))
    with_ = figures(actual, golden, small_value=1e-3)
    assert with_["mare"] == with_["mere"] == 1.0
    assert (with_["small_elements"], with_["small_max_abs"]) == (2, pytest.approx(0.002))
    # the threshold itself is not small
    assert figures([0.5], [0.25], small_value=0.25)["small_elements"] == 0
    tensor = one(torch.ones(1), torch.ones(1), small_value=0.25)
    assert tensor.denominator == "|expected| from 0.25 on; smaller elements by absolute error"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ulps(dtype: torch.dtype) -> None:
    """Errors inside the bins and at their upper ends."""
    eps = torch.finfo(dtype).eps
    offsets = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 32.0, 33.0, 1024.0, 1025.0]
    # within a binade, so that ulps are equally large
    offsets = [offset for offset in offsets if offset * eps < 0.5]
    golden = 1.5 - torch.tensor(offsets, dtype=torch.float64) * eps
    for power in (1.0, 2.0**-5):
        actual = torch.full(golden.shape, 1.5 * power, dtype=dtype)
        tensor = one(actual, golden=golden * power, rtol=1.0, atol=1.0)
        assert tensor.errors is not None
        assert tensor.errors.max_ulps == max(offsets)
        bins = Counter(bisect_left(ULP_EDGES, offset) for offset in offsets)
        expected = [bins[i] for i in range(len(ULP_EDGES) + 1)]
        assert list(tensor.errors.ulp_histogram) == expected


def test_far_off_is_in_the_last_bin() -> None:
    tensor = one(torch.tensor([2.0, 1.0]), golden=torch.ones(2, dtype=torch.float64))
    assert tensor.errors is not None
    assert tensor.errors.max_ulps == 2.0**23
    assert tensor.errors.ulp_histogram[-1] == 1


@settings(max_examples=40)
@given(st.lists(st.floats(-6e4, 6e4), min_size=1, max_size=30), st.sampled_from([2, 4]))
def test_rounded_once_is_all_correct(values: list[float], size: int) -> None:
    dtype = torch.float16 if size == 2 else torch.float32
    golden = torch.tensor(values, dtype=torch.float64)
    report = compare(round_once(golden, dtype), golden=golden, strict=True)
    assert report.ok
    (tensor,) = report.tensors
    assert tensor.errors is not None
    assert tensor.errors.correctly_rounded == 1.0
    assert tensor.errors.max_ulps <= 0.5
    assert not tensor.worst or max(e.ulps for e in tensor.worst) <= 0.5


def test_rounded_twice_is_not() -> None:
    """What a cast by way of float32 gives, just above the middle of two bfloat16 numbers."""
    golden = torch.tensor([1.0 + 2.0**-8 + 2.0**-30], dtype=torch.float64)
    twice = golden.float().bfloat16()
    tensor = one(twice, golden=golden)
    assert tensor.errors is not None
    assert tensor.errors.correctly_rounded == 0.0
    assert one(round_once(golden, torch.bfloat16), golden=golden).errors.correctly_rounded == 1.0  # type: ignore[union-attr]


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 17), st.integers(0, 10**6))
def test_chunks_change_nothing(n: int, chunk: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    golden = torch.randn(n, generator=generator, dtype=torch.float64)
    actual = (golden + 0.01 * torch.randn(n, generator=generator, dtype=torch.float64)).float()
    actual[torch.randint(n, (1,), generator=generator)] = math.nan
    whole = one(actual, golden=golden)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elementwise, "CHUNK", chunk)
        pieces = one(actual, golden=golden)
    assert whole.errors is not None and pieces.errors is not None
    for name, value in vars(whole.errors).items():
        assert vars(pieces.errors)[name] == pytest.approx(
            value, rel=1e-13, abs=1e-18, nan_ok=True
        ), name
    assert whole.non_finite == pieces.non_finite
    assert [e.index for e in whole.worst] == [e.index for e in pieces.worst]
    assert whole.mismatched == pieces.mismatched


def test_nothing_is_lost_in_a_large_tensor() -> None:
    """Sums over more elements than a chunk; one error of 1e-9 among 2.5 million of 1e-3."""
    n = elementwise.CHUNK * 2 + 12345
    golden = torch.ones(n, dtype=torch.float64)
    actual = torch.ones(n)
    actual[-1] = 1.5
    tensor = one(actual, golden=golden, worst=3)
    assert tensor.errors is not None
    assert tensor.errors.bias == 0.5 / n
    assert tensor.errors.elements == sum(tensor.errors.ulp_histogram) == n
    assert [e.index for e in tensor.worst] == [(n - 1,)]


def test_non_finite() -> None:
    inf, nan = math.inf, math.nan
    expected = torch.tensor([[nan, inf, -inf, 1.0], [1.0, 2.0, 3.0, 4.0]])
    actual = torch.tensor([[nan, inf, inf, 1.0], [1.0, nan, 3.0, -inf]])
    tensor = one(actual, expected)
    assert vars(tensor.non_finite) == {
        "actual_nan": 2,
        "actual_inf": 3,
        "expected_nan": 1,
        "expected_inf": 2,
        "mismatched": 3,
        "first": (0, 2),
    }
    assert tensor.mismatched == 3
    assert tensor.errors is not None
    # finite on both sides
    assert tensor.errors.elements == 3
    assert {e.index for e in tensor.worst} == {(0, 2), (1, 1), (1, 3)}
    assert one(actual, actual).ok
    assert one(actual, actual, equal_nan=False).mismatched == 2


def test_overflow_to_infinity_is_what_rounding_gives() -> None:
    golden = torch.tensor([1e5, 1.0], dtype=torch.float64)
    assert one(torch.tensor([math.inf, 1.0], dtype=torch.float16), golden=golden).ok
    bad = one(torch.tensor([65504.0, 1.0], dtype=torch.float16), golden=golden)
    assert not bad.ok and bad.non_finite.mismatched == 1


def test_the_worst_elements() -> None:
    expected = torch.arange(1.0, 13.0).view(3, 4)
    actual = expected.clone()
    actual[1, 2] += 0.5
    actual[2, 0] -= 0.25
    tensor = one(actual, expected, worst=3)
    first, second = tensor.worst
    assert (first.index, second.index) == ((1, 2), (2, 0))
    assert (first.actual, first.expected, first.error, first.agrees) == (7.5, 7.0, 0.5, False)
    assert first.ulps == 0.5 / (4 * torch.finfo(torch.float32).eps)
    assert first.allowed == pytest.approx(8e-5)
    found = {near.index: (near.actual, near.expected) for near in first.neighbours}
    assert found == {(1, 1): (6, 6), (1, 3): (8, 8), (0, 2): (3, 3), (2, 2): (11, 11)}
    # a corner has fewer
    assert {near.index for near in second.neighbours} == {(2, 1), (1, 0)}
    assert len(one(actual, expected, worst=1).worst) == 1
    assert one(actual, expected, worst=0).worst == ()


def test_worst_by_what_is_allowed_not_by_size() -> None:
    expected = torch.tensor([1000.0, 0.0])
    tensor = one(expected + torch.tensor([0.02, 0.001]), expected)
    assert [e.index for e in tensor.worst] == [(1,), (0,)]


def test_neighbouring_int64_differ() -> None:
    """Which float64 cannot tell apart."""
    expected = torch.tensor([2**62, 5], dtype=torch.int64)
    tensor = one(expected + torch.tensor([1, 0]), expected)
    assert (tensor.mismatched, tensor.errors) == (1, None)
    (worst,) = tensor.worst
    assert (worst.actual, worst.error) == (2**62 + 1, 1)
    assert tensor.check("equality").passed is False

"""The generators: seeded, of the dtype, and each as hard as it says."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashasc.precision import (
    INPUTS,
    exactly_representable,
    flat,
    ill_conditioned,
    outliers,
    sharp,
    uniform_positive,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_seeded(name: str, dtype: torch.dtype) -> None:
    options = {"terms": 8} if name == "exactly_representable" else {}
    make = INPUTS[name]
    torch.manual_seed(1)
    first = make((3, 50), dtype, 7, **options)
    torch.manual_seed(2)
    assert first.dtype == dtype and first.shape == (3, 50)
    assert bool(first.isfinite().all())
    assert torch.equal(first, make((3, 50), dtype, 7, **options))
    assert not torch.equal(first, make((3, 50), dtype, 8, **options))
    assert make((0, 50), dtype, **options).shape == (0, 50)


@pytest.mark.parametrize("dtype", DTYPES)
def test_distributions(dtype: torch.dtype) -> None:
    x = uniform_positive((100_000,), dtype)
    assert x.min() >= 0 and x.max() < 1
    assert x.double().mean().item() == pytest.approx(0.5, abs=0.01)

    x = outliers((100_000,), dtype, share=0.001, factor=1000.0).double().abs()
    assert 50 < int((x > 10).sum()) <= 100
    assert outliers((3,), dtype, factor=1000.0).abs().max() > 10

    weights = sharp((200, 64), dtype, nats=10.0).double().softmax(-1).amax(-1)
    assert weights.min() > 0.99
    assert len(sharp((200, 64), dtype).argmax(-1).unique()) > 20

    weights = flat((200, 64), dtype, nats=0.01).double().softmax(-1)
    assert weights.max() < 1.01 / 64 and weights.min() > 0.99 / 64


@settings(max_examples=40)
@given(
    n=st.integers(3, 300),
    log10=st.floats(0.5, 3.0),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_condition_numbers(n: int, log10: float, dtype: torch.dtype, seed: int) -> None:
    x = ill_conditioned((4, n), dtype, seed, condition=10**log10)
    for row in x.tolist():
        condition = math.fsum(map(abs, row)) / abs(math.fsum(row))
        # the one or two that make up the sum are rounded
        assert condition == pytest.approx(10**log10, rel=2 * torch.finfo(dtype).eps)


def test_extreme_condition_numbers() -> None:
    x = ill_conditioned((1, 1001), condition=1e12)
    (row,) = x.tolist()
    assert math.fsum(map(abs, row)) / abs(math.fsum(row)) == pytest.approx(1e12, rel=1e-6)
    # a plain sum has not one digit of it
    assert abs(x.sum().item() - math.fsum(row)) > 1e3 * abs(math.fsum(row))
    with pytest.raises(ValueError, match=r"condition: 1e\+12 leaves a sum of .*float16"):
        ill_conditioned((1, 1001), torch.float16, condition=1e12)


@settings(max_examples=40)
@given(
    terms=st.integers(1, 200),
    dtype=st.sampled_from(DTYPES),
    product=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
def test_sums_are_exact_in_any_order(
    terms: int, dtype: torch.dtype, product: bool, wide: bool, seed: int
) -> None:
    accumulate = torch.float32 if wide else dtype
    x, y = (
        exactly_representable(
            (3, terms), dtype, seed + i, terms=terms, product=product, accumulate=accumulate
        )
        for i in range(2)
    )
    values = x.to(accumulate) * y.to(accumulate) if product else x.to(accumulate)
    exact = values.double()
    assert torch.equal(exact, x.double() * y.double() if product else x.double())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        order = torch.randperm(terms, generator=generator)
        total = torch.zeros(3, dtype=accumulate)
        for i in order.tolist():
            total = total + values[:, i]
        assert torch.equal(total.double(), exact.sum(-1))
    assert bool(exact.sum(-1).to(dtype).isfinite().all())


def test_exact_sums_use_the_room_there_is() -> None:
    x = exactly_representable((10_000,), torch.bfloat16, terms=4)
    assert x.abs().max() == 64
    x = exactly_representable((10_000,), torch.float16, terms=100, accumulate=torch.float32)
    assert x.abs().max() == 655
    x = exactly_representable((10_000,), torch.bfloat16, terms=64, product=True)
    assert x.abs().max() == 2


@pytest.mark.parametrize(
    "make, options, message",
    [
        (exactly_representable, {"terms": 257, "dtype": torch.bfloat16}, "257 ones in .*bfloat16"),
        (exactly_representable, {"terms": 0}, "terms: expected 1 or more"),
        (ill_conditioned, {"condition": 2.0}, "condition: expected a finite number above 2"),
        (ill_conditioned, {"condition": math.nan}, "condition: expected"),
        (ill_conditioned, {"shape": (5, 2)}, r"shape: expected rows of 3 or more, got \(5, 2\)"),
        (outliers, {"share": 1.5}, "share: expected 0 to 1"),
        (sharp, {"shape": ()}, r"shape: expected one axis or more, .* got \(\)"),
    ],
)
def test_wrong_options(make: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**{"shape": (4, 8), **options})  # type: ignore[operator]

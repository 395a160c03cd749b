"""Planted faults, and the words that a report has for them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flashasc.precision import compare, normal, round_once, uniform_positive

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int32]


def clean(dtype: torch.dtype, shape: tuple[int, ...] = (2, 4, 64, 16)) -> Tensor:
    drawn = normal(shape, torch.float32, seed=3)
    return drawn.to(dtype) if dtype.is_floating_point else (drawn * 1000).to(dtype)


def findings(
    plant: Callable[[Tensor], None], dtype: torch.dtype, *, strict: bool = False
) -> tuple[str, ...]:
    expected = clean(dtype)
    actual = expected.clone()
    plant(actual)
    report = compare(actual, expected, strict=strict)
    assert not report.ok
    assert report.findings[0].split()[0] == str(report.tensors[0].mismatched)
    return report.findings


def flip(tensor: Tensor, index: tuple[int, ...], bit: int) -> None:
    raw = tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
    one = torch.ones((), dtype=torch.int64) << bit
    raw[index] ^= one.to(raw.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strict", [False, True])
def test_two_blocks_swapped(dtype: torch.dtype, strict: bool) -> None:
    def plant(x: Tensor) -> None:
        x[:, :, 0:16], x[:, :, 32:48] = x[:, :, 32:48].clone(), x[:, :, 0:16].clone()

    found = findings(plant, dtype, strict=strict)
    assert found[1] == "misplaced along axis 2: [0:16] and [32:48] are swapped"


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_rows_of_one_head_swapped(dtype: torch.dtype) -> None:
    def plant(x: Tensor) -> None:
        x[1, 2, [5, 40]] = x[1, 2, [40, 5]]

    found = findings(plant, dtype)
    assert "[1:2, 2:3, 5:41, " in found[0]
    assert found[1] == "misplaced along axis 2: [5] and [40] are swapped"


@settings(max_examples=40)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), axis=st.integers(0, 2))
def test_any_two_blocks_swapped(data: st.DataObject, dtype: torch.dtype, axis: int) -> None:
    shape = data.draw(st.tuples(*(st.integers(2, 12) for _ in range(3))), label="shape")
    length = data.draw(st.integers(1, shape[axis] // 2), label="length")
    first = data.draw(st.integers(0, shape[axis] - 2 * length), label="first")
    second = data.draw(st.integers(first + length, shape[axis] - length), label="second")
    expected = clean(dtype, shape)
    actual = expected.clone()
    actual.narrow(axis, first, length).copy_(expected.narrow(axis, second, length))
    actual.narrow(axis, second, length).copy_(expected.narrow(axis, first, length))
    a, b = (f"[{i}:{i + length}]" if length > 1 else f"[{i}]" for i in (first, second))
    found = compare(actual, expected, strict=True).findings
    assert f"misplaced along axis {axis}: {a} and {b} are swapped" in found


def test_heads_swapped() -> None:
    def plant(x: Tensor) -> None:
        x[:, [0, 3]] = x[:, [3, 0]]

    assert findings(plant, torch.bfloat16)[1].startswith("misplaced along axis 1: [0] and [3] are")


def test_a_stale_block_and_a_shift() -> None:
    def stale(x: Tensor) -> None:
        x[:, :, 48:] = x[:, :, 32:48].clone()

    found = findings(stale, torch.float32)
    assert found[1] == "misplaced along axis 2: [48:64] holds what belongs at [32:48]"

    def shift(x: Tensor) -> None:
        x.copy_(x.roll(1, dims=2))

    found = findings(shift, torch.float32)
    assert found[1] == (
        "misplaced along axis 2: [0] holds what belongs at [63]; "
        "[1:64] holds what belongs at [0:63]"
    )


def test_a_swap_in_one_dimension() -> None:
    expected = torch.arange(100, dtype=torch.int32)
    actual = expected.clone()
    actual[10:20], actual[70:80] = expected[70:80], expected[10:20]
    found = compare(actual, expected).findings
    assert found[1] == "misplaced along axis 0: [10:20] and [70:80] are swapped"
    # two numbers alone may be alike by chance
    actual = expected.clone()
    actual[[3, 50]] = actual[[50, 3]]
    assert not any("misplaced" in words for words in compare(actual, expected).findings)


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("strict", [False, True])
def test_an_offset(dtype: torch.dtype, strict: bool) -> None:
    def plant(x: Tensor) -> None:
        x[0, 1] += 0.25

    found = findings(plant, dtype, strict=strict)
    assert "[0:1, 1:2, :, :]" in found[0]
    assert found[1] == "as if +0.25 had been added to every element there"


@pytest.mark.parametrize("factor", [0.5, -1.0, 1.125])
def test_a_factor(factor: float) -> None:
    def plant(x: Tensor) -> None:
        x[1] *= factor

    found = findings(plant, torch.bfloat16)
    assert found[1] == f"as if every element there had been multiplied by {factor:g}"


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(DTYPES),
    index=st.tuples(*(st.integers(0, size - 1) for size in (2, 4, 64, 16))),
    data=st.data(),
)
def test_any_flipped_bit_is_named(
    dtype: torch.dtype, index: tuple[int, ...], data: st.DataObject
) -> None:
    bit = data.draw(st.integers(0, 8 * dtype.itemsize - 1))
    parts = [""]
    if dtype.is_floating_point:
        mantissa = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}[dtype]
        top = 8 * dtype.itemsize - 1
        parts = [" (sign)" if bit == top else " (exponent)" if bit >= mantissa else " (mantissa)"]
    found = findings(lambda x: flip(x, index, bit), dtype, strict=True)
    assert "1 of 8192" in found[0]
    assert found[1] == f"they differ in one bit each: bit {bit}{parts[0]} at {index}"


def test_a_flipped_bit_among_rounding_errors() -> None:
    golden = normal((50, 50), torch.float64)
    actual = round_once(golden, torch.float32) * (1 + 2.0**-23)
    flip(actual, (7, 9), 29)
    found = compare(actual, golden=golden).findings
    assert found[1] == "as if flipped: bit 29 (exponent) at (7, 9)"


def test_a_small_error_is_no_flipped_bit() -> None:
    """Two ulps are one bit of the mantissa as often as not."""
    expected = torch.ones(8, dtype=torch.bfloat16)
    actual = expected.clone()
    actual[3] += 2 * torch.finfo(torch.bfloat16).eps
    found = compare(actual, expected).findings
    assert found == ("1 of 8 elements differ, all of [3:4]",)


def test_never_written() -> None:
    def zeros(x: Tensor) -> None:
        x[:, :, 60:] = 0

    for dtype in DTYPES:
        assert findings(zeros, dtype)[1].startswith("zero wherever they differ: never written")

    def nan(x: Tensor) -> None:
        x[:, :, 60:] = math.nan

    found = findings(nan, torch.bfloat16)
    assert found[0].endswith("512 of 8192 elements differ, all of [:, :, 60:64, :]")
    assert found[1].startswith("NaN wherever they differ: never written")


def test_noise_is_given_no_name() -> None:
    def plant(x: Tensor) -> None:
        x += 0.3 * normal(tuple(x.shape), seed=9)

    (where,) = findings(plant, torch.float32)
    assert where.endswith("elements differ, all of [:, :, :, :]")


@pytest.mark.parametrize("seed", range(5))
def test_a_truncated_sum_leans(seed: int) -> None:
    """Rounded toward zero after each addition, as some hardware adds; and rounded to nearest."""
    x = uniform_positive((256, 400), torch.float32, seed).double()
    golden = x.sum(-1)
    down = torch.zeros(256, dtype=torch.float32)
    for term in x.unbind(-1):
        exact = down.double() + term
        near = exact.float()
        down = torch.where(near.double() > exact, torch.nextafter(near, near * 0), near)
    (words,) = compare(down, golden=golden).findings
    assert words.startswith("errors lean one way: ") and "too small, on average by -" in words
    assert compare(round_once(golden, torch.float32), golden=golden).findings == ()

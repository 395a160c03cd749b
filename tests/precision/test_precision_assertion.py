"""`compare_precision`: the tolerance table to its edges, and what its errors say."""

from __future__ import annotations

import math
import re
from bisect import bisect_right

import pytest
import torch
from torch import Tensor

from flashasc.precision import compare_bitwise, compare_precision, elementwise

TABLE = [(torch.float32, 1e-5, 1e-5), (torch.float16, 1e-3, 1e-3), (torch.bfloat16, 5e-3, 5e-3)]
EXACT = [torch.int8, torch.int16, torch.int32, torch.int64]


def near(ref: Tensor, steps: int) -> Tensor:
    """The number so many steps above, as integers of its bits."""
    raw = {4: torch.int32, 2: torch.int16}[ref.element_size()]
    return (ref.view(raw) + steps).view(ref.dtype)


@pytest.mark.parametrize("dtype, rtol, atol", TABLE, ids=str)
@pytest.mark.parametrize("size", [1e-4, 1.0, 500.0])
def test_the_edge_of_the_table(dtype: torch.dtype, rtol: float, atol: float, size: float) -> None:
    """The last number inside the tolerance passes, the next one fails."""
    ref = torch.tensor([size], dtype=dtype)
    start = ref.double().item()
    allowed = atol + rtol * start
    steps = range(1 << (21 if dtype == torch.float32 else 12))
    inside = bisect_right(steps, allowed, key=lambda n: near(ref, n).double().item() - start) - 1
    assert 0 < inside < steps[-1]
    compare_precision(near(ref, inside), ref)
    with pytest.raises(AssertionError):
        compare_precision(near(ref, inside + 1), ref)


def test_tolerances_of_ones_own() -> None:
    ref = torch.tensor([100.0, 0.0])
    cal = ref + torch.tensor([1.0, 0.25])
    compare_precision(cal, ref, rtol=0.01, atol=0.25)
    with pytest.raises(AssertionError, match=r"^1 of 2 .*\nworst at \(0,\)"):
        compare_precision(cal, ref, atol=0.25)
    with pytest.raises(AssertionError, match=r"worst at \(1,\)"):
        compare_precision(cal, ref, rtol=0.01)
    # relative to ref, not to cal
    compare_precision(torch.tensor([90.0]), torch.tensor([100.0]), rtol=0.1, atol=0.0)
    with pytest.raises(AssertionError):
        compare_precision(torch.tensor([100.0]), torch.tensor([90.0]), rtol=0.1, atol=0.0)


@pytest.mark.parametrize("dtype", EXACT)
def test_integers_must_be_equal(dtype: torch.dtype) -> None:
    ref = torch.tensor([torch.iinfo(dtype).max, -3, 0], dtype=dtype)
    compare_precision(ref.clone(), ref)
    cal = ref.clone()
    cal[0] -= 1
    with pytest.raises(AssertionError, match="1 of 3 elements differ .*must be equal"):
        # however loose: in float64 the largest int64 and the one before are the same
        compare_precision(cal, ref, rtol=1.0, atol=1e9)


def test_bool_must_be_equal() -> None:
    ref = torch.tensor([True, False])
    compare_precision(ref.clone(), ref)
    with pytest.raises(AssertionError, match=r"worst at \(1,\): cal True, ref False"):
        compare_precision(torch.tensor([True, True]), ref)


def test_nan() -> None:
    ref = torch.tensor([1.0, math.nan])
    compare_precision(ref.clone(), ref)
    with pytest.raises(AssertionError, match="NaN differs from NaN\n.*\nnot finite: cal NaN 1"):
        compare_precision(ref.clone(), ref, equal_nan=False)
    with pytest.raises(AssertionError, match="not finite: cal NaN 1$"):
        compare_precision(ref, torch.ones(2))
    with pytest.raises(AssertionError, match="not finite: ref NaN 1$"):
        compare_precision(torch.ones(2), ref)


@pytest.mark.parametrize("dtype", [row[0] for row in TABLE])
def test_infinities(dtype: torch.dtype) -> None:
    inf, ref = math.inf, torch.tensor([math.inf, -math.inf, 1.0], dtype=dtype)
    compare_precision(ref.clone(), ref)
    for wrong in ([3.0, -inf, 1.0], [-inf, -inf, 1.0], [inf, -inf, inf], [math.nan, -inf, 1.0]):
        with pytest.raises(AssertionError, match="1 of 3"):
            compare_precision(torch.tensor(wrong, dtype=dtype), ref, rtol=0.5, atol=0.5)
    # equal infinities are not the worst, though their difference is NaN
    with pytest.raises(AssertionError, match=r"worst at \(2,\)"):
        compare_precision(torch.tensor([inf, -inf, 2.0], dtype=dtype), ref)


def test_what_is_named_in_a_failure() -> None:
    ref = torch.zeros(2, 3, 4)
    cal = ref.clone()
    cal[1, 2, 3], cal[0, 0, 1] = 0.5, -0.25
    with pytest.raises(AssertionError) as caught:
        compare_precision(cal, ref)
    assert str(caught.value) == (
        "2 of 24 elements differ (8.333%); float32 (2, 3, 4), rtol 1e-05, atol 1e-05, "
        "NaN equals NaN\nworst at (1, 2, 3): cal 0.5, ref 0.0, off by 0.5, relative inf"
    )


def test_the_worst_is_found_in_any_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "CHUNK", 5)
    ref = torch.zeros(4, 6).mT
    for at in range(24):
        cal = ref.clone()
        place = divmod(at, 4)
        cal[place], cal[5, 3] = 2.0, 1.0 if at != 23 else 2.0
        with pytest.raises(AssertionError, match=re.escape(f"worst at {place}: cal 2.0")):
            compare_precision(cal, ref)


def test_dtypes_and_shapes_come_first() -> None:
    x = torch.tensor([math.nan, 1.0])
    with pytest.raises(ValueError, match=r"dtypes differ: cal is float32 \(2,\), ref is float16"):
        compare_precision(x, x.half())
    with pytest.raises(ValueError, match=r"shapes differ: cal is float32 \(2,\), ref is .* \(1, 2"):
        compare_precision(x, x[None])
    # not broadcast
    with pytest.raises(ValueError, match="shapes differ"):
        compare_precision(torch.ones(3), torch.ones(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.uint8])
@pytest.mark.parametrize("compare", [compare_precision, compare_bitwise])
def test_unsupported_dtypes(dtype: torch.dtype, compare: object) -> None:
    x = torch.ones(2, dtype=dtype)
    with pytest.raises(ValueError, match="unsupported dtype: cal is .*; expected one of float32"):
        compare(x, x)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_wrong_tolerances(name: str, value: float, dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    with pytest.raises(ValueError, match=f"{name}: expected a finite number"):
        compare_precision(x, x, **{name: value})


def test_not_tensors() -> None:
    with pytest.raises(TypeError, match="ref: expected a tensor, got list"):
        compare_precision(torch.ones(1), [1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_empty_and_scalars(shape: tuple[int, ...]) -> None:
    compare_precision(torch.ones(shape), torch.ones(shape))
    compare_bitwise(torch.ones(shape), torch.ones(shape))
    with pytest.raises(ValueError, match="shapes differ"):
        compare_precision(torch.ones(shape), torch.ones(5))


def test_bitwise() -> None:
    ref = torch.tensor([1.0, 0.0, math.nan], dtype=torch.bfloat16)
    compare_bitwise(ref.clone(), ref)
    for wrong in ([1.0078125, 0.0, math.nan], [1.0, -0.0, math.nan]):
        with pytest.raises(AssertionError, match="1 of 3 elements differ .*bit for bit"):
            compare_bitwise(torch.tensor(wrong, dtype=torch.bfloat16), ref)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    x = torch.randn(2000, 700)
    compare_precision(x.cuda(), x)
    x_bad = x.cuda()
    x_bad[1999, 699] += 1
    with pytest.raises(AssertionError, match=r"1 of 1400000 .*\nworst at \(1999, 699\)"):
        compare_precision(x_bad, x)

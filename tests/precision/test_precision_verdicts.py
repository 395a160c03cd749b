"""Every rule of `compare`: what passes, what fails, and what only informs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flashasc.precision import LEVELS, SINGLE_STANDARD, SMALL_VALUES, compare, normal

GOLDEN = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
# large enough for fractions of it around these in float32
UNIT = 2.0**-10
LOOSE: dict[str, Any] = {"rtol": 1.0, "atol": 1.0}


def pair(ours: list[float], theirs: list[float]) -> tuple[Tensor, Tensor]:
    return tuple((GOLDEN + torch.tensor(e, dtype=torch.float64) * UNIT).float()
                 for e in (ours, theirs))  # type: ignore[return-value]  # fmt: skip


def test_the_table_decides() -> None:
    x = normal((64,), torch.bfloat16)
    assert compare(x, x).ok
    far = x + 0.05
    report = compare(far, x)
    assert not report.ok
    check = report.tensors[0].check("tolerance")
    assert (check.passed, check.gates, check.limit) == (False, True, 0)
    assert compare(far, x, atol=0.1).ok
    with pytest.raises(AssertionError, match="FAIL"):
        report.assert_ok()
    compare(x, x).assert_ok()


def test_golden_decides_not_expected() -> None:
    ours, theirs = GOLDEN.float(), GOLDEN.float() * 1.5
    report = compare(ours, theirs, golden=GOLDEN)
    assert report.ok
    apart = report.tensors[0].check("agrees with expected")
    assert (apart.passed, apart.gates, apart.measured) == (False, False, 4)
    assert not compare(theirs, ours, golden=GOLDEN).ok


def test_strict() -> None:
    x = torch.tensor([1.0, 0.0])
    assert compare(x, x.clone(), strict=True).ok
    assert not compare(x, torch.tensor([1.0, -0.0]), strict=True).ok
    near = torch.tensor([1.0 + 2.0**-23, 0.0])
    assert compare(x, near).ok
    report = compare(near, x, strict=True)
    assert not report.ok
    assert report.tensors[0].check("bitwise").measured == 1
    # against the golden result rounded once
    assert compare(x, golden=torch.tensor([1.0 + 2.0**-25, 0.0]).double(), strict=True).ok
    assert not compare(x, golden=torch.tensor([1.0 + 2.0**-23, 0.0]).double(), strict=True).ok


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("figure", ["MARE", "MERE", "RMSE"])
def test_ratios_of_a_level(level: str, figure: str) -> None:
    """At the limit a figure passes, above it it fails."""
    most = getattr(LEVELS[level], figure.lower())  # type: ignore[index]
    spread = {
        "MARE": lambda r: ([r, 0, 0, 0], [1, 2, 4, 8]),
        "MERE": lambda r: ([r, 0, 0, 0], [1, 0, 0, 0]),
        "RMSE": lambda r: ([0, 0, 0, r], [0, 0, 0, 1]),
    }[figure]
    # 1.2 is no binary fraction
    for factor, passes in ((1.0 if most != 1.2 else 1.0 - 2.0**-8, True), (1.125, False)):
        ours, theirs = pair(*spread(most * factor))
        options: dict[str, Any] = {"golden": GOLDEN, "level": level, "small_value": 1e-3, **LOOSE}
        tensor = compare(ours, theirs, **options).tensors[0]
        check = tensor.check(f"{level}: {figure}")
        assert check.measured == pytest.approx(most * factor, rel=1e-3)
        assert (check.passed, check.gates) == (passes, True)
        assert passes or not tensor.ok


def test_a_level_informs_without_a_small_value_threshold() -> None:
    ours, theirs = pair([100, 0, 0, 0], [1, 0, 0, 0])
    report = compare(ours, theirs, golden=GOLDEN, level="L1", **LOOSE)
    check = report.tensors[0].check("L1: MARE")
    assert (check.measured, check.passed, check.gates) == (100, False, False)
    assert report.ok
    assert not compare(ours, theirs, golden=GOLDEN, level="L1", small_value=0.1, **LOOSE).ok


def test_with_a_level_the_single_standard_informs() -> None:
    """Two alike that are both far off: the ratios are 1, and no level is missed."""
    ours, theirs = pair([100, 0, 0, 0], [100, 0, 0, 0])
    options: dict[str, Any] = {"golden": GOLDEN, "small_value": 0.1, **LOOSE}
    report = compare(ours, theirs, level="L2", **options)
    check = report.tensors[0].check("single standard: MERE")
    assert (check.passed, check.gates, report.ok) == (False, False, True)
    assert not compare(ours, theirs, **options).ok


def test_the_tightest_level_reached_is_told() -> None:
    for error, level in ((1.0, "L2"), (1.25, "L1"), (1.75, "L0"), (100.0, "L0")):
        ours, theirs = pair([error, 0, 0, 0], [1, 0, 0, 0])
        tensor = compare(ours, theirs, golden=GOLDEN, **LOOSE).tensors[0]
        check = tensor.check(f"{level}: MERE")
        assert check.measured == error
        assert check.passed is (error < 10)


def test_an_error_beside_none() -> None:
    ours, theirs = pair([1, 0, 0, 0], [0, 0, 0, 0])
    check = compare(ours, theirs, golden=GOLDEN, **LOOSE).tensors[0].check("L0: RMSE")
    assert (check.measured, check.passed) == (math.inf, False)
    check = compare(theirs, theirs, golden=GOLDEN, **LOOSE).tensors[0].check("L2: RMSE")
    assert (check.measured, check.passed) == (1.0, True)


@pytest.mark.parametrize("dtype", SINGLE_STANDARD)
def test_the_single_standard(dtype: torch.dtype) -> None:
    t = SINGLE_STANDARD[dtype]
    golden = torch.ones(32, dtype=torch.float64)

    def verdicts(*errors: float) -> list[bool]:
        actual = golden.clone()
        actual[: len(errors)] += torch.tensor(errors, dtype=torch.float64)
        tensor = compare(actual.to(dtype), golden=golden, small_value=0.5, **LOOSE).tensors[0]
        found = [tensor.check(f"single standard: {name}") for name in ("MERE", "MARE")]
        assert tensor.ok is all(check.passed for check in found)
        return [check.passed for check in found]

    assert verdicts(9 * t) == [True, True]
    # below, not at
    assert verdicts(10 * t) == [True, False]
    assert verdicts(*[8 * t] * 4) == [False, True]


def test_small_values_are_judged_by_absolute_error() -> None:
    """Relative errors of 1 near zero, as correct kernels have on attention outputs."""
    dtype = torch.bfloat16
    small, t = SMALL_VALUES[dtype], SINGLE_STANDARD[dtype]
    golden = torch.tensor([1.0, small / 64], dtype=torch.float64)
    for error, passes in ((t * small / 2, True), (t * small * 2, False)):
        actual = (golden + torch.tensor([0.0, error], dtype=torch.float64)).to(dtype)
        informs = compare(actual, golden=golden)
        assert informs.ok
        assert not informs.tensors[0].check("single standard: MARE").passed
        gates = compare(actual, golden=golden, small_value=SMALL_VALUES)
        assert gates.tensors[0].check("single standard: MARE").passed
        assert gates.tensors[0].check("single standard: small values").passed is passes
        assert gates.ok is passes


def test_flash_attentions_rule() -> None:
    for error, passes in ((2.0, True), (3.0, False)):
        ours, theirs = pair([0, 0, error, 0], [0, 1, 0, 0])
        for gates in (True, False):
            report = compare(ours, theirs, golden=GOLDEN, flash_rule=gates, **LOOSE)
            check = report.tensors[0].check("flash-attention 2x")
            assert (check.passed, check.gates) == (passes, gates)
            assert (check.measured, check.limit) == (error * UNIT, 2 * UNIT)
            assert report.ok is (passes or not gates)


def test_trees() -> None:
    tree = {"out": torch.ones(3), "more": (np.arange(4), [None, 2.5, True])}
    other = {"out": torch.ones(3), "more": (np.array([0, 1, 2, 4]), [None, 2.5, True])}
    report = compare(tree, other, rtol=0.0, atol=0.0)
    assert [tensor.name for tensor in report.tensors if tensor.ok] == [
        "['out']",
        "['more'][1][1]",
        "['more'][1][2]",
    ]
    assert [tensor.name for tensor in report.tensors if not tensor.ok] == ["['more'][0]"]
    assert report.findings[0].startswith("['more'][0]: 1 of 4 elements differ")
    assert not report.ok


@pytest.mark.parametrize(
    "actual, expected, message",
    [
        ((torch.ones(1),), torch.ones(1), r"expected has no \[0\].*\['a tensor alone'\]"),
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}, r"expected has no \['a'\]"),
        ([torch.ones(1)], [torch.ones(1), torch.ones(2)], r"actual has no \[1\]"),
        (torch.ones(2), torch.ones(3), r"actual is \(2,\), expected is \(3,\)"),
        (torch.ones(2), torch.ones(2, 1), "shapes differ"),
        (torch.ones(2), torch.ones(2).half(), "actual is float32, expected is float16; cast"),
        (torch.ones(2).cfloat(), torch.ones(2).cfloat(), "view_as_real"),
        (torch.ones(2).double(), torch.ones(2).double(), "float64 is not in the tolerance table"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(actual: Any, expected: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(actual, expected)


@pytest.mark.parametrize(
    "golden, message",
    [
        (torch.ones(3), "golden is \\(3,\\)"),
        (torch.ones(2).half(), "golden is coarser"),
        (torch.ones(2).long(), "both or neither must be floating"),
        (None, "expected, golden: give one"),
    ],
)
def test_what_cannot_be_golden(golden: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(torch.ones(2), golden=golden)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"level": "L3", "golden": True}, "level: expected one of L0, L1, L2; got 'L3'"),
        ({"level": "L1"}, "level: needs expected .* and golden"),
        ({"flash_rule": True}, "flash_rule: needs"),
        ({"strict": True, "rtol": 0.1}, "strict: compares bits"),
        ({"rtol": -1.0}, "rtol: expected a finite"),
        ({"worst": -1}, "worst: expected 0 or more"),
        ({"small_value": 0.0}, "small_value: expected a positive"),
        ({"small_value": {torch.float16: 0.1}}, "small_value: has none for float32"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    x = torch.ones(2)
    if options.get("golden"):
        options = {**options, "golden": x.double()}
    with pytest.raises(ValueError, match=message):
        compare(x, x, **options)


def test_not_a_tensor() -> None:
    with pytest.raises(TypeError, match=r"actual\['a'\]: expected a tensor.*got str"):
        compare({"a": "text"}, {"a": "text"})


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
def test_empty_and_scalars(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.ones(shape).to(dtype)
    report = compare(x, x.clone(), worst=3)
    assert report.ok and not report.findings
    assert report.tensors[0].shape == shape
    if x.numel():
        assert not compare(x, torch.zeros_like(x)).ok
        assert report.text()


def test_float64_and_float8_with_tolerances_given() -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert compare(x, x + 1e-9, rtol=1e-8, atol=0.0).ok
    assert not compare(x, x + 1e-9, rtol=1e-10, atol=0.0).ok
    low = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    assert compare(low, golden=x, strict=True).ok
    assert not compare(low, golden=x * 1.25, rtol=0.1, atol=0.0).ok


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_nan_meets_no_standard(share: float) -> None:
    """Errors of the finite elements, however small, are not those of the result."""
    exact = torch.rand(8, dtype=torch.float64)
    actual = exact.float()
    actual[: int(8 * share)] = math.nan
    (tensor,) = compare(actual, exact.float(), golden=exact, flash_rule=True).tensors
    assert not any(c.passed for c in tensor.checks if c.name != "agrees with expected")
    assert tensor.errors is not None
    if share == 1:
        assert math.isnan(tensor.errors.max_abs) and tensor.errors.correctly_rounded == 0


def test_nan_where_it_is_expected_breaks_no_standard() -> None:
    nothing = torch.full((4,), math.nan)
    report = compare(nothing, golden=nothing.double(), small_value=1e-3)
    assert report.ok and all(check.passed for check in report.tensors[0].checks)

"""Errors against length."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flashasc.precision import Sweep, sweep, uniform_positive

LENGTHS = [64, 256, 1024, 4096]


def exact_sum(x: Tensor) -> Tensor:
    return x.sum(-1)


def plain(x: Tensor) -> Tensor:
    """One after the other, in the dtype."""
    total = torch.zeros(x.shape[:-1], dtype=x.dtype)
    for term in x.unbind(-1):
        total = total + term
    return total


def once(x: Tensor) -> Tensor:
    return x.double().sum(-1).to(x.dtype)


@pytest.fixture(scope="module")
def found() -> Sweep:
    return sweep(
        {"once": once, "plain": plain},
        lambda length: (uniform_positive((32, length), seed=length),),
        LENGTHS,
        exact=lambda x: x.double().sum(-1),
    )


def test_growth(found: Sweep) -> None:
    assert found.names == ("once", "plain")
    assert [row.length for row in found.of("plain")] == LENGTHS
    assert abs(found.growth("once")) < 0.15
    assert 0.3 < found.growth("plain") < 1.2
    assert all(row.correctly_rounded == 1.0 for row in found.of("once"))
    assert found.of("plain")[-1].correctly_rounded < 0.2


def test_growth_of_a_known_power() -> None:
    for power in (0.0, 0.5, 1.0):
        wrong = {"it": lambda x, p=power: x * (1 + 2.0**-20 * x.shape[0] ** p)}
        ones = sweep(wrong, lambda n: (torch.ones(n, dtype=torch.float64),), LENGTHS,
                     exact=lambda x: x)  # fmt: skip
        assert ones.growth("it") == pytest.approx(power, abs=1e-6)
        assert ones.rows[0].relative_bias == pytest.approx(2.0**-20 * 64**power)
        assert ones.rows[0].max_abs == pytest.approx(2.0**-20 * 64**power)


def test_golden_by_default_is_the_first_in_float64() -> None:
    def make(length: int) -> tuple[Tensor]:
        return (uniform_positive((8, length), torch.bfloat16),)

    given = sweep({"plain": plain}, make, [300], exact=lambda x: x.double().sum(-1))
    assert sweep({"plain": plain}, make, [300]).rows == pytest.approx(given.rows)


def test_no_error_has_no_growth() -> None:
    fine = sweep({"it": exact_sum}, lambda n: (torch.ones(n),), LENGTHS)
    assert math.isnan(fine.growth("it"))
    assert all(row.relative == 0.0 for row in fine.rows)


def test_not_finite_is_counted() -> None:
    bad = sweep({"it": lambda x: x / 0, "that": lambda x: x}, lambda n: (torch.ones(n),), [3],
                exact=lambda x: x.double())  # fmt: skip
    assert [row.non_finite for row in bad.rows] == [3, 0]


def test_text_and_json(found: Sweep) -> None:
    text = found.text()
    assert len(text.splitlines()) == 1 + 8 + 2
    assert f"plain: grows like length ** {found.growth('plain'):.2f}" in text
    assert Sweep.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_plot(found: Sweep, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import matplotlib

    before = dict(matplotlib.rcParams)
    for ending in ("svg", "png"):
        found.save_plot(tmp_path / f"plot.{ending}")
    assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "plot.svg").read_text()
    # a logarithm of 0 must not end it
    sweep({"it": exact_sum}, lambda n: (torch.ones(n),), LENGTHS).save_plot(tmp_path / "no.svg")


def test_wrong_calls(found: Sweep) -> None:
    def make(length: int) -> tuple[Tensor]:
        return (torch.ones(length),)

    with pytest.raises(ValueError, match="operators, lengths: expected one at least"):
        sweep({}, make, [1])
    with pytest.raises(ValueError, match="operators, lengths: expected one at least"):
        sweep({"it": exact_sum}, make, [])
    with pytest.raises(ValueError, match="lengths: expected 1 or more, got 0"):
        sweep({"it": exact_sum}, make, [4, 0])
    with pytest.raises(ValueError, match="it returns no floating tensor"):
        sweep({"it": lambda x: x.long()}, make, [4])
    with pytest.raises(KeyError, match="'none' is none of"):
        found.of("none")


def test_a_result_that_is_not_finite_has_no_small_error() -> None:
    def nan(x: Tensor) -> Tensor:
        return x * math.nan

    def half(x: Tensor) -> Tensor:
        return torch.cat([x[:2], nan(x[2:])])

    operators = {"right": torch.clone, "half": half, "nan": nan}
    found = sweep(operators, lambda length: (torch.rand(4),), [4])
    right, partly, all_of_it = found.rows
    assert (right.max_abs, right.correctly_rounded, right.non_finite) == (0, 1, 0)
    for row, share, count in ((partly, 0.5, 2), (all_of_it, 0, 4)):
        assert row.relative == row.max_abs == row.rmse == math.inf
        assert math.isnan(row.relative_bias)
        assert (row.correctly_rounded, row.non_finite) == (share, count)


def test_an_exact_result_that_is_not_finite_measures_nothing() -> None:
    """Without `exact` the first operator is its own measure."""
    found = sweep({"nan": lambda x: x * math.nan}, lambda length: (torch.rand(4),), [4, 8])
    for row in found.rows:
        measures = (row.relative, row.rmse, row.max_abs, row.relative_bias, row.correctly_rounded)
        assert all(map(math.isnan, measures)) and row.non_finite == 4
    assert "nan%" in found.text() and math.isnan(found.growth("nan"))

"""Compare one tensor: a pass over its chunks, then the rules."""

from __future__ import annotations

import torch
from torch import Tensor

from . import checks
from .diagnosis import diagnose, leaning
from .elementwise import agree, allowance, bits, chunks
from .report import Check, TensorReport
from .rounding import round_once, unit_in_last_place
from .rules import Rules
from .statistics import Errors, NonFiniteTally, Tally, judged
from .tolerances import name_of
from .worst import Element, Ranking, indices, neighbours, scores, value


def compare_tensor(
    name: str, actual: Tensor, expected: Tensor | None, golden: Tensor | None, rules: Rules
) -> TensorReport:
    """Judge one tensor.

    Args:
        name: its path, for errors and the report.
        actual: [...] any dtype but complex, on any device.
        expected, golden: [...] the same shape, one at least; see `compare`.
        rules: the options.

    Raises:
        ValueError: dtypes that cannot be compared; a dtype without a tolerance.
    """
    dtype = actual.dtype
    _check_dtypes(name, actual, expected, golden)
    rtol, atol = rules.tolerance(dtype)
    target, judged_by = _target(dtype, expected, golden)
    small = rules.small(dtype) if dtype.is_floating_point else None
    ours, theirs = (Tally(dtype, small or 0.0) for _ in range(2)) if dtype.is_floating_point else (
        None, None)  # fmt: skip
    ranking = Ranking(rules.worst)
    bad = torch.empty(actual.numel(), dtype=torch.bool)
    apart = 0
    odd = NonFiniteTally()
    first = 0
    for a, t, *rest in chunks(actual, target, golden, expected):
        truth = t if golden is None else rest[0]
        good = bits(a) == bits(t) if rules.strict else agree(a, t, rtol, atol, rules.equal_nan)
        bad[first : first + len(good)] = ~good
        error = (a.double() - t.double()).abs()
        if rules.worst:
            ranking.add(scores(good, error, allowance(t, rtol, atol)), first)
        odd.add(a, t, good, first)
        if ours is not None and theirs is not None:
            ours.add(a, truth)
            if golden is not None and expected is not None:
                theirs.add(rest[-1], truth)
                same = agree(a, rest[-1].to(dtype), rtol, atol, rules.equal_nan)
                apart += int((~same).sum())
        first += len(good)
    bad = bad.view(actual.shape)
    non_finite = odd.found(tuple(actual.shape))
    both = golden is not None and expected is not None
    errors = ours.errors() if ours else None
    other = theirs.errors() if theirs and both else None
    shape = tuple(actual.shape)
    return TensorReport(
        name=name,
        dtype=name_of(dtype),
        shape=shape,
        elements=actual.numel(),
        judged_by=judged_by,
        rule=rules.words(dtype),
        mismatched=int(bad.sum()),
        denominator=_denominator("golden" if golden is not None else "expected", small),
        checks=tuple(
            _checks(
                actual,
                int(bad.sum()),
                errors and judged(errors, non_finite.mismatched),
                other and judged(other, 0),
                apart,
                small,
                rules,
            )
        ),
        errors=errors,
        theirs=other,
        non_finite=non_finite,
        worst=tuple(
            _element(actual, target, golden, bad, index, rules)
            for index in indices(ranking.places(), shape)
        ),
        findings=tuple(_findings(actual, target, bad, errors, rules)),
    )


def _check_dtypes(
    name: str, actual: Tensor, expected: Tensor | None, golden: Tensor | None
) -> None:
    facts = ", ".join(
        f"{title}{name} is {name_of(x.dtype)}"
        for title, x in (("actual", actual), ("expected", expected), ("golden", golden))
        if x is not None
    )
    if actual.dtype.is_complex:
        raise ValueError(f"unsupported dtype: {facts}; compare torch.view_as_real of each")
    if golden is None:
        if expected is not None and expected.dtype != actual.dtype:
            raise ValueError(f"dtypes differ: {facts}; cast expected, or give it as golden")
        return
    if golden.is_floating_point() != actual.is_floating_point():
        raise ValueError(f"dtypes differ: {facts}; both or neither must be floating")
    if not actual.is_floating_point():
        if golden.dtype != actual.dtype or (
            expected is not None and expected.dtype != actual.dtype
        ):
            raise ValueError(f"dtypes differ: {facts}; integers and bool are compared as they are")
    elif torch.finfo(golden.dtype).eps > torch.finfo(actual.dtype).eps:
        raise ValueError(f"golden is coarser than what it judges: {facts}; compute it in float64")
    elif expected is not None and not expected.is_floating_point():
        raise ValueError(f"dtypes differ: {facts}; expected must be floating too")


def _target(
    dtype: torch.dtype, expected: Tensor | None, golden: Tensor | None
) -> tuple[Tensor, str]:
    """What the elements are compared with, in the result's dtype, and what that is."""
    if golden is None:
        assert expected is not None
        return expected, "expected"
    if not dtype.is_floating_point or golden.dtype == dtype:
        return golden, "golden"
    whole = torch.empty(golden.shape, dtype=dtype)
    flat, first = whole.view(-1), 0
    for (piece,) in chunks(golden):
        flat[first : first + len(piece)] = round_once(piece.double(), dtype)
        first += len(piece)
    return whole, f"golden, rounded once to {name_of(dtype)}"


def _denominator(truth: str, small: float | None) -> str:
    if small is None:
        return f"|{truth}|, whatever its size; elements where it is 0 by absolute error"
    return f"|{truth}| from {small:.4g} on; smaller elements by absolute error"


def _checks(
    actual: Tensor,
    mismatched: int,
    errors: Errors | None,
    theirs: Errors | None,
    apart: int,
    small: float | None,
    rules: Rules,
) -> list[Check]:
    elements, words = actual.numel(), rules.words(actual.dtype)
    name = "bitwise" if rules.strict else "tolerance" if errors else "equality"
    found = [checks.agreement(name, mismatched, elements, words, gates=True)]
    if errors is None:
        return found
    gates = small is not None
    if theirs is None:
        return [*found, *checks.single_standard(errors, actual.dtype, small, gates=gates)]
    found.append(checks.agreement("agrees with expected", apart, elements, words, gates=False))
    single = gates and rules.level is None
    found += checks.single_standard(errors, actual.dtype, small, gates=single)
    level = rules.level or checks.best_level(errors, theirs) or "L0"
    gates = gates and rules.level is not None
    found += checks.dual_standard(errors, theirs, level, small, gates=gates)
    return [*found, checks.flash_rule(errors, theirs, gates=rules.flash_rule)]


def _element(
    actual: Tensor,
    target: Tensor,
    golden: Tensor | None,
    bad: Tensor,
    index: tuple[int, ...],
    rules: Rules,
) -> Element:
    a, t = value(actual, index), value(target, index)
    truth = t if golden is None else value(golden, index)
    ulps = float(abs(a - truth))
    allowed = 0.0
    if actual.is_floating_point():
        exact = torch.tensor([float(truth)], dtype=torch.float64)
        ulps /= unit_in_last_place(exact, actual.dtype).item()
        rtol, atol = rules.tolerance(actual.dtype)
        allowed = atol + rtol * abs(t)
    near = neighbours(actual, target, index)
    return Element(index, a, t, truth, a - truth, ulps, allowed, not bool(bad[index]), near)


def _findings(
    actual: Tensor, target: Tensor, bad: Tensor, errors: Errors | None, rules: Rules
) -> list[str]:
    found = []
    if bool(bad.any()):
        rtol, atol = rules.tolerance(actual.dtype)
        found = diagnose(actual.cpu(), target.cpu(), bad, rtol, atol)
    if errors and (words := leaning(errors)):
        found.append(words)
    return found

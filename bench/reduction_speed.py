"""Speed of sums and norms on a GPU, as a share of the bandwidth of a copy measured beside them.

    python -m bench.reduction_speed [--output FILE]

Each case is checked against float64 first: what is wrong is not timed. A copy moves as many bytes
as it reads and writes; a sum's are those it reads, a norm's those it reads and writes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashasc import ops

from .machine import facts
from .timing import median_time

SUMMED = 10**9
HIDDEN = 8192
TOKENS = 1 << 16
_REPEATS = 20


class Case(NamedTuple):
    """Something to time, with what it must give."""

    name: str
    moved: int
    run: Callable[[], Tensor]
    wrong: Callable[[Tensor], float]
    """Error over the error allowed: more than 1 is wrong."""


def main() -> None:
    """Gate, time, print a line a case, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a GPU")
    torch.manual_seed(0)
    records: list[dict[str, Any]] = []
    for group in (sums, norms):
        records += _measured(group())
        torch.cuda.empty_cache()
    if arguments.output:
        result = {"machine": facts(), "repeats": _REPEATS, "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def sums() -> list[Case]:
    """float32, 10**9 positive numbers, in one row and in many."""
    x = torch.rand(SUMMED, device="cuda")
    exact = float(sum(part.double().sum() for part in x.split(1 << 26)))

    def gate(terms: float) -> Callable[[Tensor], float]:
        return lambda s: abs(float(s.double().sum()) - exact) / exact / (terms * 2.0**-24)

    square = x[: HIDDEN * (SUMMED // HIDDEN)].view(-1, HIDDEN)
    of_rows = square.double().sum(1)

    def rows_off(s: Tensor) -> float:
        return float(((s - of_rows).abs() / of_rows).max()) / 2.0**-22

    moved = x.numel() * 4
    levels = {"plain": False, "compensated": True, "sum2": "sum2"}
    cases = [_copy(x), Case("torch.sum", moved, lambda: x.sum(), gate(1000))]
    for name, level in levels.items():
        bound = 1000 if name == "plain" else 3
        cases += [
            Case(f"sum {name}", moved, lambda c=level: ops.sum(x, compensated=c), gate(bound)),  # type: ignore[misc]
            Case(
                f"sum {name}, rows of {HIDDEN}",
                square.numel() * 4,
                lambda c=level: ops.sum(square, 1, compensated=c),  # type: ignore[misc]
                rows_off,
            ),
        ]
    return cases


def norms() -> list[Case]:
    """bfloat16, rows of 8192."""
    x = torch.randn(TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    weight = torch.rand(HIDDEN, device="cuda", dtype=torch.bfloat16)
    some = slice(0, TOKENS, 97)
    functional = torch.nn.functional

    def off(exact: Tensor) -> Callable[[Tensor], float]:
        # one rounding to bfloat16 and a little
        return lambda y: float(((y[some] - exact).abs() / (exact.abs() + 1e-6)).max()) / 2.0**-8.0

    part, wide = x[some].double(), weight.double()
    rms = functional.rms_norm(part, (HIDDEN,), wide, 1e-6)
    layer = functional.layer_norm(part, (HIDDEN,), wide)
    soft = part.softmax(1)
    moved = 2 * x.numel() * 2
    return [
        _copy(x),
        Case(
            "torch rms_norm",
            moved,
            lambda: functional.rms_norm(x, (HIDDEN,), weight, 1e-6),
            # torch may round once more
            lambda y: off(rms)(y) / 2,
        ),
        Case("rms_norm", moved, lambda: ops.rms_norm(x, HIDDEN, weight, eps=1e-6), off(rms)),
        Case(
            "rms_norm, plain",
            moved,
            lambda: ops.rms_norm(x, HIDDEN, weight, eps=1e-6, compensated=False),
            off(rms),
        ),
        # near 0 the mean's cancellation is as large as the result
        Case(
            "layer_norm",
            moved,
            lambda: ops.layer_norm(x, HIDDEN, weight),
            lambda y: float((y[some] - layer).abs().max() / layer.abs().max()) / 2.0**-8,
        ),
        Case("torch softmax", moved, lambda: x.softmax(1), lambda y: off(soft)(y) / 2),
        Case("softmax", moved, lambda: ops.softmax(x), off(soft)),
    ]


def _copy(x: Tensor) -> Case:
    out = torch.empty_like(x)
    moved = 2 * x.numel() * x.element_size()
    return Case("copy", moved, lambda: out.copy_(x), lambda y: 0.0 if torch.equal(y, x) else 2.0)


def _measured(cases: list[Case]) -> list[dict[str, Any]]:
    """Records of cases; the first is the copy that the others are a share of."""
    records: list[dict[str, Any]] = []
    for case in cases:
        excess = case.wrong(case.run())
        record: dict[str, Any] = {"case": case.name, "bytes": case.moved, "error_share": excess}
        records.append(record)
        if not excess <= 1:
            print(f"{case.name:<28} wrong: {excess:.3g} times the error allowed; not timed")
            continue
        seconds = median_time(case.run, _REPEATS)
        record["milliseconds"] = seconds * 1e3
        record["gb_per_s"] = case.moved / seconds / 1e9
        record["of_copy"] = record["gb_per_s"] / records[0]["gb_per_s"]
        print(
            f"{case.name:<28} {seconds * 1e3:8.3f} ms {record['gb_per_s']:8.0f} GB/s "
            f"{record['of_copy']:6.1%} of a copy",
            flush=True,
        )
    return records


if __name__ == "__main__":
    main()

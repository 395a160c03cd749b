"""Speed of sums and norms on a GPU, as a share of the bandwidth of a copy measured beside them.

    python -m bench.reduction_speed [--tune] [--output FILE]

Each case is checked against float64 first: what is wrong is not timed. Times are a GPU's own, see
`bench.timing`; beside them stands how long the host takes to start a call. A copy moves as many
bytes as it reads and writes; a sum's are those it reads, a norm's those it reads and writes; each
is compared with a copy of its input. --tune times the candidates of `bench.reduction_tiles` for
some cases, not the rows of the tile tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashasc import ops

from .compile_ahead import precompile
from .host_time import host_times
from .machine import facts
from .reduction_tiles import tuned
from .timing import REPEATS, median_time

SUMMED = 10**9
HIDDEN = 8192
TOKENS = 1 << 16
TUNED = (
    "sum compensated",
    f"sum compensated, rows of {HIDDEN}",
    f"sum sum2, rows of {HIDDEN}",
    "rms_norm",
    "layer_norm",
    "softmax",
)
STARTED = 10
"""Calls started one after another, and how often, to see how long the host takes."""
_WIDTH = 76


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
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a GPU")
    records: list[dict[str, Any]] = []
    for shipped, candidates, runs in (
        (sums, sum_candidates, _runs_of_sums),
        (norms, norm_candidates, _runs_of_norms),
    ):
        if arguments.tune:
            precompile(runs)
        records += _measured(candidates() if arguments.tune else shipped())
        torch.cuda.empty_cache()
    goals = summary(records)
    if arguments.output:
        result = {"machine": facts(), "records": records, **goals}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def sum_candidates() -> list[Case]:
    """The sums, those of TUNED with tiles that might be better ones."""
    return _candidates(sums())


def norm_candidates() -> list[Case]:
    """The norms, those of TUNED with schedules that might be better ones."""
    return _candidates(norms())


def _candidates(cases: list[Case]) -> list[Case]:
    return [
        case._replace(name=name, run=run)
        for case in cases
        for name, run in (tuned if case.name in TUNED else _alone)(case.name, case.run)
    ]


def _alone(name: str, run: Callable[[], Tensor]) -> list[tuple[str, Callable[[], Tensor]]]:
    return [(name, run)]


def _runs_of_sums() -> list[Callable[[], Tensor]]:
    return [case.run for case in sum_candidates()]


def _runs_of_norms() -> list[Callable[[], Tensor]]:
    return [case.run for case in norm_candidates()]


def sums() -> list[Case]:
    """float32, 10**9 positive numbers, in one row and in many."""
    torch.manual_seed(0)
    x = torch.rand(SUMMED, device="cuda")
    exact = float(sum(part.double().sum() for part in x.split(1 << 26)))

    def gate(terms: float) -> Callable[[Tensor], float]:
        return lambda s: abs(float(s.double().sum()) - exact) / exact / (terms * 2.0**-24)

    square = x[: HIDDEN * (SUMMED // HIDDEN)].view(-1, HIDDEN)
    # in parts: as many processes as compile side by side hold all of this
    of_rows = torch.cat([part.double().sum(1) for part in square.split(4096)])

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
    torch.manual_seed(0)
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


def summary(records: list[dict[str, Any]]) -> dict[str, float]:
    """The best shares of a copy's bandwidth, as shipped or among candidates."""
    shares = {
        f"{case.replace(' ', '_')}_of_copy": max(
            (r["of_copy"] for r in records if "of_copy" in r and r["case"].split(":")[0] == case),
            default=float("nan"),
        )
        for case in ("sum compensated", "rms_norm")
    }
    print("  ".join(f"{name} {share:.3f}" for name, share in shares.items()))
    return shares


def _copy(x: Tensor) -> Case:
    out = torch.empty_like(x)
    moved = 2 * x.numel() * x.element_size()
    return Case("copy", moved, lambda: out.copy_(x), lambda y: 0.0 if torch.equal(y, x) else 2.0)


def _measured(cases: list[Case]) -> list[dict[str, Any]]:
    """Records of cases; the first is the copy that the others are a share of."""
    records: list[dict[str, Any]] = []
    for case in cases:
        record: dict[str, Any] = {"case": case.name, "bytes": case.moved}
        records.append(record)
        try:
            record["error_share"] = excess = case.wrong(case.run())
            if not excess <= 1:
                record["failed"] = f"wrong: {excess:.3g} times the error allowed; not timed"
            else:
                record["milliseconds"] = median_time(case.run, REPEATS["cuda"]) * 1e3
                host = host_times({"it": case.run}, "cuda", rounds=STARTED, calls=STARTED)["it"]
                record["host_microseconds"] = statistics.median(host) * 1e6
        except Exception as failure:
            # out of registers or shared memory: another candidate may do
            record["failed"] = str(failure).splitlines()[0]
        if "failed" in record:
            print(f"{case.name:<{_WIDTH}} {record['failed']}", flush=True)
            continue
        record["gb_per_s"] = case.moved / record["milliseconds"] / 1e6
        record["of_copy"] = record["gb_per_s"] / records[0]["gb_per_s"]
        print(
            f"{case.name:<{_WIDTH}} {record['milliseconds']:7.3f} ms "
            f"{record['gb_per_s']:6.0f} GB/s "
            f"{record['of_copy']:6.1%} of a copy; host {record['host_microseconds']:5.0f} us",
            flush=True,
        )
    return records


if __name__ == "__main__":
    main()

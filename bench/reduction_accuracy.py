"""Accuracy of sums, variances and log-sum-exps beside torch's, and a plot of it.

    python -m bench.reduction_accuracy [--device cuda] [--output FILE] [--plot FILE]

float32 rows, against math.fsum or float64, in units in the last place of the exact result. On a CPU
the kernels run natively, as lowered for Ascend910B3.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashasc import ops
from flashasc.testing import ulps

from .machine import facts

LENGTHS = tuple(1 << bits for bits in range(6, 21, 2))
CONDITIONS = tuple(10.0**k for k in range(1, 8))
ROWS = 8
_CANCELLING = 1 << 16
"""Numbers in the rows that cancel."""

Run = Callable[[Tensor], Tensor]

SUMS: dict[str, Run] = {
    "torch.sum": lambda x: x.sum(1),
    "plain": lambda x: ops.sum(x, 1, compensated=False, impl="triton"),
    "compensated": lambda x: ops.sum(x, 1, compensated=True, impl="triton"),
    "sum2": lambda x: ops.sum(x, 1, compensated="sum2", impl="triton"),
}
OTHERS: dict[str, tuple[Run, Run, Run]] = {
    "var, mean 1000 times the deviation": (
        lambda x: x.var(1),
        lambda x: ops.var(x, 1, compensated=True, impl="triton"),
        lambda x: x.var(1),
    ),
    "logsumexp": (
        lambda x: x.logsumexp(1),
        lambda x: ops.logsumexp(x, 1, compensated=True, impl="triton"),
        lambda x: x.logsumexp(1),
    ),
}


def main() -> None:
    """Measure, print a line a row, and write the figures and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    records = [
        *by_length(arguments.device),
        *by_condition(arguments.device),
        *others(arguments.device),
    ]
    result = {
        "machine": facts(),
        "device": arguments.device,
        **summary(records),
        "records": records,
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.plot:
        plot(result, arguments.plot)


def by_length(device: str) -> list[dict[str, Any]]:
    """Largest error of positive, equal and normal rows against their length."""
    records = []
    for n in LENGTHS:
        kinds = {
            "uniform in [0, 1)": torch.rand(ROWS, n),
            "all equal": torch.rand(ROWS, 1).expand(ROWS, n).contiguous(),
            "normal": torch.randn(ROWS, n),
        }
        for kind, x in kinds.items():
            records.append({"numbers": n, "rows": kind, **_errors(x, device)})
            print(json.dumps(records[-1]), flush=True)
    return records


def by_condition(device: str) -> list[dict[str, Any]]:
    """Largest error of rows that cancel, against how far."""
    records = []
    for condition in CONDITIONS:
        x = torch.stack([cancelling(_CANCELLING, condition) for _ in range(ROWS)])
        records.append(
            {
                "numbers": _CANCELLING,
                "rows": "cancelling",
                "condition": condition,
                **_errors(x, device),
            }
        )
        print(json.dumps(records[-1]), flush=True)
    return records


def others(device: str) -> list[dict[str, Any]]:
    """Relative errors of a variance and a log-sum-exp beside torch's, in float32's u."""
    records = []
    for n in LENGTHS:
        x = torch.randn(ROWS, n)
        inputs = {name: x * 0.01 + 10 if name.startswith("var") else x for name in OTHERS}
        for name, (theirs, ours, exact) in OTHERS.items():
            numbers = inputs[name].to(device)
            expected = exact(numbers.double())
            record = {"numbers": n, "operator": name}
            for label, run in (("torch", theirs), ("compensated", ours)):
                record[label] = float(ulps(run(numbers), expected).max())
            records.append(record)
            print(json.dumps(record), flush=True)
    return records


def cancelling(n: int, condition: float) -> Tensor:
    """[n] numbers, shuffled: pairs that cancel, and 1/condition of their magnitudes left over."""
    half = torch.randn(n // 2 - 1)
    rest = 2 * half.abs().double().sum() / condition
    x = torch.cat([half, -half, torch.stack([rest * 0.7, rest * 0.3]).float()])
    return x[torch.randperm(n)]


def _errors(x: Tensor, device: str) -> dict[str, Any]:
    exact = torch.tensor([math.fsum(row) for row in x.tolist()], dtype=torch.float64)
    size = torch.tensor([math.fsum(row) for row in x.abs().tolist()], dtype=torch.float64)
    found = {name: run(x.to(device)).cpu() for name, run in SUMS.items()}
    errors = {name: ulps(total, exact) for name, total in found.items()}
    return {
        "measured_condition": statistics.median((size / exact.abs()).tolist()),
        "ulps": {name: float(error.max()) for name, error in errors.items()},
        "median_ulps": {name: float(error.median()) for name, error in errors.items()},
    }


def summary(records: list[dict[str, Any]]) -> dict[str, float]:
    """Largest errors in ulp: of sum2 up to a condition of 1e6, of torch.sum beside it."""
    hard = [r for r in records if "ulps" in r and r["measured_condition"] < 2e6]
    found = {
        f"{name}_worst_ulps_to_1e6": max(r["ulps"][name] for r in hard)
        for name in ("sum2", "torch.sum")
    }
    print("  ".join(f"{name} {error:.3g}" for name, error in found.items()))
    return found


def plot(result: dict[str, Any], path: Path) -> None:
    """Errors against length and against condition, with where they were measured."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.2), sharey=True)
    records = [r for r in result["records"] if "ulps" in r]
    panels = (
        ("uniform in [0, 1)", "numbers", "numbers in a row"),
        ("all equal", "numbers", "numbers in a row"),
        ("cancelling", "condition", "condition number"),
    )
    for axis, (kind, key, label) in zip(axes, panels, strict=True):
        chosen = [r for r in records if r["rows"] == kind]
        for name, marker in zip(SUMS, "osvx", strict=True):
            # what is exact is drawn at the lower edge
            errors = [max(r["ulps"][name], 0.1) for r in chosen]
            axis.loglog([r[key] for r in chosen], errors, marker=marker, label=name)
        axis.set(title=f"rows {kind}", xlabel=label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("largest error, ulp of the exact sum (0.1 at least)")
    axes[0].legend()
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    where = machine.get("gpu", machine["cpu"])
    figure.text(
        0.01, 0.005, f"{machine['command']}; {where}; {versions}; {machine['date']}", fontsize=6
    )
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()

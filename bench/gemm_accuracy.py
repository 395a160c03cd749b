"""Error of a matrix product against the length of its sums, beside torch.matmul.

    python -m bench.gemm_accuracy [--device cuda] [--output FILE.json] [--plot FILE.png]

float32, 16 x 16 results, K from 1 024 to 1 048 576; the error is the norm of the difference from
float64 over the norm of the exact result. On a CPU the kernel runs as lowered for Ascend 910B3; on
a GPU torch.matmul multiplies in float32 too, not in tf32.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashasc import ops
from flashasc.testing import (
    ill_conditioned_factors,
    normal_factors,
    positive_factors,
    relative_error,
)

from .machine import facts

M = N = 16
LENGTHS = tuple(4**i for i in range(5, 11))
CONDITIONS = tuple(10.0**i for i in range(2, 8))
FACTORS: dict[str, Callable[[int, int, int], tuple[Tensor, Tensor]]] = {
    "positive": positive_factors,
    "normal": normal_factors,
    **{
        f"condition {condition:.0e}": partial(ill_conditioned_factors, condition=condition)
        for condition in CONDITIONS
    },
}
SHOWN = ("positive", "normal", "condition 1e+04")
"""What the plot has a panel of."""

Multiply = Callable[[Tensor, Tensor], Tensor]


def main() -> None:
    """Measure, print a table, and write the figures as JSON and as a plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    records = [
        record
        for data in FACTORS
        for K in LENGTHS
        for record in measure(data, K, torch.device(arguments.device))
    ]
    result = {
        "machine": facts(),
        "device": arguments.device,
        "M": M,
        "N": N,
        **summary(records),
        "records": records,
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.plot:
        plot(result, arguments.plot)


def implementations(device: torch.device) -> dict[str, Multiply]:
    """What is compared, by name."""
    ours: dict[str, Any] = {"kernel": "triton"}
    if device.type == "cpu":
        ours["reference"] = "reference"
    return {
        "torch.matmul": torch.matmul,
        **{
            f"{name}, {'compensated' if compensated else 'plain'}": partial(
                ops.matmul, compensated=compensated, impl=impl
            )
            for name, impl in ours.items()
            for compensated in (False, True)
        },
    }


def measure(data: str, K: int, device: torch.device) -> list[dict[str, Any]]:
    """Errors of every implementation on one input, as one record each."""
    a, b = FACTORS[data](M, N, K)
    exact = a.double() @ b.double()
    condition = float((a.double().abs() @ b.double().abs()).norm() / exact.norm())
    errors = {
        name: relative_error(multiply(a.to(device), b.to(device)).cpu(), exact)
        for name, multiply in implementations(device).items()
    }
    print(
        f"{data:<16} K {K:>7}  " + "  ".join(f"{name} {e:.2e}" for name, e in errors.items()),
        flush=True,
    )
    return [
        {"data": data, "K": K, "condition": condition, "implementation": name, "relative_error": e}
        for name, e in errors.items()
    ]


def summary(records: list[dict[str, Any]]) -> dict[str, float]:
    """Of the kernel on positive numbers: what compensation does for long sums."""
    errors = {
        (record["implementation"], record["K"]): record["relative_error"]
        for record in records
        if record["data"] == "positive"
    }
    compensated = {K: errors["kernel, compensated", K] for K in LENGTHS}
    found = {
        "compensated_longest_over_4096": compensated[LENGTHS[-1]] / compensated[4096],
        "plain_over_compensated_longest": errors["kernel, plain", LENGTHS[-1]]
        / compensated[LENGTHS[-1]],
    }
    print("  ".join(f"{name} {ratio:.2f}" for name, ratio in found.items()))
    return found


def plot(result: dict[str, Any], file: Path) -> None:
    """Draw a panel for each kind of data in SHOWN, with where the figures come from."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    panels = figure.subplots(1, len(SHOWN), sharex=True)
    for axes, data in zip(panels, SHOWN, strict=True):
        lines: dict[str, list[tuple[int, float]]] = {}
        for record in result["records"]:
            if record["data"] == data:
                point = (record["K"], record["relative_error"])
                lines.setdefault(record["implementation"], []).append(point)
        for name, points in lines.items():
            style = "-" if "compensated" in name else "--"
            axes.loglog(*zip(*points, strict=True), style, marker="o", label=name, base=2)
        axes.set_yscale("log", base=10)
        axes.set_title(data)
        axes.set_xlabel("K")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("relative error against float64")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    machine = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    figure.suptitle("Error of a float32 product against the length of its sums")
    figure.text(0.5, -0.04, machine, ha="center", fontsize=6)
    figure.savefig(file, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()

"""What each precision level makes of 16-bit inputs: on a CPU, the kernel as lowered for Ascend.

    python -m bench.cpu_precision [--output FILE]

One head, 64 queries, D = 64, scores from standard normal q and k; against float64.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import flashasc
from flashasc._problem import Precision
from flashasc.testing import (
    Case,
    Inputs,
    exact_attention,
    normal,
    positive,
    relative_error,
    share_correctly_rounded,
    sink,
)

from .machine import facts

KEYS = (1024, 16384, 65536)
PRECISIONS: tuple[Precision, ...] = ("standard", "compensated", "high")
INPUTS: dict[str, Callable[[Case], Inputs]] = {
    "V normal": normal,
    "V in [0, 1)": positive,
    "a key 14 nats above the rest": lambda case: sink(case, nats=14.0),
}


def main() -> None:
    """Measure, print a line a record, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    records = [
        measure(dtype, keys, inputs)
        for dtype in (torch.float16, torch.bfloat16)
        for keys in KEYS
        for inputs in INPUTS
    ]
    for record in records:
        print(json.dumps(record), flush=True)
    if arguments.output:
        result = {"machine": facts(), "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def measure(dtype: torch.dtype, keys: int, inputs: str) -> dict[str, Any]:
    """Relative error and share of correctly rounded outputs, by precision level."""
    tensors = INPUTS[inputs](Case(Hq=1, Sq=64, Sk=keys, D=64, dtype=dtype))
    exact = exact_attention(*tensors).out
    record: dict[str, Any] = {
        "dtype": str(dtype).removeprefix("torch."),
        "keys": keys,
        "inputs": inputs,
    }
    for precision in PRECISIONS:
        out = flashasc.attention(*tensors, precision=precision, impl="triton")
        record[f"{precision}, correctly rounded"] = share_correctly_rounded(out, exact)
        record[f"{precision}, relative error"] = relative_error(out, exact)
    return record


if __name__ == "__main__":
    main()

"""Error of long rows on a CPU, the kernel as lowered for Ascend, beside PyTorch's SDPA.

    python -m bench.cpu_long_rows [--output FILE]

float32, one head, 64 queries, D = 64, V uniform in [0, 1), at both levels of lowering; the error is
the norm of the difference from float64 over the norm of the exact result.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch.nn.functional as F

import flashasc
from flashasc.testing import Case, Inputs, exact_attention, positive, relative_error, rising

from .machine import facts

KEYS = (1024, 65536, 262144)


def main() -> None:
    """Measure, print a line a row of the table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    records = [
        measure(keys, scores, inputs)
        for keys in KEYS
        for scores, inputs in score_kinds(Case(Hq=1, Sq=64, Sk=keys, D=64)).items()
    ]
    for record in records:
        print(json.dumps(record), flush=True)
    if arguments.output:
        result = {"machine": facts(), "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def score_kinds(case: Case) -> dict[str, Inputs]:
    """Inputs by how their scores run along the keys."""
    return {
        "random": positive(case),
        "rising by 1 log2 unit": rising(case, log2_units=1.0),
        "rising by 50 log2 units": rising(case, log2_units=50.0),
    }


def measure(keys: int, scores: str, inputs: Inputs) -> dict[str, Any]:
    """Relative errors of SDPA and of both precision levels at both levels of lowering."""
    exact = exact_attention(*inputs).out
    record: dict[str, Any] = {"keys": keys, "scores": scores}
    record["SDPA"] = relative_error(F.scaled_dot_product_attention(*inputs), exact)
    for level in ("linalg", "hfusion"):
        os.environ["FLASHASC_NATIVE_LEVEL"] = level
        for precision in ("standard", "compensated"):
            out = flashasc.attention(*inputs, precision=precision, impl="triton")
            record[f"{precision}, {level}"] = relative_error(out, exact)
    return record


if __name__ == "__main__":
    main()

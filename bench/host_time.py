"""Host time per call on small inputs: what a call costs before the device has anything to do.

    python -m bench.host_time [--output FILE]

Beside `F.scaled_dot_product_attention`, eager and compiled. On a GPU the calls are timed without
waiting for the device, whose work is shorter; on a CPU the work is part of the time, and the
reference is what runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import flashasc
from flashasc.testing import Case, normal, relative_error

from .machine import facts

CASES = {
    "prefill": Case(B=1, Hq=8, Hk=8, Sq=64, Sk=64, D=64, dtype=torch.float16),
    "decode": Case(B=1, Hq=8, Hk=8, Sq=1, Sk=64, D=64, dtype=torch.float16),
}


def main() -> None:
    """Measure, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    records = [r for name, case in CASES.items() for r in measure(name, case, device)]
    if arguments.output:
        result = {"machine": facts(), "device": device, "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def measure(name: str, case: Case, device: str) -> list[dict[str, Any]]:
    """Host time of each way to call, as multiples of SDPA's in the same mode."""
    q, k, v = normal(case, device=device)
    lens = torch.full((case.B,), case.Sk, dtype=torch.int32, device=device)
    cache = flashasc.KVCache(k, v, lens)
    calls: dict[str, Callable[[], Any]] = {
        "SDPA": lambda: F.scaled_dot_product_attention(q, k, v),
        "flashasc.attention": lambda: flashasc.attention(q, k, v),
    }
    if name == "decode":
        calls["flashasc.decode"] = lambda: flashasc.decode(q, cache)
    records = []
    for mode in ("eager", "compiled"):
        sdpa = 0.0
        for label, call in calls.items():
            run = call if mode == "eager" else torch.compile(call, fullgraph=True)
            with torch.no_grad():
                error = relative_error(run(), calls["SDPA"]().double())
                assert error < 0.01, f"{label}, {mode}: relative error {error}"
                seconds = host_time(run, device)
            sdpa = sdpa or seconds
            record = {
                "case": name, "mode": mode, "call": label, "seconds": seconds,
                "times_sdpa": seconds / sdpa,
            }  # fmt: skip
            print(
                f"{name:<8} {mode:<9} {label:<20} {seconds * 1e6:8.1f} us  "
                f"{seconds / sdpa:5.2f} x SDPA",
                flush=True,
            )
            records.append(record)
    return records


def host_time(run: Callable[[], object], device: str, calls: int = 200, rounds: int = 7) -> float:
    """Median seconds of a call, of several rounds of calls one after another."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(20):
        run()
    times = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        times.append((time.perf_counter() - start) / calls)
        wait()
    return sorted(times)[rounds // 2]


if __name__ == "__main__":
    main()

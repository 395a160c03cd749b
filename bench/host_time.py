"""Host time per call on small inputs: what a call costs before the device has anything to do.

    python -m bench.host_time [--rounds N] [--calls N] [--output FILE]

Beside `F.scaled_dot_product_attention`, eager and compiled. The ways to call take turns, a few
calls each, and what is compared is the turns of one round: whatever else the machine does slows
them alike. On a GPU the calls are timed without waiting for the device, whose work is shorter; on a
CPU the work is part of the time, and the reference is what runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
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
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--calls", type=int, default=30, help="of each way to call, in a round")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    records = [
        record
        for name, case in CASES.items()
        for record in measure(name, case, device, arguments.rounds, arguments.calls)
    ]
    if arguments.output:
        result = {
            "machine": facts(),
            "device": device,
            "rounds": arguments.rounds,
            "calls": arguments.calls,
            "records": records,
        }
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def measure(name: str, case: Case, device: str, rounds: int, calls: int) -> list[dict[str, Any]]:
    """Host time of each way to call, as multiples of SDPA's in the same mode and round."""
    q, k, v = normal(case, device=device)
    lens = torch.full((case.B,), case.Sk, dtype=torch.int32, device=device)
    cache = flashasc.KVCache(k, v, lens)
    ways: dict[str, Callable[[], Any]] = {
        "SDPA": lambda: F.scaled_dot_product_attention(q, k, v),
        "flashasc.attention": lambda: flashasc.attention(q, k, v),
    }
    if name == "decode":
        ways["flashasc.decode"] = lambda: flashasc.decode(q, cache)
    records = []
    for mode in ("eager", "compiled"):
        runs = {
            label: call if mode == "eager" else torch.compile(call, fullgraph=True)
            for label, call in ways.items()
        }
        with torch.no_grad():
            exact = ways["SDPA"]().double()
            for label, run in runs.items():
                error = relative_error(run(), exact)
                assert error < 0.01, f"{label}, {mode}: relative error {error}"
            times = host_times(runs, device, rounds, calls)
        for label, seconds in times.items():
            ratios = [ours / sdpa for ours, sdpa in zip(seconds, times["SDPA"], strict=True)]
            low, high = middle_half(ratios)
            record = {
                "case": name, "mode": mode, "call": label, "seconds": median(seconds),
                "times_sdpa": median(ratios), "middle_half": (low, high),
            }  # fmt: skip
            print(
                f"{name:<8} {mode:<9} {label:<20} {median(seconds) * 1e6:8.1f} us  "
                f"{median(ratios):5.2f} x SDPA, half of the rounds {low:.2f} to {high:.2f}",
                flush=True,
            )
            records.append(record)
    return records


def host_times(
    runs: dict[str, Callable[[], object]], device: str, rounds: int, calls: int
) -> dict[str, list[float]]:
    """Seconds of a call of each way, round by round; each round in another order."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for run in runs.values():
        for _ in range(20):
            run()
    times: dict[str, list[float]] = {label: [] for label in runs}
    order = list(runs)
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            order = [*order[1:], order[0]]
            for label in order:
                run = runs[label]
                wait()
                start = time.perf_counter()
                for _ in range(calls):
                    run()
                times[label].append((time.perf_counter() - start) / calls)
        wait()
    finally:
        if collects:
            gc.enable()
    return times


def middle_half(values: Sequence[float]) -> tuple[float, float]:
    """What half of the values lie between: the first and the third quartile."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


if __name__ == "__main__":
    main()

"""Time of the CPU's routes side by side: native, interpreter, reference, and PyTorch's SDPA.

    python -m bench.cpu_routes [--output FILE]

Two comparisons, each within one run: the kernel natively against the kernel in Triton's
interpreter (1 x 4 x 512 x 64, float16, causal), and the reference against
`F.scaled_dot_product_attention` (1 x 8 x 2048 x 64, float32). Every implementation is checked
against float64 before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import flashasc

from .machine import facts

ERROR_LIMIT = {torch.float16: 2e-3, torch.float32: 2e-6}
"""Largest absolute error on standard normal inputs: about two units in the last place."""


def main() -> None:
    """Measure, print the ratios, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--interpreted", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.interpreted:
        print(json.dumps(kernel_seconds(runs=3)))
        return
    records = [*kernel_against_interpreter(), *reference_against_sdpa()]
    for record in records:
        print(
            f"{record['case']}: {record['name']} {record['seconds'] * 1e3:.1f} ms, "
            f"{record['peer']} {record['peer_seconds'] * 1e3:.1f} ms, "
            f"time ratio {record['seconds'] / record['peer_seconds']:.4f}"
        )
    if arguments.output:
        result = {"machine": facts(), "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def kernel_against_interpreter() -> list[dict[str, Any]]:
    """The same kernel, natively here and interpreted in a process of its own."""
    seconds = kernel_seconds(runs=30)
    # a kernel is interpreted or not from its decoration on
    child = subprocess.run(
        [sys.executable, "-m", "bench.cpu_routes", "--interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    interpreted = json.loads(child.stdout.splitlines()[-1])
    case = "1 x 4 x 512 x 64 float16 causal"
    return [
        {
            "case": f"{case}, {precision}",
            "name": "native",
            "seconds": seconds[precision],
            "peer": "interpreter",
            "peer_seconds": interpreted[precision],
        }
        for precision in seconds
    ]


def kernel_seconds(runs: int) -> dict[str, float]:
    """Median time of the kernel by precision, by whatever route this process runs it."""
    q, k, v = inputs((1, 4, 512, 64), torch.float16)
    return {
        precision: timed(
            lambda precision=precision: flashasc.attention(  # type: ignore[misc]
                q, k, v, causal=True, precision=precision, impl="triton"
            ),
            (q, k, v),
            causal=True,
            runs=runs,
        )
        for precision in ("standard", "compensated")
    }


def reference_against_sdpa() -> list[dict[str, Any]]:
    """The plain PyTorch reference beside PyTorch's fused CPU kernel."""
    q, k, v = inputs((1, 8, 2048, 64), torch.float32)
    records: list[dict[str, Any]] = []
    for causal in (False, True):
        peer = timed(
            lambda causal=causal: F.scaled_dot_product_attention(q, k, v, is_causal=causal),  # type: ignore[misc]
            (q, k, v),
            causal,
        )
        for precision in ("standard", "compensated"):
            seconds = timed(
                lambda causal=causal, precision=precision: flashasc.attention(  # type: ignore[misc]
                    q, k, v, causal=causal, precision=precision, impl="reference"
                ),
                (q, k, v),
                causal,
            )
            records.append(
                {
                    "case": f"1 x 8 x 2048 x 64 float32{' causal' if causal else ''}, {precision}",
                    "name": "reference",
                    "seconds": seconds,
                    "peer": "SDPA",
                    "peer_seconds": peer,
                }
            )
    return records


def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Standard normal q, k, v of one shape, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))
    return q, k, v


def timed(
    run: Callable[[], Tensor], qkv: tuple[Tensor, Tensor, Tensor], causal: bool, runs: int = 15
) -> float:
    """Median seconds of a call whose result is right."""
    q, k, v = (x.double() for x in qkv)
    exact = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    out = run()
    error = (out.double() - exact).abs().max().item()
    if error > ERROR_LIMIT[out.dtype]:
        raise AssertionError(f"not timed: off by {error:.1e} from float64")
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()

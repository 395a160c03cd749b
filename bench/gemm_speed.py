"""Speed of bf16 matrix products on a GPU, beside cuBLAS, in one run.

    python -m bench.gemm_speed [--size 8192] [--tune] [--output FILE.json]

Each result is checked against float64 on a sample of rows before it is timed; a wrong one is not
timed. Times are medians of `triton.testing.do_bench`. --tune times the candidates below instead of
the rows of the tile table.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashasc import ops
from flashasc._configs import GemmTile, choose_gemm
from flashasc._gemm_problem import GemmProblem, gemm_problem
from flashasc._target import target_of

from .gpu_time import precompile
from .machine import facts

# block_m, block_n, block_k, num_warps, num_stages
PLAIN = (
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (256, 128, 64, 8, 4),
    (128, 128, 64, 4, 4), (128, 128, 64, 8, 3), (128, 128, 128, 8, 3),
)  # fmt: skip
COMPENSATED = (
    (128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 8, 5), (128, 128, 128, 8, 2),
    (128, 128, 128, 8, 3), (64, 256, 64, 8, 3), (64, 256, 64, 8, 4), (256, 64, 64, 8, 4),
    (64, 128, 64, 4, 4), (64, 256, 64, 4, 4), (128, 128, 64, 4, 4),
)  # fmt: skip
# two tiles of sums do not fit in registers: between segments the compiler parks one of them
PARKED = (
    (128, 256, 64, 8, 2), (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3),
    (256, 128, 64, 8, 4), (128, 256, 64, 16, 3), (128, 256, 128, 8, 2),
)  # fmt: skip
SEGMENTS_K = (512, 1024, 2048)
PARKED_SEGMENTS_K = (1024, 2048, 4096)
GROUPS = (8, 16)
SAMPLE = 32
"""Rows on which a result is checked."""


def main() -> None:
    """Check, time, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    size = arguments.size
    if arguments.tune:
        precompile(partial(_runs, size))
    a, b = factors(size)
    exact = a[:SAMPLE].double() @ b.double()
    records = [measure("cuBLAS", lambda: torch.matmul(a, b), size, exact)]
    runs = candidates(a, b) if arguments.tune else table(a, b)
    rep = 100 if arguments.tune else 300
    records += [measure(name, run, size, exact, rep) for name, run in runs]
    best = summary(records)
    if arguments.output:
        result = {"machine": facts(), "size": size, "dtype": "bfloat16", "records": records, **best}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


Run = Callable[[], Tensor]


def factors(size: int) -> tuple[Tensor, Tensor]:
    """Two square matrices of positive bfloat16 numbers."""
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (
        torch.rand(size, size, generator=generator, device="cuda", dtype=torch.float32).bfloat16()
        for _ in range(2)
    )
    return a, b


def _runs(size: int) -> list[Run]:
    return [run for _, run in candidates(*factors(size))]


def table(a: Tensor, b: Tensor) -> Iterator[tuple[str, Run]]:
    """The product as it is shipped, with plain and with compensated sums."""
    for compensated in (False, True):
        name = "compensated" if compensated else "plain"
        yield name, lambda compensated=compensated: ops.matmul(a, b, compensated=compensated)  # type: ignore[misc]


def candidates(a: Tensor, b: Tensor) -> Iterator[tuple[str, Run]]:
    """Tiles that might be better ones."""
    target = target_of(a.device)
    for compensated in (False, True):
        problem = gemm_problem(a, b, None, None, None, compensated, "ieee", a.dtype)
        shipped = choose_gemm(problem, target)
        for shape, segment_k, group in _choices(compensated):
            block_m, block_n, block_k, num_warps, num_stages = shape
            row = replace(
                shipped,
                block_m=block_m,
                block_n=block_n,
                block_k=block_k,
                num_warps=num_warps,
                num_stages=num_stages,
                group=group,
                segment=segment_k // block_k if compensated else 1,
            )
            name = "compensated" if compensated else "plain"
            name += f" {block_m}x{block_n}x{block_k} {num_warps} warps {num_stages} stages"
            name += f" group {group}" + f" segment {segment_k}" * compensated
            yield name, with_row(a, b, problem, row)


def _choices(compensated: bool) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Shape, products a segment, and group."""
    if compensated:
        yield from itertools.product(COMPENSATED, SEGMENTS_K, GROUPS[:1])
        yield from itertools.product(PARKED, PARKED_SEGMENTS_K, GROUPS[:1])
    else:
        yield from itertools.product(PLAIN, (0,), GROUPS)


def with_row(a: Tensor, b: Tensor, problem: GemmProblem, row: GemmTile) -> Run:
    """The product with a row that need not be in the table."""
    from flashasc.kernels.gemm_launch import launch_gemm

    def run() -> Tensor:
        out = a.new_empty(problem.shape)
        launch_gemm(a, b, None, None, out, problem, row, target_of(a.device), "device")
        return out

    return run


def measure(name: str, run: Run, size: int, exact: Tensor, rep: int = 300) -> dict[str, Any]:
    """Check a result on some rows, then time it; what is wrong or does not run has no time."""
    from triton.testing import do_bench

    record: dict[str, Any] = {"implementation": name}
    try:
        out = run()[:SAMPLE].double()
        record["relative_error"] = float((out - exact).norm() / exact.norm())
        # a rounding to bf16 is 2**-9 at most; cuBLAS's truncating sums lose less than that again
        if not record["relative_error"] <= 2.0**-8:
            record["failed"] = "wrong"
        else:
            record["ms"] = float(do_bench(run, warmup=50, rep=rep, return_mode="median"))
            record["tflops"] = 2 * size**3 / record["ms"] / 1e9
    except Exception as failure:
        # out of shared memory, or a tile that the compiler refuses: the next one may do
        record["failed"] = str(failure).splitlines()[0]
    speed = f"{record['tflops']:7.1f} TFLOP/s" if "tflops" in record else record["failed"]
    print(f"{name:<72} {speed}  error {record.get('relative_error', float('nan')):.2e}", flush=True)
    return record


def summary(records: list[dict[str, Any]]) -> dict[str, float]:
    """Ratios of the best of each kind, in this run."""
    best = {
        kind: max(
            (
                r["tflops"]
                for r in records
                if "tflops" in r and r["implementation"].startswith(kind)
            ),
            default=float("nan"),
        )
        for kind in ("cuBLAS", "plain", "compensated")
    }
    ratios = {
        "plain_of_cublas": best["plain"] / best["cuBLAS"],
        "compensated_of_plain": best["compensated"] / best["plain"],
    }
    print("  ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()))
    return ratios


if __name__ == "__main__":
    main()

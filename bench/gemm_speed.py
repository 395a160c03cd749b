"""Speed of bf16 matrix products on a GPU, beside cuBLAS, in one run.

    python -m bench.gemm_speed [--size 8192] [--tune] [--output FILE.json]

Each result is checked against float64 on a sample of rows before it is timed; a wrong one is not
timed. Times are medians of `triton.testing.do_bench`, taken of all in turn, ROUNDS times. --tune
times the candidates below, once, instead of the rows of the tile table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
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

from .compile_ahead import precompile
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
ROUNDS = 5
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
    runs = [("cuBLAS", partial(torch.matmul, a, b))]
    if arguments.tune:
        records = measure([*runs, *candidates(a, b)], size, exact, rounds=1, rep=100)
    else:
        records = measure([*runs, *table(a, b)], size, exact, rounds=ROUNDS, rep=200)
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


def measure(
    runs: Iterable[tuple[str, Run]], size: int, exact: Tensor, *, rounds: int, rep: int
) -> list[dict[str, Any]]:
    """Check results on some rows, then time them; what is wrong or does not run has no time.

    Args:
        runs: what to time, by name.
        size: of the matrices.
        exact: the first rows of the result.
        rounds: how often all are timed in turn, so that a clock that falls is none's advantage.
        rep: milliseconds that one timing takes.
    """
    rows = [({"implementation": name}, run) for name, run in runs]
    for turn in range(rounds):
        for record, run in rows:
            if turn == 0:
                check(record, run, exact)
            if "failed" not in record:
                time_once(record, run, rep)
            if turn == rounds - 1:
                report(record, size)
    return [record for record, _ in rows]


def check(record: dict[str, Any], run: Run, exact: Tensor) -> None:
    """Note the error of a result, and that it failed if it is wrong."""
    try:
        out = run()[:SAMPLE].double()
    except Exception as failure:
        # out of shared memory, or a tile that the compiler refuses: the next one may do
        record["failed"] = str(failure).splitlines()[0]
        return
    record["relative_error"] = float((out - exact).norm() / exact.norm())
    # a rounding to bf16 is 2**-9 at most; cuBLAS's truncating sums lose less than that again
    if not record["relative_error"] <= 2.0**-8:
        record["failed"] = "wrong"


def time_once(record: dict[str, Any], run: Run, rep: int) -> None:
    """Note a time of a product."""
    from triton.testing import do_bench

    found = float(do_bench(run, warmup=50, rep=rep, return_mode="median"))
    record.setdefault("all_ms", []).append(found)


def report(record: dict[str, Any], size: int) -> None:
    """Print a line of the table."""
    speed = record.get("failed", "")
    if "all_ms" in record:
        record["ms"] = statistics.median(record["all_ms"])
        record["tflops"] = 2 * size**3 / record["ms"] / 1e9
        speed = f"{record['tflops']:7.1f} TFLOP/s"
    error = record.get("relative_error", float("nan"))
    print(f"{record['implementation']:<72} {speed}  error {error:.2e}", flush=True)


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

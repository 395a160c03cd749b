"""Search the tiles and schedules of attention for this GPU.

    python -m bench.tune [--budget SECONDS] [--only 128,packed] [--output FILE.json]

Candidate rows are compiled first, many at a time. Each then has to pass the suites' gate (see
`bench.gate`) on the very case it is timed on and on other seeds, with the same bits twice; one that
does not is not timed. Beside the speed stands the error of rows of 1 048 576 keys. Times are
medians of `triton.testing.do_bench`. A row serves causal and full attention alike, dense and
packed: the best one has the best geometric mean. A window may have a row of its own. Write it into
`flashasc/_configs/hopper.py`, with what this printed as its source.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from flashasc._configs import TileConfig, choose
from flashasc._target import target_of

from .machine import facts
from .tune_calls import Kind, inputs, launch, long_row, problem_and_result, problem_of

KINDS = (
    Kind("bf16", 128, "standard"), Kind("bf16", 128, "compensated"), Kind("bf16", 128, "high"),
    Kind("bf16", 64, "standard"), Kind("bf16", 64, "compensated"), Kind("bf16", 64, "high"),
    Kind("bf16", 256, "standard", heads=16), Kind("bf16", 256, "compensated", heads=16),
    Kind("bf16", 256, "high", heads=16),
    Kind("fp16", 128, "standard"), Kind("fp16", 128, "compensated"),
    Kind("fp32", 64, "compensated", heads=8), Kind("fp32", 64, "standard", heads=8),
    Kind("bf16", 128, "standard", 1 << 16, 16, "packed"),
    Kind("bf16", 128, "compensated", 1 << 16, 16, "packed"),
    Kind("bf16", 128, "standard", 1 << 15, 32, "window"),
    Kind("bf16", 128, "compensated", 1 << 15, 32, "window"),
)  # fmt: skip

# block_m, block_n, num_warps, num_stages, max_registers
Shape = tuple[int, int, int, int, int | None]
SHAPES: dict[int, tuple[Shape, ...]] = {
    64: ((128, 64, 8, 3, 128), (128, 64, 4, 3, 168), (64, 128, 4, 2, 168), (128, 128, 8, 3, None),
         (128, 64, 4, 3, None), (64, 128, 4, 2, None)),
    128: ((128, 64, 4, 2, None), (128, 64, 8, 2, 128), (128, 128, 8, 2, None),
          (64, 64, 4, 2, None), (128, 64, 8, 3, None), (128, 128, 8, 3, None),
          (256, 64, 16, 2, 128), (256, 64, 16, 3, 128)),
    256: ((128, 64, 8, 2, None), (128, 32, 8, 3, None), (64, 64, 8, 2, None)),
}  # fmt: skip
SHAPES_32_BIT: tuple[Shape, ...] = ((64, 64, 4, 2, None), (128, 64, 8, 2, None))
SEGMENT_KEYS = (1024, 2048, 4096)
"""What a tensor core adds up before it is folded into the compensated sum."""
SEEDS = 3
PRODUCTS_32_BIT = ("bf16x6", "tf32x3")


def main() -> None:
    """Compile, check, time, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=240.0)
    parser.add_argument("--only", default="", help="head size, dtype, precision, call: any of them")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    stop = time.monotonic() + arguments.budget
    wanted = set(filter(None, arguments.only.split(",")))
    kinds = [k for k in KINDS if wanted <= {k.dtype, str(k.D), k.precision, k.call}]
    # the first candidates of each kind come first: what a short budget leaves out is the last
    lists = [[(kind, row) for row in dict.fromkeys(candidates(kind))] for kind in kinds]
    tasks = [t for i in range(max(map(len, lists))) for entry in lists for t in entry[i : i + 1]]
    records: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    # a pool each: a compiler that crashes takes its whole pool along
    pools = [ProcessPoolExecutor(1, mp_context=context) for _ in range(arguments.workers)]
    built = [
        (kind, row, pools[i % len(pools)].submit(compile_candidate, kind, row))
        for i, (kind, row) in enumerate(tasks)
    ]
    # timed once all is compiled, or half the budget spent: a busy machine times badly
    wait([future for _, _, future in built], timeout=arguments.budget / 2)
    for pool in pools:
        processes = list(pool._processes.values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
    done = [entry for entry in built if entry[2].done() and not entry[2].cancelled()]
    print(f"{len(done)} of {len(built)} candidates compiled", flush=True)
    for kind, row, future in done:
        if time.monotonic() < stop:
            failed = future.exception()
            records.append(measure(kind, row, str(failed) if failed else future.result()))
    summary(records, kinds)
    print(f"{len(records)} of {len(tasks)} candidates were tried")
    if arguments.output:
        result = {"machine": facts(), "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def candidates(kind: Kind) -> Iterator[TileConfig]:
    """The shipped row, and rows that might be better."""
    case = kind.case(causal=True, small=True)
    _, problem, _ = problem_of(case, kind.precision, inputs(case, "cpu"))
    shipped = choose(problem, target_of(torch.device("cuda")))
    yield shipped
    if shipped.descriptors and kind.D == 128:
        yield replace(shipped, descriptors=False)
    if kind.precision == "standard":
        yield replace(shipped, settle=not shipped.settle)
        yield replace(shipped, described_edges=not shipped.described_edges)
    else:
        # what longer segments lose, and save
        yield replace(shipped, segment=1)
    if kind.dtype == "fp32":
        yield replace(shipped, dot_precision="ieee")
        for shape, dot_precision in product(SHAPES_32_BIT, PRODUCTS_32_BIT):
            yield with_shape(shipped, shape, dot_precision=dot_precision, segment=1)
        return
    for shape in SHAPES[kind.D]:
        if kind.dtype == "fp16" and shape not in SHAPES[kind.D][:3]:
            continue
        if kind.precision == "standard":
            yield with_shape(shipped, shape, descriptors=True, settle=shape[4] is not None)
        elif shape != SHAPES[128][0]:
            # whose accumulators and their compensation are all the registers that there are
            for keys in SEGMENT_KEYS if kind.call == "dense" else SEGMENT_KEYS[:1]:
                yield with_shape(
                    shipped, shape, descriptors=True, pairs=True, segment=keys // shape[1],
                    comp_dtype=torch.float32,
                )  # fmt: skip


def with_shape(row: TileConfig, shape: Shape, **changes: Any) -> TileConfig:
    """A row with another tile and schedule."""
    block_m, block_n, num_warps, num_stages, max_registers = shape
    return replace(
        row, block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages,
        max_registers=max_registers, **changes,
    )  # fmt: skip


def name_of(row: TileConfig) -> str:
    """What distinguishes a candidate, in short."""
    name = f"{row.block_m}x{row.block_n} {row.num_warps}w {row.num_stages}s"
    name += f" r{row.max_registers}" if row.max_registers else ""
    name += " descriptors" if row.descriptors else ""
    name += " of whole tiles" if row.descriptors and not row.described_edges else ""
    name += f" segment {row.segment}" if row.segment > 1 else ""
    name += " pairs" if row.pairs else ""
    name += " settle" if row.settle else ""
    return name + (f" {row.dot_precision}" if row.dtype == torch.float32 else "")


def compile_candidate(kind: Kind, row: TileConfig) -> str | None:
    """Put a candidate's kernels into Triton's cache; returns why that failed, if it did."""
    try:
        for causal in kind.masks.values():
            case = kind.case(causal=causal, small=True)
            given = inputs(case, "cuda")
            launch(case, kind.precision, row, given, torch.empty_like(given.q))
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return None


def measure(kind: Kind, row: TileConfig, failure: str | None) -> dict[str, Any]:
    """Check a candidate, then time it; what is wrong or does not compile has no time."""
    from triton.testing import do_bench

    record: dict[str, Any] = asdict(kind) | {"candidate": name_of(row)}
    try:
        if failure:
            raise RuntimeError(failure)
        record |= long_row(kind, row)
        record["error"] = max(check(kind, row, seed) for seed in range(SEEDS))
        for name, causal in kind.masks.items():
            case = kind.case(causal=causal)
            given, _ = problem_and_result(alike(kind), causal, 0)
            out = torch.empty_like(given.q)
            ms = do_bench(
                lambda case=case, given=given, out=out: launch(
                    case, kind.precision, row, given, out
                ),
                warmup=20, rep=80, return_mode="median",
            )  # fmt: skip
            record[name] = case.flops() / float(ms) / 1e9
    except Exception as error:
        record["failed"] = (str(error).splitlines() or [repr(error)])[0][:120]
    return record


def alike(kind: Kind) -> Kind:
    """The kind whose inputs and right results are the same."""
    return replace(kind, precision="standard")


def check(kind: Kind, row: TileConfig, seed: int) -> float:
    """Fail unless a candidate is right, and the same bits each time; its largest relative error."""
    worst = 0.0
    for causal in kind.masks.values():
        given, expected = problem_and_result(alike(kind), causal, seed)
        out, again = torch.empty_like(given.q), torch.empty_like(given.q)
        for result in (out, again):
            launch(kind.case(causal=causal), kind.precision, row, given, result)
        worst = max(worst, expected.check(out).relative_error)
        if not torch.equal(out, again):
            raise RuntimeError("wrong: other bits the second time")
    return worst


def summary(records: list[dict[str, Any]], kinds: list[Kind]) -> None:
    """Every candidate of each kind, the fastest first."""
    for kind in kinds:
        print(
            f"\n{kind.dtype} D={kind.D} {kind.precision}, {kind.call}, {kind.length} keys, TFLOP/s:"
        )
        rows = [r for r in records if asdict(kind).items() <= r.items()]
        for r in sorted(rows, key=lambda r: -r.get("causal", 0) * r.get("full", 1)):
            if "failed" in r:
                print(f"  {r['candidate']:<44} {r['failed']}")
            else:
                speeds = "".join(f"{name} {r[name]:6.1f}  " for name in kind.masks)
                print(
                    f"  {r['candidate']:<44} {speeds}"
                    f"error {r['error']:.2e}  1M keys: error {r['long_row_error']:.1e}, "
                    f"rounded right {r['long_row_correct']:.2%}"
                )


if __name__ == "__main__":
    main()

"""How attention grows with the sequence, and what its first call costs.

    python -m bench.scaling [--keys N ...] [--output FILE]

Time should follow Sq x Sk, and memory be the inputs, the output and the log-sum-exps. The first
call of a process compiles or reads what an earlier process compiled; a new length does neither. On
a CPU the kernel as lowered for Ascend is measured, and no memory.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import torch

import flashasc
from flashasc._problem import Precision
from flashasc.testing import Case, normal

from .machine import facts
from .timing import median_time

HEADS = {"cuda": 16, "cpu": 1}
KEYS = {"cuda": [4096 << i for i in range(6)], "cpu": [256, 512, 1024]}
FIRST = {"cuda": (4096, 4096, 4224, 5000, 8191), "cpu": (256, 256, 264, 300, 511)}
"""Lengths of the first calls of a process: the same one twice, then new ones."""
PRECISIONS = get_args(Precision)
D = 128
CACHES = ("TRITON_CACHE_DIR", "FLASHASC_CACHE_DIR")
"""Variables that say where a process looks for what was compiled before."""


def main() -> None:
    """Measure, print, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", help="lengths, the shortest first")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--first-call", choices=PRECISIONS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.first_call:
        print(json.dumps(first_call(arguments.first_call, device)))
        return
    keys = arguments.keys or KEYS[device]
    records: list[dict[str, Any]] = []
    for precision in PRECISIONS:
        with tempfile.TemporaryDirectory() as folder:
            for disk in ("empty", "filled"):
                records.append(in_process(precision, folder) | {"disk cache": disk})
                print(records[-1], flush=True)
        for causal in (False, True):
            lengths = [length(n, precision, causal, device) for n in keys]
            for record in lengths:
                # 1 where time follows Sq x Sk from the shortest on
                record["growth"] = (record["seconds"] / lengths[0]["seconds"]) / (
                    record["keys"] / lengths[0]["keys"]
                ) ** 2
                print(record, flush=True)
            records += lengths
    if arguments.output:
        result = {"machine": facts(), "heads": HEADS[device], "D": D, "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def length(keys: int, precision: str, causal: bool, device: str) -> dict[str, Any]:
    """Time of one length, and memory beyond the inputs, the output and the log-sum-exps."""
    q, k, v = normal(_case(keys, device), device=device)
    options: dict[str, Any] = {"precision": precision, "causal": causal, "return_lse": True}

    def run() -> Any:
        return flashasc.attention(q, k, v, impl="triton", **options)

    record: dict[str, Any] = {"precision": precision, "causal": causal, "keys": keys}
    if device == "cuda":
        run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        needed = sum(t.numel() * t.element_size() for t in (q, k, v, *results))
        own = sum(t.numel() * t.element_size() for t in results)
        record["extra_memory"] = (peak - own) / needed
        del results
    record["seconds"] = median_time(run, repeats=10, device=device, warmup=2)
    return record


def in_process(precision: str, caches: str) -> dict[str, Any]:
    """`first_call` in a process of its own, with these caches on disk."""
    environment = os.environ | dict.fromkeys(CACHES, caches)
    command = [sys.executable, "-m", "bench.scaling", "--first-call", precision]
    done = subprocess.run(
        command, env=environment, check=True, text=True, stdout=subprocess.PIPE, timeout=300
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def first_call(precision: str, device: str) -> dict[str, Any]:
    """Seconds of this process's first call, of the same again, and of one each of new lengths.

    Returns:
        precision; "import", "first call", "second call" and "new lengths", in seconds: of importing
        Triton, and of calls, the last the slowest one; "compiled for new lengths", files that the
        new lengths added to the caches.
    """
    start = time.perf_counter()
    importlib.import_module("triton")
    imported = time.perf_counter() - start
    options: dict[str, Any] = {"precision": precision, "causal": True, "impl": "triton"}
    calls = [normal(_case(keys, device), device=device) for keys in FIRST[device]]
    seconds, files = [], []
    for q, k, v in calls:
        start = time.perf_counter()
        out = flashasc.attention(q, k, v, **options)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        files.append(sum(f.is_file() for c in CACHES for f in Path(os.environ[c]).rglob("*")))
        del out
    return {
        "precision": precision,
        "import": imported,
        "first call": seconds[0],
        "second call": seconds[1],
        "new lengths": max(seconds[2:]),
        "compiled for new lengths": files[-1] - files[1],
    }


def _case(keys: int, device: str) -> Case:
    heads = HEADS[device]
    return Case(B=1, Hq=heads, Hk=heads, Sq=keys, Sk=keys, D=D, dtype=torch.bfloat16)


if __name__ == "__main__":
    main()

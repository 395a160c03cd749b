"""Decoding on a GPU: time and bandwidth of one query per sequence over a long cache.

    python -m bench.decode [--tune] [--output FILE]

Times are those of the device; `bench.host_time` has what a call costs the host. Every case is
checked against float64 before it is timed. Bandwidth counts the bytes of the keys and values, which
must be read once; the roof is what copying a tensor reaches in the same run (bytes read and
written). --tune times candidates for the tile table instead.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashasc
from flashasc._configs import TileConfig, choose_split
from flashasc._decode_ops import DecodeCall
from flashasc._problem import AttentionProblem, Extras
from flashasc._target import Target, target_of

from .attention_runs import cache_of
from .machine import facts
from .timing import copy_bandwidth, median_time

HEADS, KV_HEADS, HEAD = 32, 8, 128
CASES = ((32, 1 << 15), (8, 1 << 15), (1, 1 << 15), (1, 1 << 17))
"""(batch, keys)"""

CANDIDATES = ((64, 128), (4, 8), (2, 3, 4), (512, 1024, 2048))
"""Keys of a tile, warps, stages, keys of a chunk."""

BACKENDS = {
    "SDPA, FlashAttention": SDPBackend.FLASH_ATTENTION,
    "SDPA, cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA, efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def main() -> None:
    """Measure, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    roof = copy_bandwidth()
    print(f"copy: {roof / 1e9:.0f} GB/s", flush=True)
    runs = candidates if arguments.tune else implementations
    records = [record for batch, keys in CASES for record in measure(batch, keys, roof, runs)]
    if arguments.output:
        shape = {"heads": HEADS, "kv_heads": KV_HEADS, "head": HEAD, "dtype": "bfloat16"}
        result = {"machine": facts(), **shape, "copy_bytes_per_s": roof, "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


Runs = dict[str, Callable[[], Tensor]]


def measure(
    batch: int, keys: int, roof: float, runs: Callable[[Tensor, Tensor, Tensor], Runs]
) -> list[dict[str, Any]]:
    """Time and bandwidth of every implementation that passes the accuracy gate."""
    generator = torch.Generator("cuda").manual_seed(0)
    options: dict[str, Any] = {"generator": generator, "device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(batch, HEADS, 1, HEAD, **options)
    k, v = (torch.randn(batch, KV_HEADS, keys, HEAD, **options) for _ in "kv")
    exact = attention_float64(q, k, v)
    moved = 2 * k.numel() * k.element_size()
    records = []
    for name, run in runs(q, k, v).items():
        try:
            error = (run().double() - exact).abs().max().item()
        except Exception as failure:
            # no such backend, or a candidate that does not fit
            print(f"{batch:>3} x {keys:>7} {name:<32} does not run: {str(failure).splitlines()[0]}")
            continue
        # twice the rounding of the output, and of weights of 8 bits each
        allowed = 4 * torch.finfo(torch.bfloat16).eps * exact.abs().max().item()
        if not error <= allowed:
            print(f"{batch:>3} x {keys:>7} {name:<32} is wrong: {error:.2e} > {allowed:.2e}")
            continue
        seconds = median_time(run)
        record = {
            "batch": batch,
            "keys": keys,
            "implementation": name,
            "error": error,
            "seconds": seconds,
            "bytes_per_s": moved / seconds,
            "share_of_copy": moved / seconds / roof,
        }
        print(
            f"{batch:>3} x {keys:>7} {name:<32} {seconds * 1e6:9.1f} us  "
            f"{moved / seconds / 1e9:7.0f} GB/s  {record['share_of_copy']:6.1%} of a copy  "
            f"error {error:.1e}",
            flush=True,
        )
        records.append(record)
    return records


def implementations(q: Tensor, k: Tensor, v: Tensor) -> Runs:
    """What is compared, by name."""
    Hk, D = k.shape[1], k.shape[3]
    size = 128
    cache, paged = cache_of(k, v), cache_of(k, v, size)

    def sdpa(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def grouped() -> Tensor:
        """Heads that share keys as queries of one head: what a caller can do for SDPA."""
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            rows = q.view(len(q), Hk, -1, D)
            return F.scaled_dot_product_attention(rows, k, v).view(q.shape)

    runs: Runs = {
        name: lambda backend=backend: sdpa(backend)  # type: ignore[misc]
        for name, backend in BACKENDS.items()
    }
    runs["SDPA, FlashAttention, heads as rows"] = grouped
    for precision in ("standard", "compensated", "high"):
        runs[f"flashasc {precision}"] = lambda p=precision: flashasc.decode(  # type: ignore[misc]
            q, cache, precision=p, impl="triton"
        )
        runs[f"flashasc {precision}, pages of {size}"] = lambda p=precision: flashasc.decode(  # type: ignore[misc]
            q, paged, precision=p, impl="triton"
        )
    return runs


def candidates(q: Tensor, k: Tensor, v: Tensor) -> Runs:
    """Rows of the tile table that might be better ones, as captured graphs."""
    lens = torch.full((k.shape[0],), k.shape[2], dtype=torch.int32, device=k.device)
    call = DecodeCall(
        q, k, v, lens, None, None, None, 1 / math.sqrt(HEAD), None, True, None, None, "BNSD",
        "compensated", q.dtype, False, k.shape[2], "triton",
    )  # fmt: skip
    problem, target = call.problem(), target_of(q.device)
    shipped = choose_split(problem, target)
    runs: Runs = {}
    for block_n, num_warps, num_stages, chunk in product(*CANDIDATES):
        row = replace(
            shipped, block_n=block_n, num_warps=num_warps, num_stages=num_stages, chunk=chunk
        )
        name = f"{block_n} keys {num_warps} warps {num_stages} stages chunk {chunk}"
        runs[name] = captured(q, k, v, problem, call.extras, row, target)
    return runs


def captured(
    q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, extras: Extras, row: TileConfig,
    target: Target,
) -> Callable[[], Tensor]:  # fmt: skip
    """A call with a row that need not be in the table, as a graph captured when it is first run."""
    graph = torch.cuda.CUDAGraph()
    made: list[Tensor] = []

    def launch() -> Tensor:
        from flashasc.kernels.split_launch import launch_attention_split

        out = torch.empty_like(q)
        launch_attention_split(
            q, k, v, out, None, problem, extras, row, target, "device", last_key=True
        )
        return out

    def run() -> Tensor:
        if not made:
            launch()
            with torch.cuda.graph(graph):
                made.append(launch())
        graph.replay()
        return made[0]

    return run


def attention_float64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same attention in float64, a sequence and a key head at a time."""
    B, Hk = k.shape[:2]
    rows = q.view(B, Hk, -1, q.shape[-1]).double() / math.sqrt(q.shape[-1])
    out = torch.empty_like(rows)
    for b in range(B):
        for h in range(Hk):
            weights = (rows[b, h] @ k[b, h].double().mT).softmax(-1)
            out[b, h] = weights @ v[b, h].double()
    return out.view(q.shape)


if __name__ == "__main__":
    main()

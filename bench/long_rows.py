"""Accuracy of 128 queries over 1 048 576 keys on a GPU, beside PyTorch's own backends.

    python -m bench.long_rows [--keys N] [--output FILE]

Few queries and one batch, so that no implementation may split the keys: each row is one long sum.
Everything is compared with the same attention in float64, computed on the same GPU.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashasc

from .machine import facts

HEADS, QUERIES = 4, 128

BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "FlashAttention-2": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}

# dtype, head size, distribution of V
INPUTS: tuple[tuple[torch.dtype, int, str], ...] = (
    (torch.bfloat16, 128, "uniform"),
    (torch.float16, 128, "normal"),
    (torch.float32, 64, "normal"),
)

SINKS = (5.0, 10.0, 14.0, 17.0, 20.0)
"""Nats by which one key's scores exceed all others', in the rows that have such a key."""


def main() -> None:
    """Measure, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[4096, 1 << 20])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    records = [
        record
        for keys in arguments.keys
        for dtype, head, values in INPUTS
        for sink in (
            None,
            *(SINKS if dtype != torch.float32 and keys == max(arguments.keys) else ()),
        )
        for record in measure(keys, dtype, head, values, sink)
    ]
    if arguments.output:
        result = {"machine": facts(), "heads": HEADS, "queries": QUERIES, "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def measure(
    keys: int, dtype: torch.dtype, head: int, values: str, sink: float | None
) -> list[dict[str, Any]]:
    """Errors of every implementation on one input, as one record each.

    Args:
        keys, dtype, head: sizes and dtype.
        values: distribution of V, "uniform" in [0, 1) or "normal".
        sink: nats by which the scores of key 7 exceed the largest other one; None: no such key.
    """
    generator = torch.Generator("cuda").manual_seed(0)
    options: dict[str, Any] = {"generator": generator, "device": "cuda"}
    q = torch.randn(1, HEADS, QUERIES, head, **options).to(dtype)
    k = torch.randn(1, HEADS, keys, head, **options).to(dtype)
    draw = torch.rand if values == "uniform" else torch.randn
    v = draw(1, HEADS, keys, head, **options).to(dtype)
    if sink is not None:
        # one feature that only the sink looks at
        q[..., 0], k[..., 0], k[:, :, 7] = 4.0, 0.0, 0.0
        top = max((q @ tile.mT).max().item() for tile in k.split(1 << 16, dim=2))
        k[:, :, 7, 0] = (top + sink * math.sqrt(head)) / 4.0
    exact, exact_lse = attention_float64(q, k, v)

    records = []
    for name, run in implementations(q, k, v).items():
        try:
            out, lse = run()
            out = out.double()
        except RuntimeError as failure:
            reason = str(failure).splitlines()[0]
            print(f"{keys:>8} {dtype} {name:<24} does not run: {reason}", flush=True)
            continue
        error = out - exact
        record = {
            "keys": keys,
            "dtype": str(dtype).removeprefix("torch."),
            "head": head,
            "values": values,
            "implementation": name,
            "relative_error": (error.norm() / exact.norm()).item(),
            "bias": (error.mean() / exact.abs().mean()).item(),
            "correctly_rounded": (out.to(dtype) == exact.to(dtype)).double().mean().item(),
        }
        if lse is not None:
            record["lse_error"] = (lse.double() - exact_lse).abs().max().item()
        if sink is not None:
            record["sink"] = sink
        print(
            f"{keys:>8} {record['dtype']:<9} V {values:<8} "
            f"{'' if sink is None else f'sink {sink:<4}'} {name:<24} "
            f"relative error {record['relative_error']:.2e}  bias {record['bias']:+.1e}  "
            f"correctly rounded {record['correctly_rounded']:8.3%}"
            + (f"  lse error {record['lse_error']:.1e}" if lse is not None else ""),
            flush=True,
        )
        records.append(record)
    return records


Run = Callable[[], tuple[Tensor, Tensor | None]]


def implementations(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Run]:
    """What is compared, by name: PyTorch's backends and this package's precision levels."""

    def sdpa(backend: SDPBackend) -> tuple[Tensor, None]:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v), None

    runs: dict[str, Run] = {
        name: lambda backend=backend: sdpa(backend)  # type: ignore[misc]
        for name, backend in BACKENDS.items()
        if q.dtype != torch.float32 or name in ("efficient", "math")
    }
    levels = ("standard", "compensated") + (("high",) if q.dtype != torch.float32 else ())
    for precision in levels:
        runs[f"flashasc {precision}"] = lambda precision=precision: flashasc.attention(  # type: ignore[misc]
            q, k, v, precision=precision, impl="triton", return_lse=True
        )
    return runs


def attention_float64(
    q: Tensor, k: Tensor, v: Tensor, tile: int = 1 << 16
) -> tuple[Tensor, Tensor]:
    """Attention and its log-sum-exp in float64, a tile of keys at a time, by two passes."""
    q = q.double() / math.sqrt(q.shape[-1])
    tiles = range(0, k.shape[2], tile)
    row_max = torch.stack(
        [(q @ k[:, :, i : i + tile].double().mT).amax(-1, keepdim=True) for i in tiles]
    ).amax(0)
    total, acc = torch.zeros_like(row_max), q.new_zeros(*q.shape[:3], v.shape[-1])
    for i in tiles:
        weights = (q @ k[:, :, i : i + tile].double().mT - row_max).exp()
        total += weights.sum(-1, keepdim=True)
        acc += weights @ v[:, :, i : i + tile].double()
    return acc / total, (row_max + total.log()).squeeze(-1)


if __name__ == "__main__":
    main()

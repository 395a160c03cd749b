"""Context parallelism: time on several GPUs of one host, after its accuracy.

    torchrun --nproc_per_node=2 -m bench.context_parallel [--output FILE] [--traces FOLDER]

Causal attention, bfloat16, 16 heads of 128. First `verify` runs on these ranks, and each way's
output is compared with float64 in some rows; one that fails is not timed. Ways: this package's ring
and Ulysses, PyTorch's experimental context_parallel, gathering all keys and then attending, and one
GPU alone. Scaling efficiency is time of one GPU / (ranks * time).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashasc
from flashasc.distributed import ContextParallel, count_transfers
from flashasc.distributed.verify import Request, verification_mesh, verify

from .machine import facts
from .overlap import profiled

HEADS, HEAD = 16, 128
CHECKED_ROWS = 64
"""Rows of each rank that are compared with float64."""
TIMED, WARM = 10, 3

Way = Callable[[], Any]


def main() -> None:
    """Verify, measure, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequence", type=int, nargs="+", default=[1 << 16, 1 << 17])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--traces", type=Path, help="folder for the ring's Chrome traces")
    arguments = parser.parse_args()
    store, rank, world = next(rendezvous("env://"))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world, device_id=device)
    mesh = verification_mesh(device)
    verdict = verify(Request(dtypes=(torch.bfloat16,)), store, device, mesh)
    tell(f"verify: {verdict.verdict}")
    records = []
    if verdict.ok:
        for S in arguments.sequence:
            records += measure(S, device, arguments.traces)
    if arguments.output and rank == 0:
        result = {
            "machine": facts(),
            "ranks": world,
            "heads": HEADS,
            "head": HEAD,
            "verify": verdict.verdict,
            "records": records,
        }
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()
    if not verdict.ok:
        raise SystemExit(1)


def measure(S: int, device: torch.device, traces: Path | None) -> list[dict[str, Any]]:
    """Figures of every way at one length, the same on every rank."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (1, HEADS, S, HEAD)
    q, k, v = (
        torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
        for _ in range(3)
    )
    world = dist.get_world_size()
    alone = milliseconds(lambda: flashasc.attention(q, k, v, causal=True))
    records = [{"sequence": S, "way": "one GPU", "ms": alone}]
    tell(f"{S:>7} {'one GPU':<28} {alone:8.2f} ms")
    for name, (opened, rows) in ways(q, k, v).items():
        with opened as way:
            record: dict[str, Any] = {"sequence": S, "way": name}
            records.append(record)
            if reason := agreed_failure(way, rows, q, k, v):
                record["does not run"] = reason
                tell(f"{S:>7} {name:<28} {reason}")
                continue
            record["ms"] = milliseconds(way)
            record["efficiency"] = alone / (world * record["ms"])
            with count_transfers() as counts:
                way()
            record |= {"sends": counts.sends, "collectives": counts.collectives}
            if name.startswith("flashasc"):
                record["profile"] = profiled(way, trace_file(traces, name, S))
        hidden = record.get("profile", {}).get("hidden")
        tell(
            f"{S:>7} {name:<28} {record['ms']:8.2f} ms  efficiency {record['efficiency']:.1%}"
            + ("" if hidden is None else f"  communication hidden {hidden:.1%}")
        )
    return records


def trace_file(folder: Path | None, way: str, S: int) -> Path | None:
    """Where this rank's trace goes."""
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{way.replace(' ', '_')}_{S}_rank{dist.get_rank()}.json.gz"


def ways(q: Tensor, k: Tensor, v: Tensor) -> dict[str, tuple[AbstractContextManager[Way], Tensor]]:
    """What is compared: how to compute this rank's rows, and which rows these are."""
    found: dict[str, tuple[AbstractContextManager[Way], Tensor]] = {}
    S = q.shape[2]
    for mode, placement in (("ring", "zigzag"), ("ring", "contiguous"), ("ulysses", "contiguous")):
        context = ContextParallel(None, mode, placement)  # type: ignore[arg-type]
        mine = [context.shard(x, 2) for x in (q, k, v)]
        found[f"flashasc {mode} {placement}"] = (
            nullcontext(partial(context.attention, *mine, causal=True)),
            context.positions(S),
        )
    context = ContextParallel()
    mine = [context.shard(x, 2) for x in (q, k, v)]
    rows = context.positions(S)
    found["all-gather, then flashasc"] = (nullcontext(partial(gathered, *mine, flash=False)), rows)
    found["all-gather, then SDPA"] = (nullcontext(partial(gathered, *mine, flash=True)), rows)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    # PyTorch cuts in 2 * ranks chunks too, and gives a rank one from either end
    balanced = ContextParallel(None, "ring", "zigzag").positions(S)
    found["torch context_parallel"] = (torch_way(mesh, q, k, v), balanced)
    return found


def gathered(q: Tensor, k: Tensor, v: Tensor, *, flash: bool) -> Tensor:
    """Attention after every rank has all keys: no overlap, and uneven causal work."""
    world, rank = dist.get_world_size(), dist.get_rank()
    k_parts, v_parts = ([torch.empty_like(x) for _ in range(world)] for x in (k, v))
    dist.all_gather(k_parts, k.contiguous())
    dist.all_gather(v_parts, v.contiguous())
    # keys behind this rank's queries are hidden from all of them
    keys, values = (torch.cat(parts[: rank + 1], 2) for parts in (k_parts, v_parts))
    if not flash:
        return flashasc.attention(q, keys, values, causal=True)
    if rank == 0:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, keys, values, is_causal=True)
    from torch.nn.attention.bias import causal_lower_right

    bias: Any = causal_lower_right(q.shape[2], keys.shape[2])
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=bias)


@contextmanager
def torch_way(mesh: DeviceMesh, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Way]:
    """PyTorch's own ring over FlashAttention; the sharding is not timed."""
    q, k, v = (x.clone() for x in (q, k, v))
    # cuts the buffers in place, and replaces scaled_dot_product_attention meanwhile
    with (
        context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]),
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    ):
        yield lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def check(way: Way, rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> str:
    """What is wrong with a way's output; "" if some of its rows are as float64 has them."""
    out = way()
    if out.shape[2] != len(rows):
        return f"{out.shape[2]} rows instead of {len(rows)}"
    some = torch.linspace(0, len(rows) - 1, CHECKED_ROWS).long()
    at = rows[some].to(q.device)
    exact = torch.cat([rows_float64(q, k, v, at, head) for head in range(HEADS)], 1)
    found = out[:, :, some.to(q.device)].double()
    relative = ((found - exact).norm() / exact.norm()).item()
    # a rounding of the output, and PyTorch's weights rounded to bfloat16
    return "" if relative <= 2.0**-7 else f"relative error {relative:.1e}"


def rows_float64(q: Tensor, k: Tensor, v: Tensor, at: Tensor, head: int) -> Tensor:
    """[1, 1, rows, D]: some rows of one head's causal attention in float64."""
    scores = q[:, head : head + 1, at].double() @ k[:, head : head + 1].double().mT
    scores /= math.sqrt(HEAD)
    hidden = torch.arange(k.shape[2], device=k.device) > at[:, None]
    weights = scores.masked_fill_(hidden, -math.inf).softmax(-1)
    return weights @ v[:, head : head + 1].double()


def agreed_failure(way: Way, rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> str:
    """What is wrong with a way on some rank; "" if it is right on all."""
    try:
        reason = check(way, rows, q, k, v)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    reasons: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    return next((f"rank {r}: {text}" for r, text in enumerate(reasons) if text), "")


def milliseconds(way: Callable[[], object]) -> float:
    """Median time of a call, that of the slowest rank each time."""
    for _ in range(WARM):
        way()
    times = []
    for _ in range(TIMED):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        dist.barrier()
        start.record()
        way()
        end.record()
        end.synchronize()
        slowest = torch.tensor([start.elapsed_time(end)], device="cuda")
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times.append(slowest.item())
    return statistics.median(times)


def tell(line: str) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()

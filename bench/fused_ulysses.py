"""Ulysses whose way back is inside the attention kernel: its bits, then its time, on one host.

    torchrun --nproc_per_node=2 -m bench.fused_ulysses [--output FILE] [--traces FOLDER]

First correctness: tagged tiles, thousands of calls without a barrier and with random pauses,
buffers poisoned, bits compared with the unfused path; what fails is not timed. Then time: causal,
bfloat16, 16 heads of 128, of three ways over the same tokens of this rank's heads: attention alone
("compute"), attention and the exchange of its output ("unfused"), attention that stores with the
owners ("fused"); and of whole calls. Last, faults, each of which must end in an error.

hidden = (unfused - fused) / (unfused - compute), of paired rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from flashasc._arguments import Arguments
from flashasc.distributed import ulysses_attention
from flashasc.distributed._call import LocalCall
from flashasc.distributed._parcel import Parcel, Pieces
from flashasc.distributed._placement import shards
from flashasc.distributed._return import ReturnPath
from flashasc.distributed._run import _attend_locally, _sent_back
from flashasc.distributed._symmetric import SymmetricBuffers
from flashasc.distributed._transport import Transport
from flashasc.distributed._ulysses import HeadExchange

from . import fused_stress
from .machine import facts
from .overlap import kernels_of

HEADS, HEAD = 16, 128
# calls behind each other, and rounds, by length
REPEATS = {1 << 14: (10, 15), 1 << 15: (6, 11), 1 << 16: (3, 9), 1 << 17: (2, 7)}

Way = Callable[[], Any]


def main() -> None:
    """Check, measure, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequence", type=int, nargs="+", default=list(REPEATS))
    parser.add_argument("--calls", type=int, default=10_000, help="of each stress")
    parser.add_argument("--seconds", type=float, default=185.0, help="what is late is left out")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--traces", type=Path, help="folder for Chrome traces")
    arguments = parser.parse_args()
    begun = time.monotonic()
    store, rank, world = next(rendezvous("env://"))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl", store=store, rank=rank, world_size=world, device_id=device,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    result: dict[str, Any] = {"ranks": world, "heads": HEADS, "head": HEAD, "left out": []}

    def part(name: str, run: Callable[[], Any], *, least: float) -> bool:
        """Do one part, if there is time left for it: on all ranks or none."""
        left = torch.tensor([arguments.seconds - (time.monotonic() - begun)], device=device)
        dist.all_reduce(left, dist.ReduceOp.MIN)
        if left.item() < least:
            result["left out"].append(name)
            tell(f"{name:<44} left out: {left.item():.0f} s left")
            return False
        since = time.monotonic()
        try:
            found = run()
        except Exception as error:
            found = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            print(f"rank {rank}: {name}: {found}", flush=True)
        every: list[Any] = [None] * world
        dist.all_gather_object(every, found)
        result[name] = every[0] if all(x == every[0] for x in every) else every
        wrong = [f"rank {r}: {x}" for r, x in enumerate(every) if isinstance(x, str) and x]
        tell(f"{name:<44} {'; '.join(wrong) or 'ok'}  ({time.monotonic() - since:.1f} s)")
        return not wrong

    right = True
    for name, run in fused_stress.checks(device, arguments.calls).items():
        right &= part(name, run, least=20)
    if right:
        for S in arguments.sequence:
            part(f"time, {S}", lambda S=S: timed(S, device, arguments.traces), least=15)  # type: ignore[misc]
    for name, run in fused_stress.faults(device).items():
        right &= part(name, run, least=15)
    part("verify --op ulysses-fused", lambda: fused_stress.verified(store, device), least=30)
    result["machine"] = facts()
    result["seconds"] = time.monotonic() - begun
    if arguments.output and rank == 0:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    tell(f"{result['seconds']:.0f} s; last: a peer that dies")
    fused_stress.dying(device)


def parts_of(S: int, device: torch.device) -> tuple[LocalCall, HeadExchange, Arguments, Parcel]:
    """One length: a rank's call, its exchange, the call of its heads, and what goes back."""
    ranks = Transport()
    world = ranks.world
    counts = (S // world,) * world
    generator = torch.Generator(device).manual_seed(S + ranks.rank)
    mine = [
        torch.randn(1, HEADS, S // world, HEAD, generator=generator, device=device).bfloat16()
        for _ in range(3)
    ]
    call = LocalCall.checked(Arguments(mine[0], mine[1], mine[2], causal=True), "contiguous", None)
    tokens = [
        torch.randn(1, HEADS // world, S, HEAD, generator=generator, device=device).bfloat16()
        for _ in range(3)
    ]
    whole = Arguments(tokens[0], tokens[1], tokens[2], causal=True)
    parcel = Parcel(
        1, HEADS // world, world, HEAD, torch.bfloat16, False, True,
        Pieces.of(shards([S], world, "contiguous", counts)), SymmetricBuffers.tile_rows(whole),
    )  # fmt: skip
    return call, HeadExchange(ranks, counts, counts, HEADS, HEADS), whole, parcel


def timed(S: int, device: torch.device, traces: Path | None) -> dict[str, Any]:
    """Milliseconds of each way at one length, the same on all ranks."""
    call, heads, whole, parcel = parts_of(S, device)
    q, k, v = whole.q, whole.k, whole.v
    path = ReturnPath(Transport(), SymmetricBuffers)
    mine = call.arguments
    ways: dict[str, Way] = {
        "compute": lambda: _attend_locally(call, heads, q, k, v),
        "unfused": lambda: _sent_back(call, heads, *_attend_locally(call, heads, q, k, v)),
        "fused": lambda: path.attend(whole, parcel, heads.transport, device),
    }
    calls: dict[str, Way] = {
        f"call, {name}": lambda fused=fused: ulysses_attention(  # type: ignore[misc]
            mine.q, mine.k, mine.v, causal=True, fused=fused
        )
        for name, fused in (("unfused", False), ("fused", True))
    }
    with torch.no_grad():
        if not torch.equal(ways["unfused"](), ways["fused"]()[0]):
            raise RuntimeError("fused differs from unfused")
        if not torch.equal(*(way() for way in calls.values())):
            raise RuntimeError("the fused call differs from the unfused one")
        repeats, rounds = REPEATS.get(S, (3, 7))
        found: dict[str, Any] = measured(ways, repeats, rounds)
        found |= measured(calls, 1 + repeats // 2, rounds)
        found["kernels"] = {
            name: kernels_of(ways[name], trace_file(traces, name, S)) for name in ways
        }
    path.check()
    pairs = zip(found["compute"], found["unfused"], found["fused"], strict=True)
    exchanged = [(u - c, f - c) for c, u, f in pairs]
    communication = statistics.median(u for u, _ in exchanged)
    exposed = statistics.median(f for _, f in exchanged)
    found |= {"communication": communication, "exposed": exposed}
    found["hidden"] = 1 - exposed / communication
    medians = {name: statistics.median(found[name]) for name in (*ways, *calls)}
    tell(
        f"{S:>7}  "
        + "  ".join(f"{name} {ms:.3f}" for name, ms in medians.items())
        + f" ms; communication {communication:.3f}, exposed {exposed:.3f}, "
        f"hidden {found['hidden']:.0%}"
    )
    for name, kernels in found["kernels"].items():
        tell(f"{'':9}{name}: " + ", ".join(f"{kernel} {us:.0f}" for kernel, us in kernels) + " us")
    return found


def measured(ways: dict[str, Way], repeats: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a call in each round, that of the slowest rank; ways take turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    order = list(ways)
    for number in range(rounds):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            dist.barrier()
            start.record()
            for _ in range(repeats):
                ways[name]()
            end.record()
            end.synchronize()
            slowest = torch.tensor([start.elapsed_time(end) / repeats], device="cuda")
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            found[name].append(slowest.item())
    return found


def trace_file(folder: Path | None, way: str, S: int) -> Path | None:
    """Where this rank's trace goes."""
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"return_{way}_{S}_rank{dist.get_rank()}.json.gz"


def tell(line: str) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()

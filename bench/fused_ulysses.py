"""Ulysses whose way back is inside the attention kernel: its bits, then its time, on one host.

    torchrun --nproc_per_node=2 -m bench.fused_ulysses [--output FILE] [--traces FOLDER]

First correctness: tagged tiles, thousands of calls without a barrier and with random pauses,
buffers poisoned, bits compared with the unfused path; what fails is not timed. Then time, see
`bench.fused_time`: what of the exchange is hidden, and whole calls. Last, faults, each of which
must end in an error.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from . import fused_stress
from .fused_time import HEAD, HEADS, REPEATS, tell, timed
from .machine import facts


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


if __name__ == "__main__":
    main()

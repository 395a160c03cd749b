"""Would attention pay that reads keys and values where they are, in the peer's memory?

    torchrun --nproc_per_node=2 -m bench.peer_reads [--output FILE]

A kernel that gathers while it computes would read each tile of the peer's keys once a program, from
the peer. Here the same call of `flashasc.attention` gets keys and values that lie in this GPU's own
memory, or in the peer's, mapped by PyTorch's symmetric memory; beside a copy of them followed by
the call. Not causal, bfloat16, 16 heads of 128; every rank at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch import Tensor

import flashasc

from .fused_time import Together, measured, tell
from .machine import facts

HEADS, HEAD = 16, 128
ROUNDS = 7


def main() -> None:
    """Measure, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequence", type=int, nargs="+", default=[1 << 13, 1 << 14, 1 << 15])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    records = [measure(S, device) for S in arguments.sequence]
    if arguments.output and dist.get_rank() == 0:
        result = {"machine": facts(), "heads": HEADS, "head": HEAD, "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    dist.destroy_process_group()


def measure(S: int, device: torch.device) -> dict[str, Any]:
    """Milliseconds of each way over S queries and S keys, medians of rounds."""
    shape = (2, 1, HEADS, S, HEAD)
    mine = symmetric.empty(shape, dtype=torch.bfloat16, device=device)
    handle = symmetric.rendezvous(mine, dist.distributed_c10d._get_default_group().group_name)
    generator = torch.Generator(device).manual_seed(dist.get_rank())
    mine.copy_(torch.randn(shape, generator=generator, device=device))
    peer = (dist.get_rank() + 1) % dist.get_world_size()
    theirs = handle.get_buffer(peer, shape, torch.bfloat16)
    q = torch.randn(shape[1:], generator=generator, device=device).bfloat16()
    copied = torch.empty_like(mine)

    def attend(kv: Tensor) -> Tensor:
        return flashasc.attention(q, kv[0], kv[1])

    ways = {
        "own memory": lambda: attend(mine),
        "peer's memory": lambda: attend(theirs),
        "copy": lambda: copied.copy_(theirs),
        "copy, then attention": lambda: attend(copied.copy_(theirs)),
    }
    dist.barrier()
    if not torch.equal(ways["peer's memory"](), ways["copy, then attention"]()):
        raise RuntimeError("attention over the peer's memory differs from that over a copy of it")
    found = measured(ways, 2, ROUNDS, Together(device))
    times = {name: statistics.median(rounds) for name, rounds in found.items()}
    tell(f"{S:>7}  " + ", ".join(f"{name} {ms:.3f}" for name, ms in times.items()) + " ms")
    dist.barrier()
    return {"keys": S} | times


if __name__ == "__main__":
    main()

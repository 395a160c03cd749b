"""The kernels that store with peers, in Triton's interpreter, between processes that share memory.

An address of another process's memory is one where this process has mapped it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flashasc._arguments import Arguments, prepare
from flashasc._configs import nvidia
from flashasc._dispatch import Plan
from flashasc._problem import Extras
from flashasc._target import Target
from flashasc.distributed._agreement import Facts
from flashasc.distributed._device_memory import DeviceBuffers
from flashasc.distributed._emulated import mapped
from flashasc.distributed._parcel import Parcel, Pieces
from flashasc.distributed._placement import shards, stream_index
from flashasc.distributed._return import ReturnPath
from flashasc.distributed._transport import CommunicationError, Transport
from flashasc.distributed.verify.peers import poisoned
from flashasc.distributed.verify.tags import same_bits
from flashasc.kernels.attention_launch import launch_attention_fwd


class MappedBuffers(DeviceBuffers):
    """Kernels run on this process's CPU; peers' memory is mapped."""

    name = "interpreted"

    @classmethod
    def check(cls, device: torch.device) -> Facts:
        return {}

    def shared(self, transport: Transport, size: int) -> tuple[Tensor, list[int]]:
        self.maps = mapped(transport, size)
        memories = [torch.frombuffer(one, dtype=torch.uint8) for one in self.maps]
        self.clear(memories[transport.rank])
        dist.barrier(transport.group)
        return memories[transport.rank], [memory.data_ptr() for memory in memories]

    @classmethod
    def plan(cls, problem: Any, impl: Any) -> Any:
        row = next(
            r
            for r in nvidia.TILES
            if (r.dtype, r.precision, r.max_head) == (problem.dtype, problem.precision, 64)
        )
        # not every Triton's interpreter has the split products
        row = replace(row, dot_precision="ieee")
        return Plan("interpreter", "a test", Target("nvidia", "sm_90", 1), row)

    def begin(self) -> None:
        pass

    def finish(self, *, wait: bool) -> None:
        pass

    def quiesce(self) -> None:
        pass


def _with_a_clock() -> None:
    """The interpreter has no inline assembly."""
    import triton.language as tl

    from flashasc.kernels import peer_kernels

    def nanoseconds() -> Any:
        time.sleep(0.001)
        return tl.full((), time.monotonic_ns(), tl.int64)

    peer_kernels.nanoseconds = nanoseconds


def pushes() -> str:
    """Rows as they are, in pieces whose edges cut tiles."""
    ranks = Transport()
    held = shards([37], ranks.world, "zigzag")
    mine = stream_index(held[ranks.rank], [37])
    path = ReturnPath(ranks, poisoned(MappedBuffers))
    # both buffers, one of them again
    for call in range(3):
        generator = torch.Generator().manual_seed(call)
        whole = torch.randn(1, 2 * ranks.world, 37, 10, generator=generator).bfloat16()
        lse = torch.randn(1, 2 * ranks.world, 37, generator=generator)
        parcel = Parcel(
            1, 2, ranks.world, 10, torch.bfloat16, call != 1, call % 2 == 0, Pieces.of(held), 16
        )
        own = slice(2 * ranks.rank, 2 * ranks.rank + 2)
        numbers = lse[:, own].contiguous() if parcel.with_lse else None
        out, found = path.push(whole[:, own].contiguous(), numbers, parcel, ranks)
        out = out if parcel.heads_first else out.transpose(1, 2)
        if not same_bits(out.contiguous(), whole[:, :, mine]):
            return f"call {call}: other rows"
        if found is not None and not same_bits(found, lse[:, :, mine]):
            return f"call {call}: another log-sum-exp"
    path.check()
    dist.barrier()
    return path.unsettled()


def attentions() -> str:
    """The attention kernel: the bits of the one that stores at home."""
    ranks = Transport()
    held = shards([70], ranks.world, "contiguous", [29, 41])
    mine = stream_index(held[ranks.rank], [70])
    path = ReturnPath(ranks, poisoned(MappedBuffers))
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, ranks.world, 70, 16, generator=generator)
    right = torch.empty_like(q)
    lse = torch.empty(q.shape[:3])
    options = {"causal": True, "return_lse": True, "precision": "standard"}
    arguments, problem = prepare(Arguments(q, k, v, **options))
    plan = MappedBuffers.plan(problem, "auto")
    launch_attention_fwd(
        q, k, v, right, lse, problem, Extras(), plan.config, plan.target, plan.route
    )
    own = slice(ranks.rank, ranks.rank + 1)
    parcel = Parcel(
        1, 1, ranks.world, 16, q.dtype, True, False, Pieces.of(held), plan.config.block_m
    )
    arguments = arguments._replace(q=q[:, own], k=k[:, own], v=v[:, own])
    out, found = path.attend(arguments, parcel, ranks, q.device)
    assert found is not None
    if not same_bits(out.transpose(1, 2).contiguous(), right[:, :, mine]):
        return "other bits"
    return "" if same_bits(found, lse[:, :, mine]) else "other bits of the log-sum-exp"


def gives_up() -> str:
    """Rank 1 makes one call less; rank 0 is told so, and gets NaN."""
    ranks = Transport(timeout=60.0)
    held = shards([16], ranks.world, "contiguous")
    path = ReturnPath(ranks, MappedBuffers)
    x = torch.ones(1, 1, 16, 8)
    parcel = Parcel(1, 1, ranks.world, 8, x.dtype, False, True, Pieces.of(held), 16)
    path.push(x, None, parcel, ranks)
    if ranks.rank == 1:
        return ""
    kept, ranks.timeout = path.memory, 0.5
    try:
        path.push(x, None, parcel, ranks)
    except CommunicationError as error:
        wanted = "rank 0: sequence for heads, fused, step tiles of call 1, peer rank 1: has not"
        if wanted not in str(error) or "fused=False" not in str(error):
            return str(error)
    else:
        return "no error"
    assert kept is not None
    found = kept.result(parcel)
    kept.take(parcel, 1, found)
    return "" if found[0].isnan().all() else "not NaN"


def _rank(rank: int, store: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    for check in (pushes, attentions, gives_up):
        # at once: the ranks share it
        os.write(1, f"rank {rank}, {check.__name__}: {check() or 'ok'}\n".encode())


def main() -> None:
    """python -m tests.distributed.interpreted_peers STORE: a line for each rank and check."""
    torch.set_num_threads(1)
    _with_a_clock()
    # forked: what was imported is there already
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(rank, sys.argv[1])) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


if __name__ == "__main__":
    main()

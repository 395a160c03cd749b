"""The way back inside the kernel, on ranks: what each of them finds."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flashasc._arguments import Arguments
from flashasc.distributed import CommunicationError, shard_sequence, ulysses_attention
from flashasc.distributed._agreement import Facts
from flashasc.distributed._emulated import EmulatedBuffers
from flashasc.distributed._parcel import Parcel, Pieces
from flashasc.distributed._placement import Placement, shards, stream_index
from flashasc.distributed._return import Found, ReturnPath
from flashasc.distributed._run import run_ulysses
from flashasc.distributed._transport import Transport
from flashasc.distributed.verify.peers import poisoned
from flashasc.distributed.verify.tags import same_bits

# placement, layout, log-sum-exp, dtype, rows of 2 ranks; buffers grow, and are used for less again
CALLS: tuple[tuple[Placement, Any, bool, torch.dtype, int], ...] = (
    ("contiguous", "BNSD", False, torch.bfloat16, 35),
    ("zigzag", "BSND", True, torch.float32, 61),
    ("zigzag", "BNSD", True, torch.bfloat16, 22),
    ("contiguous", "BSND", True, torch.float16, 67),
    # a rank without any
    ("zigzag", "BSND", False, torch.float32, 1),
)


def arguments(number: int, **options: Any) -> Arguments:
    """One of CALLS, this rank's part."""
    placement, layout, with_lse, dtype, rows = CALLS[number]
    generator = torch.Generator().manual_seed(number)
    heads = 2 * dist.get_world_size()
    whole = [torch.randn(2, n, rows, 16, generator=generator).to(dtype) for n in (heads, 2, 2)]
    q, k, v = (shard_sequence(x, dim=2, placement=placement) for x in whole)
    if layout == "BSND":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return Arguments(q, k, v, layout=layout, causal=True, return_lse=with_lse, **options)


def fused_is_unfused() -> list[str]:
    """Calls that differ in bits."""
    wrong = []
    for number, (placement, _, with_lse, *_rest) in enumerate(CALLS):
        given = arguments(number)
        found: Any = run_ulysses(given, placement, Transport(), memory=EmulatedBuffers)
        right: Any = run_ulysses(given, placement, Transport())
        pairs = zip(found, right, strict=True) if with_lse else [(found, right)]
        if not all(same_bits(a, b) for a, b in pairs):
            wrong.append(str(CALLS[number]))
    return wrong


class Unsteady(poisoned(EmulatedBuffers)):  # type: ignore[misc]
    """Random delays before stores, signals and waits."""

    chance = random.Random()

    def _maybe(self) -> None:
        if self.chance.random() < 0.02:
            time.sleep(self.chance.random() * 0.002)

    def store(self, *what: Any) -> None:
        self._maybe()
        super().store(*what)

    def signal(self, owner: int, call: int) -> None:
        self._maybe()
        super().signal(owner, call)

    def take(self, parcel: Parcel, slot: int, found: Found) -> None:
        self._maybe()
        super().take(parcel, slot, found)


def stress(calls: int) -> str:
    """Calls behind each other without a barrier, buffers poisoned, counters about to go round.

    The last of four ranks has no rows.
    """
    ranks = Transport(timeout=60.0)
    Unsteady.chance.seed(ranks.rank)
    held = shards([37], ranks.world, "zigzag")
    if ranks.world == 4:
        held = shards([37], 4, "contiguous", [20, 1, 16, 0])
    pieces, mine = Pieces.of(held), stream_index(held[ranks.rank], [37])
    parcel = Parcel(1, 1, ranks.world, 8, torch.float32, False, True, pieces, 16)
    variants = torch.randn(5, 1, ranks.world, 37, 8, generator=torch.Generator().manual_seed(0))
    path = ReturnPath(ranks, Unsteady)
    same = random.Random(1)
    for call in range(calls):
        x = variants[same.randrange(5)]
        if call == 10:
            _nearly_round(path)
        out, _ = path.push(x[:, ranks.rank : ranks.rank + 1], None, parcel, ranks)
        if not same_bits(out, x[:, :, mine].contiguous()):
            return f"call {call}: other rows"
    path.check()
    dist.barrier()
    return path.unsettled()


def _nearly_round(path: ReturnPath) -> None:
    """Move all counters to where they go round after some more calls."""
    dist.barrier()
    assert isinstance(path.memory, EmulatedBuffers)
    most = 2**31 - 100
    for rank in range(path.memory.world):
        path.memory.words[path.memory.rank][rank] = most
    # even, as the number of calls was
    path.calls = most
    dist.barrier()


def one_dies() -> str:
    """Rank 1 ends after its first call; what rank 0 is told in its second, and when."""
    ranks = Transport(timeout=60.0)
    pieces = Pieces.of(shards([32], ranks.world, "contiguous"))
    parcel = Parcel(1, 1, ranks.world, 8, torch.float32, False, True, pieces, 16)
    path = ReturnPath(ranks, EmulatedBuffers)
    x = torch.ones(1, 1, 32, 8)
    path.push(x, None, parcel, ranks)
    if ranks.rank == 1:
        os._exit(9)
    ranks.timeout = 1.0
    begun = time.monotonic()
    try:
        path.push(x, None, parcel, ranks)
    except CommunicationError as error:
        assert time.monotonic() - begun < 10
        return str(error)
    return "no error"


class _Elsewhere(EmulatedBuffers):
    @classmethod
    def check(cls, device: torch.device) -> Facts:
        return {"the host": f"host {dist.get_rank()}"}


class _Silent(EmulatedBuffers):
    """Rank 1 stores and never signals."""

    def signal(self, owner: int, call: int) -> None:
        if self.rank != 1:
            super().signal(owner, call)


def wrong_calls() -> dict[str, tuple[str, str]]:
    """What this rank raises, by what is wrong."""
    rank = dist.get_rank()
    plain, other = arguments(0), arguments(0)
    asking = plain._replace(
        q=plain.q.float().requires_grad_(), k=plain.k.float(), v=plain.v.float()
    )
    lengths = torch.tensor([0, 8], dtype=torch.int32)
    x = torch.ones(4, 4, 8)
    packed = Arguments(x, x, x, layout="TND", cu_seqlens_q=lengths, cu_seqlens_k=lengths)
    mine = EmulatedBuffers if rank == 0 else None
    shaped = other._replace(q=other.q[:, :, :, :8], k=other.k[:, :, :, :8]) if rank else other
    calls = {
        "no symmetric memory": lambda: ulysses_attention(plain.q, plain.k, plain.v, fused=True),
        "gradients": lambda: run_ulysses(asking, "contiguous", Transport(), memory=EmulatedBuffers),
        "packed": lambda: run_ulysses(packed, "contiguous", Transport(), memory=EmulatedBuffers),
        "one alone": lambda: run_ulysses(plain, "contiguous", Transport(), memory=mine),
        "hosts": lambda: run_ulysses(plain, "contiguous", Transport(), memory=_Elsewhere),
        "shapes": lambda: run_ulysses(shaped, "contiguous", Transport(), memory=EmulatedBuffers),
        "silent": lambda: run_ulysses(plain, "contiguous", Transport(timeout=3.0), memory=_Silent),
        "silent, again": lambda: run_ulysses(plain, "contiguous", Transport(), memory=_Silent),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            found[name] = (type(error).__name__, str(error))
        else:
            found[name] = ("", "")
    return found


def late_failure() -> tuple[bool, str]:
    """Without a timeout of its own, the call's result is NaN, and the next one raises."""
    ranks = Transport()
    pieces = Pieces.of(shards([32], ranks.world, "contiguous"))
    parcel = Parcel(1, 1, ranks.world, 8, torch.float32, True, True, pieces, 16)
    path = ReturnPath(ranks, _Silent)
    path._seconds = 0.3
    x, lse = torch.ones(1, 1, 32, 8), torch.ones(1, 1, 32)
    found = path.push(x, lse, parcel, ranks)
    nan = all(isinstance(y, Tensor) and bool(y.isnan().all()) for y in found)
    try:
        path.check()
    except CommunicationError as error:
        return nan, str(error)
    return nan, "no error"

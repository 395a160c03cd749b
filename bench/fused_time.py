"""What the way back inside the attention kernel costs and hides; `bench.fused_ulysses` runs it.

Four ways over the same tokens of this rank's heads, causal, bfloat16:

    compute   attention alone
    in step   attention, then a signal to each rank and a wait for theirs, and nothing moved: what
              ranks pay for being in step, the slower of them in each call
    unfused   attention, and the exchange of its output by all_to_all_single
    fused     attention that stores with the owners, signal and wait, and the copy to the result

hidden = 1 - (fused - base) / (unfused - base), with compute and with in step as the base: both
are told. Twice: by events, rounds of calls behind each other in turns; and from a profile of such
calls.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

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

from .fused_figures import BASES, hidden, lines, of_calls, per_call, share

HEADS, HEAD = 16, 128
# calls behind each other and rounds of each way; rounds of public calls; calls in a profile
REPEATS = {
    1 << 14: (20, 36, 12, 20),
    1 << 15: (10, 24, 10, 20),
    1 << 16: (4, 20, 6, 20),
    1 << 17: (2, 12, 4, 8),
}
AHEAD = 6_000_000
"""Cycles that a stream sleeps, about 3 ms, so that the host is ahead of it when time begins."""
FAR_AHEAD = 80_000_000
"""The same under the profiler, which makes the host slower: about 45 ms."""
Way = Callable[[], Any]


class Together:
    """Signals between ranks that stand for nothing: who waits for them is in step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.memory = SymmetricBuffers(Transport(), device, 256)
        self.calls = 0

    def meet(self) -> None:
        """Let the stream wait until those of all ranks are here."""
        self.memory.meet(self.calls, seconds=20.0)
        self.calls += 1


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
    call = LocalCall.checked(Arguments(mine[0], mine[1], mine[2], causal=True), "contiguous")
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
    """Times of each way at one length, the same on all ranks; prints them on rank 0."""
    call, heads, whole, parcel = parts_of(S, device)
    q, k, v = whole.q, whole.k, whole.v
    path = ReturnPath(Transport(), SymmetricBuffers)
    together, aligned = Together(device), Together(device)
    mine = call.arguments

    def in_step() -> None:
        _attend_locally(call, heads, q, k, v)
        together.meet()

    ways: dict[str, Way] = {
        "compute": lambda: _attend_locally(call, heads, q, k, v),
        "in step": in_step,
        "unfused": lambda: _sent_back(call, heads, *_attend_locally(call, heads, q, k, v)),
        "fused": lambda: path.attend(whole, parcel, heads.transport, device),
    }
    calls: dict[str, Way] = {
        f"call, {name}": lambda fused=fused: ulysses_attention(  # type: ignore[misc]
            mine.q, mine.k, mine.v, causal=True, fused=fused
        )
        for name, fused in (("unfused", False), ("fused", True))
    }
    repeats, rounds, call_rounds, profile_calls = REPEATS.get(S, (4, 12, 4, 10))
    with torch.no_grad():
        if not torch.equal(ways["unfused"](), ways["fused"]()[0]):
            raise RuntimeError("fused differs from unfused")
        if not torch.equal(*(way() for way in calls.values())):
            raise RuntimeError("the fused call differs from the unfused one")
        events = measured(ways, repeats, rounds, aligned)
        events |= measured(calls, 1 + repeats // 4, call_rounds, aligned)
        profile = {
            name: profiled(ways[name], profile_calls, aligned, trace_file(traces, name, S))
            for name in ways
        }
    path.check()
    for signals in (together, aligned):
        if signals.memory.failures():
            raise RuntimeError("ranks were not in step: a signal did not come")
    spans = {name: max(rank["span"] for rank in of_way) for name, of_way in profile.items()}
    found = {
        "calls behind each other": repeats,
        "milliseconds": events,
        "hidden": {base: hidden(events, base) for base in BASES},
        "profiled calls": profile_calls,
        "profile": profile,
        "hidden in the profile": {
            base: share(spans["unfused"] - spans[base], spans["fused"] - spans[base])
            for base in BASES
        },
    }
    for line in lines(S, found):
        tell(line)
    return found


def measured(
    ways: dict[str, Way], repeats: int, rounds: int, aligned: Together
) -> dict[str, list[float]]:
    """Milliseconds of a call in each round, that of the slowest rank; ways take turns.

    The host is ahead and ranks begin within a microsecond or two of each other: what it takes to
    start the first kernel is not counted.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        for _ in range(2):
            way()
    order = list(ways)
    for number in range(rounds):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda._sleep(AHEAD)
            aligned.meet()
            start.record()
            for _ in range(repeats):
                ways[name]()
            end.record()
            end.synchronize()
            slowest = torch.tensor([start.elapsed_time(end) / repeats], device=aligned.device)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            found[name].append(round(slowest.item(), 5))
    return found


def profiled(way: Way, calls: int, aligned: Together, trace: Path | None) -> list[dict[str, float]]:
    """What a call's time is made of on each rank, in microseconds: see `per_call`."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=kinds) as profile:
        torch.cuda._sleep(FAR_AHEAD)
        aligned.meet()
        for _ in range(calls):
            way()
        torch.cuda.synchronize()
    if trace is not None:
        profile.export_chrome_trace(str(trace))
    kernels = sorted(
        (
            (event.name, event.time_range.start, event.time_range.end)
            for event in profile.events() or []
            if event.device_type.name == "CUDA" and not event.name.startswith("nccl:")
        ),
        key=lambda kernel: kernel[1],
    )
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, kernels)
    return per_call([of_calls(theirs, calls) for theirs in every])


def trace_file(folder: Path | None, way: str, S: int) -> Path | None:
    """Where this rank's trace goes."""
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"return_{way.replace(' ', '_')}_{S}_rank{dist.get_rank()}.json.gz"


def tell(line: str) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(line, flush=True)

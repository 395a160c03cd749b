"""Stress of the way back inside the attention kernel, on GPUs; `bench.fused_ulysses` runs it.

Each check returns "" or what is wrong.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from flashasc._arguments import Arguments
from flashasc._problem import Layout
from flashasc.distributed import CommunicationError, ulysses_attention
from flashasc.distributed._parcel import Parcel, Pieces
from flashasc.distributed._placement import Placement, shards, stream_index
from flashasc.distributed._return import Found, ReturnPath
from flashasc.distributed._symmetric import SymmetricBuffers
from flashasc.distributed._transport import Transport
from flashasc.distributed.verify import Request, verification_mesh, verify
from flashasc.distributed.verify.peers import poisoned, return_checks
from flashasc.distributed.verify.setting import Setting

HEADS, HEAD = 2, 128
VARIANTS = 8
SLEEP = 100_000
"""Most cycles that a stream sleeps before a step: about 50 microseconds."""
PAUSE = 20_000
"""Most nanoseconds that a program pauses before it stores."""

Check = Callable[[], str]


class Unsteady(poisoned(SymmetricBuffers)):  # type: ignore[misc]
    """Random delays before stores, signals and takes, others on each rank."""

    chance = random.Random()

    def push(self, x: Tensor, lse: Tensor | None, parcel: Parcel, slot: int, found: Found) -> None:
        _sleep(self.chance)
        super().push(x, lse, parcel, slot, found, pause=self.chance.choice([0, PAUSE]))

    def attend(self, arguments: Arguments, parcel: Parcel, slot: int, found: Found) -> None:
        _sleep(self.chance)
        super().attend(arguments, parcel, slot, found)

    def meet(self, call: int, *, seconds: float) -> None:
        _sleep(self.chance)
        super().meet(call, seconds=seconds)

    def take(self, parcel: Parcel, slot: int, found: Found) -> None:
        _sleep(self.chance)
        super().take(parcel, slot, found)


def _sleep(chance: random.Random) -> None:
    if chance.random() < 0.3:
        torch.cuda._sleep(chance.randrange(SLEEP))


def checks(device: torch.device, calls: int) -> dict[str, Check]:
    """Communication alone, with and without stress; then with attention."""
    found: dict[str, Check] = {}
    for placement in ("contiguous", "zigzag"):
        found[f"tagged tiles, {placement}"] = partial(_tagged, device, placement)
    found[f"{calls} pushes, no barrier"] = partial(pushes, device, calls)
    found[f"{calls} attentions, no barrier"] = partial(attentions, device, calls)
    found["calls of other shapes against unfused"] = partial(shapes, device)
    return found


def _setting(device: torch.device) -> Setting:
    return Setting(device, torch.bfloat16, verification_mesh(device), 30.0, lambda what: None)


def _tagged(device: torch.device, placement: Placement) -> str:
    for name, check in return_checks(_setting(device)):
        if placement in name and (wrong := check()):
            return f"{name}: {wrong}"
    return ""


def _pieces(rows: int, placement: Placement) -> tuple[Pieces, Tensor]:
    """Pieces, and the rows of this rank."""
    world, rank = dist.get_world_size(), dist.get_rank()
    held = shards([rows], world, placement)
    return Pieces.of(held), stream_index(held[rank], [rows])


def _drawn(device: torch.device, rows: int) -> list[list[Tensor]]:
    """q, k and v [1, heads of all ranks, rows, HEAD] of each variant, the same on all ranks."""
    found = []
    for variant in range(VARIANTS):
        generator = torch.Generator(device).manual_seed(variant)
        shape = (1, HEADS * dist.get_world_size(), rows, HEAD)
        found.append(
            [torch.randn(shape, generator=generator, device=device).bfloat16() for _ in range(3)]
        )
    return found


def _mine(x: Tensor) -> Tensor:
    first = dist.get_rank() * HEADS
    return x[:, first : first + HEADS].contiguous()


def _stress(calls: int, path: ReturnPath, run: Callable[[int], Tensor], right: list[Tensor]) -> str:
    """Calls in one order on all ranks, each compared on the device."""
    same, own = random.Random(0), Unsteady.chance
    own.seed(100 + dist.get_rank())
    bad = torch.zeros(VARIANTS, dtype=torch.int64, device=right[0].device)
    for _ in range(calls):
        variant = same.randrange(VARIANTS)
        out = run(variant)
        bad[variant] += (out.view(torch.int16) != right[variant].view(torch.int16)).any()
    torch.cuda.synchronize()
    dist.barrier()
    path.check()
    if wrong := int(bad.sum()):
        return f"{wrong} of {calls} calls have other bits"
    return path.unsettled()


def pushes(device: torch.device, calls: int) -> str:
    """Rows as they are."""
    ranks, rows = Transport(), 333
    pieces, mine = _pieces(rows, "zigzag")
    drawn = [tensors[0] for tensors in _drawn(device, rows)]
    right = [x[:, :, mine.to(device)].contiguous() for x in drawn]
    given = [_mine(x) for x in drawn]
    parcel = Parcel(1, HEADS, ranks.world, HEAD, torch.bfloat16, False, True, pieces, 32)
    path = ReturnPath(ranks, Unsteady)
    return _stress(calls, path, lambda n: path.push(given[n], None, parcel, ranks)[0], right)


def attentions(device: torch.device, calls: int) -> str:
    """Attention of each rank's heads, against what the unfused path returns."""
    ranks, rows = Transport(), 417
    pieces, mine = _pieces(rows, "contiguous")
    drawn = _drawn(device, rows)
    shards_ = [[x[:, :, mine.to(device)] for x in tensors] for tensors in drawn]
    right: list[Any] = [ulysses_attention(*tensors, causal=True) for tensors in shards_]
    given = [Arguments(_mine(q), _mine(k), _mine(v), causal=True) for q, k, v in drawn]
    block_m = SymmetricBuffers.tile_rows(given[0])
    parcel = Parcel(1, HEADS, ranks.world, HEAD, torch.bfloat16, False, True, pieces, block_m)
    path = ReturnPath(ranks, Unsteady)
    return _stress(calls, path, lambda n: path.attend(given[n], parcel, ranks, device)[0], right)


def shapes(device: torch.device) -> str:
    """Public calls: lengths, layouts, log-sum-exps; buffers that grow."""
    same = random.Random(1)
    for number in range(60):
        rows = same.randrange(100, 3000)
        placement: Placement = same.choice(["contiguous", "zigzag"])
        layout: Layout = "BSND" if number % 2 else "BNSD"
        _, mine = _pieces(rows, placement)
        tensors = [x[:, :, mine.to(device)] for x in _drawn(device, rows)[0]]
        if layout == "BSND":
            tensors = [x.transpose(1, 2) for x in tensors]
        attend: Any = ulysses_attention
        found = [
            attend(
                *tensors, layout=layout, placement=placement, causal=True,
                return_lse=layout == "BSND", fused=fused,
            )
            for fused in (True, False)
        ]  # fmt: skip
        pairs = zip(*found, strict=True) if layout == "BSND" else [tuple(found)]
        if not all(torch.equal(a, b) for a, b in pairs):
            return f"{rows} rows, {placement}, {layout}: other bits"
    return ""


class _Lost(SymmetricBuffers):
    """Signals of the second call are lost: they go to a word that nobody reads."""

    def meet(self, call: int, *, seconds: float) -> None:
        from flashasc.kernels.peer_launch import launch_meet

        launch_meet(
            self.peers, self.words, self.report, self.failed,
            at=4 * (self.rank if call != 1 else self.world), target=call + 1, call=call,
            nanoseconds=int(seconds * 1e9), route=self.route,
        )  # fmt: skip


def faults(device: torch.device) -> dict[str, Check]:
    """What must end in an error, on the rank that sees it."""
    return {
        "signals that are lost": partial(lost, device),
        "a peer that makes no call": partial(absent, device),
        "memory that is not symmetric": partial(not_symmetric, device),
    }


def _failing(path: ReturnPath, device: torch.device, calls: int, seconds: float) -> str:
    """What a rank is told, and after how long."""
    ranks = Transport(timeout=seconds)
    pieces, _ = _pieces(333, "contiguous")
    parcel = Parcel(1, HEADS, ranks.world, HEAD, torch.bfloat16, False, True, pieces, 32)
    x = torch.ones(1, HEADS, 333, HEAD, dtype=torch.bfloat16, device=device)
    begun = time.monotonic()
    try:
        for _ in range(calls):
            begun = time.monotonic()
            path.push(x, None, parcel, ranks)
    except CommunicationError as error:
        late = time.monotonic() - begun
        return f"{'in time' if late < 2 * seconds + 1 else f'after {late:.1f} s'}: {error}"
    return ""


def _as_told(found: str, wanted: str) -> str:
    if found.startswith("in time") and wanted in found:
        return ""
    return f"{found!r} where {wanted!r} was expected"


def lost(device: torch.device) -> str:
    """Rank 1's second call is not signalled: both ranks are told so."""
    kind = _Lost if dist.get_rank() == 1 else SymmetricBuffers
    path = ReturnPath(Transport(), kind)
    return _as_told(_failing(path, device, 2, 1.0), "step tiles of call 1, peer rank 1:")


def absent(device: torch.device) -> str:
    """Rank 1 makes one call less."""
    path = ReturnPath(Transport(), SymmetricBuffers)
    if dist.get_rank() == 1:
        return _failing(path, device, 2, 5.0)
    return _as_told(_failing(path, device, 3, 1.0), "step tiles of call 2, peer rank 1:")


def not_symmetric(device: torch.device) -> str:
    """A tensor from elsewhere, on all ranks."""
    from flashasc.distributed._device_memory import buffer_bytes

    plain = torch.zeros(buffer_bytes(dist.get_world_size(), 256), dtype=torch.uint8, device=device)
    try:
        SymmetricBuffers(Transport(), device, 256, memory=plain)
    except ValueError as error:
        return "" if "fused=False" in str(error) else str(error)
    return "it was taken"


def verified(store: Store, device: torch.device) -> str:
    """The three layers."""
    request = Request(ops=("ulysses-fused",), dtypes=(torch.bfloat16,))
    report = verify(request, store, device, verification_mesh(device), "fused")
    return "" if report.ok else report.verdict


def dying(device: torch.device) -> None:
    """Rank 1 ends in the middle; the others are told. The last thing that a process does."""
    path = ReturnPath(Transport(), SymmetricBuffers)
    if dist.get_rank() == 1:
        _failing(path, device, 2, 5.0)
        os._exit(0)
    found = _failing(path, device, 3, 2.0)
    wrong = _as_told(found, "step tiles of call 2, peer rank 1")
    print(f"a peer that dies: {wrong or 'ok'} ({found})", flush=True)
    os._exit(0)

"""The three layers for what stores in peers' memory: the way back inside the attention kernel.

On GPUs it is symmetric memory; on CPUs an emulation, which the checks name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ..._problem import heads_first
from ...attention import attention
from .._emulated import EmulatedBuffers
from .._parcel import Parcel, Pieces
from .._placement import PLACEMENTS, Placement, shards, stream_index
from .._return import PeerMemory, ReturnPath
from .._run import run_ulysses
from .._symmetric import SymmetricBuffers
from .._transport import Transport
from .cases import VerifyCase, arguments_of, draw, judge, own_rows, verify_cases
from .outcomes import Check
from .setting import Setting
from .tags import difference, same_bits, tagged

_CALLS = 5
"""One behind the other: both buffers are used again."""
_HEADS, _DV, _BLOCK_M = 2, 24, 16


@functools.cache
def poisoned(kind: type[PeerMemory]) -> type[PeerMemory]:
    """Memory in which what is not stored, or was taken, is NaN."""

    class Poisoned(kind):  # type: ignore[misc, valid-type]
        def __init__(self, transport: Transport, device: torch.device, slot_bytes: int) -> None:
            super().__init__(transport, device, slot_bytes, poison=True)

    return Poisoned


def memory_of(setting: Setting) -> type[PeerMemory]:
    """What the checks use, poisoned."""
    here = EmulatedBuffers if setting.device.type == "cpu" else SymmetricBuffers
    return poisoned(setting.memory or here)


def return_checks(setting: Setting) -> Iterator[Check]:
    """Communication alone: tagged rows, no computation."""
    kind = memory_of(setting)
    for placement in PLACEMENTS:
        name = f"sequence for heads by stores, {placement} ({kind.name})"
        yield name, lambda placement=placement: _pushed(setting, placement)  # type: ignore[misc]


def _pushed(setting: Setting, placement: Placement) -> str:
    ranks = setting.ranks()
    kind = memory_of(setting)
    path = ReturnPath(ranks, kind)
    counts = None if placement == "zigzag" else [21 + 16 * r for r in range(ranks.world)]
    held = shards([sum(counts or [53 * ranks.world])], ranks.world, placement, counts)
    pieces = Pieces.of(held)
    mine = stream_index(held[ranks.rank], [pieces.rows])
    found = []
    for call in range(_CALLS):
        parcel = Parcel(
            B=1,
            heads=_HEADS,
            world=ranks.world,
            Dv=_DV,
            dtype=setting.dtype,
            with_lse=call % 2 == 0,
            heads_first=call % 3 != 1,
            pieces=pieces,
            block_m=_BLOCK_M,
        )
        x, numbers = _tags(setting, ranks.rank, call, pieces.rows)
        found.append((parcel, path.push(x, numbers if parcel.with_lse else None, parcel, ranks)))
    setting.official().collective("official all_reduce", dist.all_reduce, _one(setting))
    path.check()
    for call, (parcel, (out, lse)) in enumerate(found):
        if wrong := _misplaced(setting, call, parcel, out, lse, mine):
            return f"call {call}: {wrong}"
    return path.unsettled()


def _one(setting: Setting) -> Tensor:
    return torch.ones(1, device=setting.device)


def _tags(setting: Setting, rank: int, call: int, rows: int) -> tuple[Tensor, Tensor]:
    """x [1, heads, rows, Dv] and lse [1, heads, rows] of a rank in a call."""
    block = 8 * call + 40 * setting.seed
    parts = [
        tagged(rank, (block + head) % 125, (1, 1, rows, _DV), setting.dtype)
        for head in range(_HEADS)
    ]
    numbers = [
        tagged(rank, (block + head + 4) % 125, (1, 1, rows), torch.float32)
        for head in range(_HEADS)
    ]
    return torch.cat(parts, 1).to(setting.device), torch.cat(numbers, 1).to(setting.device)


def _misplaced(
    setting: Setting, call: int, parcel: Parcel, out: Tensor, lse: Tensor | None, mine: Tensor
) -> str:
    out = out if parcel.heads_first else out.transpose(1, 2)
    mine = mine.to(setting.device)
    for source in range(parcel.world):
        names: dict[str, Tensor] = {}
        for number in range(_CALLS):
            x, numbers = _tags(setting, source, number, parcel.pieces.rows)
            for head in range(_HEADS):
                label = f"head {head} of rank {source} in call {number}"
                names[label] = x[0, head, mine]
                names[f"the log-sum-exp of {label}"] = numbers[0, head, mine]
        for head in range(_HEADS):
            wanted = f"head {head} of rank {source} in call {call}"
            at = source * _HEADS + head
            if said := difference(out[0, at], names[wanted], names):
                return f"where {wanted} belongs: {said}"
            wanted = f"the log-sum-exp of {wanted}"
            if lse is not None and (said := difference(lse[0, at], names[wanted], names)):
                return f"where {wanted} belongs: {said}"
    return ""


def _padded_cases() -> list[VerifyCase]:
    return [case for case in verify_cases(dist.get_world_size()) if not case.packed]


def lone_checks(setting: Setting) -> Iterator[Check]:
    """Computation alone: each rank in a group of its own, same tiles."""
    for case in _padded_cases():
        yield f"stored: {case.name}", lambda case=case: _lone(setting, case)  # type: ignore[misc]


def _lone(setting: Setting, case: VerifyCase) -> str:
    group, _ = dist.new_subgroups(1)
    inputs = draw(case, dist.get_world_size(), setting.dtype, setting.seed)
    q, k, v = (x.to(setting.device) for x in (inputs.q, inputs.k, inputs.v))
    arguments = arguments_of(case, q, k, v, inputs)
    alone = Transport(group, setting.timeout)
    out = cast(Tensor, run_ulysses(arguments, "contiguous", alone, memory=memory_of(setting)))
    options: dict[str, Any] = arguments._asdict()
    q, k, v = (options.pop(name) for name in "qkv")
    if not same_bits(out, attention(q, k, v, **options)):
        return "other bits than flashasc.attention"
    return judge(out, inputs, case, torch.arange(sum(case.lengths)))


def fused_checks(setting: Setting) -> Iterator[Check]:
    """The whole, against the exchange by all_to_all_single, and SDPA in float64."""
    for case in _padded_cases():
        yield f"ulysses-fused: {case.name}", lambda case=case: _whole(setting, case)  # type: ignore[misc]


def _whole(setting: Setting, case: VerifyCase) -> str:
    world, rank = dist.get_world_size(), dist.get_rank()
    inputs = draw(case, world, setting.dtype, setting.seed)
    rows = own_rows(case, world, rank)
    q, k, v = (x[..., rows, :].to(setting.device) for x in (inputs.q, inputs.k, inputs.v))
    arguments = arguments_of(case, q, k, v, inputs)
    found = run_ulysses(arguments, case.placement, setting.ranks(), memory=memory_of(setting))
    out = heads_first(cast(Tensor, setting.finish(found)), arguments.layout)
    right = run_ulysses(arguments, case.placement, setting.official())
    if not same_bits(out, heads_first(cast(Tensor, right), arguments.layout)):
        return "other bits than with all_to_all_single"
    return judge(out, inputs, case, rows)

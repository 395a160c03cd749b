"""Layer 2: are the numbers right? On one card, blocks at hand, with the tiles of the fused run."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist

from .._call import Geometry, LocalCall
from .._placement import Piece, Shard
from .cases import Inputs, VerifyCase, arguments_of, draw, held, judge, own_rows, verify_cases
from .outcomes import Check, Op
from .peers import lone_checks
from .setting import Setting


def computation_checks(setting: Setting, ops: tuple[Op, ...]) -> Iterator[Check]:
    """The checks of this layer: each rank does its own part of the fused run, and moves nothing."""
    world = dist.get_world_size()
    for case in verify_cases(world):
        if "ring" in ops:
            yield f"ring: {case.name}", lambda case=case: _ring(setting, case)  # type: ignore[misc]
        if "ulysses" in ops or "hybrid" in ops:
            yield f"heads: {case.name}", lambda case=case: _heads(setting, case)  # type: ignore[misc]
    if "ulysses-fused" in ops:
        yield from lone_checks(setting)


def _ring(setting: Setting, case: VerifyCase) -> str:
    """This rank's queries against everybody's keys, in the order of the ring."""
    world, rank = dist.get_world_size(), dist.get_rank()
    inputs = draw(case, world, setting.dtype, setting.seed)
    whole = (inputs.q, inputs.k, inputs.v)
    rows = [own_rows(case, world, r) for r in range(world)]
    parts = [[x[..., part, :].to(setting.device) for x in whole] for part in rows]
    q, k, v = parts[rank]
    call = LocalCall.checked(arguments_of(case, q, k, v, inputs), case.placement)
    geometry = Geometry(held(case, world), held(case, world), (0,) * len(case.lengths))
    blocks = setting.blocks(call.problem, call.extras, "auto", geometry, rank)
    for step in range(world):
        source = (rank - step) % world
        blocks.add(q, parts[source][1], parts[source][2], source)
    out, _ = blocks.finish(q, k, v)
    return judge(out, inputs, case, rows[rank])


def _heads(setting: Setting, case: VerifyCase) -> str:
    """This rank's query heads, all tokens at once."""
    world, rank = dist.get_world_size(), dist.get_rank()
    inputs = draw(case, world, setting.dtype, setting.seed)
    Hq = case.heads(world)
    count, group = Hq // world, Hq // case.Hk
    heads = torch.arange(rank * count, (rank + 1) * count)
    read = heads[:: math.gcd(count, group)] // group
    q = inputs.q.index_select(-3, heads).to(setting.device)
    k, v = (x.index_select(-3, read).to(setting.device) for x in (inputs.k, inputs.v))
    sinks = None if inputs.sinks is None else inputs.sinks[heads]
    mine = Inputs(q.cpu(), k.cpu(), v.cpu(), sinks)
    call = LocalCall.checked(arguments_of(case, q, k, v, mine), "contiguous")
    whole: list[Shard] = [(Piece((0,) * len(case.lengths), case.lengths),)]
    geometry = Geometry(whole, whole, (0,) * len(case.lengths))
    blocks = setting.blocks(call.problem, call.extras, "auto", geometry, 0)
    blocks.add(q, k, v, 0)
    out, _ = blocks.finish(q, k, v)
    return judge(out, mine, case, torch.arange(sum(case.lengths)))

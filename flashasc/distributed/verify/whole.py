"""Layer 3: the fused operators on real ranks, against official collectives and SDPA in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from ..._problem import heads_first
from .._run import run_hybrid, run_ring, run_ulysses
from .._transport import Transport
from .cases import Inputs, VerifyCase, arguments_of, draw, judge, own_rows, verify_cases
from .outcomes import OPS, Check, Op
from .peers import fused_checks
from .setting import Setting


def whole_checks(setting: Setting, ops: tuple[Op, ...]) -> Iterator[Check]:
    """The checks of this layer, in the order in which all ranks run them."""
    if "ulysses-fused" in ops:
        yield from fused_checks(setting)
    for op in OPS:
        if op not in ops:
            continue
        for case in verify_cases(dist.get_world_size()):
            yield f"{op}: {case.name}", lambda op=op, case=case: _fused(setting, op, case)  # type: ignore[misc]


def _fused(setting: Setting, op: Op, case: VerifyCase) -> str:
    world, rank = dist.get_world_size(), dist.get_rank()
    whole = draw(case, world, setting.dtype, setting.seed)
    counts, rows = _held_by_ranks(setting, op, case)
    q, k, v = (x[..., rows[rank], :].to(setting.device) for x in (whole.q, whole.k, whole.v))
    arguments = arguments_of(case, q, k, v, whole)
    placement = case.placement
    if op == "ring":
        found = run_ring(arguments, placement, setting.ranks(), setting.blocks)
    elif op == "ulysses":
        found = run_ulysses(arguments, placement, setting.ranks(), setting.exchange)
    else:
        ring, heads = (setting.ranks(setting.mesh.get_group(n)) for n in (0, 1))
        found = run_hybrid(arguments, placement, ring, heads, setting.blocks, setting.exchange)
    out = heads_first(cast(Tensor, setting.finish(found)), arguments.layout)
    # what the official collective gathers, not what this process believes the others have
    order = torch.cat(rows).argsort()
    gathered = [_gathered(setting.official(), x, counts)[..., order, :] for x in (q, k, v)]
    inputs = Inputs(gathered[0].cpu(), gathered[1].cpu(), gathered[2].cpu(), whole.sinks)
    return judge(out, inputs, case, rows[rank])


def _held_by_ranks(setting: Setting, op: Op, case: VerifyCase) -> tuple[list[int], list[Tensor]]:
    """How many tokens each rank holds, and which."""
    world = dist.get_world_size()
    if op != "hybrid":
        rows = [own_rows(case, world, r) for r in range(world)]
    else:
        ring, heads = setting.mesh.size(0), setting.mesh.size(1)
        rows = []
        for r in range(ring):
            part = own_rows(case, ring, r)
            edges = [len(part) * u // heads for u in range(heads + 1)]
            rows += [part[edges[u] : edges[u + 1]] for u in range(heads)]
    return [len(part) for part in rows], rows


def _gathered(official: Transport, x: Tensor, counts: list[int]) -> Tensor:
    """Every rank's tokens, in the order of ranks, by torch's all_gather."""
    padded = x.new_zeros((*x.shape[:-2], max(counts), x.shape[-1]))
    padded[..., : x.shape[-2], :] = x
    parts = [torch.empty_like(padded) for _ in counts]
    official.collective("official all_gather", dist.all_gather, parts, padded)
    return torch.cat([p[..., :n, :] for p, n in zip(parts, counts, strict=True)], -2)

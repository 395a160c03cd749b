"""Decoding with a cache, in plain PyTorch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .._problem import AttentionProblem, Extras
from .forward import forward
from .products import full_precision_products


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: AttentionProblem,
    extras: Extras,
    table: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Attention of the last queries of each sequence to what a cache holds of it.

    Args:
        q: [B, Hq, Sq, D] any strides.
        k, v: [B, Hk, capacity, D], [B, Hk, capacity, Dv]; with a table [pages, Hk, page, D], ...
        problem: the facts of the call; `Sk` is the most keys that a sequence has.
        extras: `kv_lens` [B]; slopes and sinks.
        table: [B, pages of a sequence] int32; numbers of no page count as the nearest.

    Returns:
        (out, lse): [B, Hq, Sq, Dv] and [B, Hq, Sq] in the working dtype.
    """
    assert extras.kv_lens is not None
    lens = extras.kv_lens.clamp(0, problem.Sk)
    problem = replace(problem, has_diagonals=True)
    extras = extras._replace(kv_lens=lens, diagonals=lens - problem.Sq)
    k, v = (in_one_piece(x, table)[:, :, : problem.Sk] for x in (k, v))
    with full_precision_products(problem.device):
        return forward(q, k, v, problem, extras)


def in_one_piece(x: Tensor, table: Tensor | None) -> Tensor:
    """[B, Hk, capacity, C] of a cache; a copy where it lies in pages."""
    if table is None:
        return x
    taken = x[table.clamp(0, x.shape[0] - 1).long()]
    return taken.transpose(1, 2).flatten(2, 3)


def append(
    k: Tensor, v: Tensor, new_k: Tensor, new_v: Tensor, lens: Tensor, table: Tensor | None
) -> None:
    """Write new tokens behind those there are; what has no place is dropped.

    Args:
        k, v, table: as for `decode`.
        new_k, new_v: [B, Hk, S, D], [B, Hk, S, Dv].
        lens: [B]. Keys that each sequence has before.

    On a device it waits for the positions.
    """
    size = k.shape[2]
    lens = lens.long()
    position = lens[:, None] + torch.arange(new_k.shape[2], device=k.device)
    capacity = size if table is None else size * table.shape[1]
    valid = (lens[:, None] >= 0) & (position < capacity)
    if table is None:
        place = torch.arange(k.shape[0], device=k.device)[:, None].expand_as(position)
        slot = position
    else:
        number = (position // size).clamp(0, table.shape[1] - 1)
        place = table.gather(1, number).long()
        valid = valid & (place >= 0) & (place < k.shape[0])
        slot = position % size
    sequence, token = valid.nonzero(as_tuple=True)
    for cache, new in ((k, new_k), (v, new_v)):
        cache[place[valid], :, slot[valid]] = new[sequence, :, token]

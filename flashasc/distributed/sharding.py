"""Give each rank its part of a sequence, and put the parts together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ._call import packed_lengths, placed
from ._groups import Group, group_of, mesh_groups
from ._placement import PLACEMENTS, Placement, Shard, positions, shards, stream_index, tokens_of
from ._run import exchanged
from ._transport import Transport

__all__ = ["own_positions", "shard_positions", "shard_sequence", "unshard_sequence"]


def shard_sequence(
    x: Tensor,
    group: Group = None,
    *,
    dim: int,
    placement: Placement = "contiguous",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """This rank's part of a sequence that all ranks have.

    Args:
        x: any shape and dtype, all tokens along `dim`.
        group: a process group, a mesh of one dimension, or None for all ranks; a mesh of two
            dimensions, ring and heads, for `hybrid_attention`.
        dim: along which tokens lie.
        placement: "contiguous": rank r holds the r-th run of tokens. "zigzag": rank r of n holds
            chunks r and 2n - 1 - r of 2n, so that causal attention is the same work on each.
        cu_seqlens: [B + 1] cumulative lengths of packed sequences: a zigzag placement cuts each.

    Returns:
        [...] contiguous; differentiable.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Any length will do: parts may differ by a token (two where zigzag), or be empty.
    """
    lengths = _lengths(x, dim, placement, cu_seqlens)
    index = _own_index(group, lengths, placement)
    return x.index_select(dim, index.to(x.device))


def unshard_sequence(
    x: Tensor,
    group: Group = None,
    *,
    dim: int,
    placement: Placement = "contiguous",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """The whole sequence, on every rank, from the ranks' parts. Not differentiable.

    Args:
        x: this rank's part; parts may differ in size along `dim`.
        group, dim, placement, cu_seqlens: as for `shard_sequence`.

    Returns:
        [...] contiguous, all tokens along `dim` in their order.

    Raises:
        TypeError, ValueError: an argument is wrong.
        NotImplementedError: gradients are asked for.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        raise NotImplementedError(
            "unshard_sequence is not differentiable; compute the loss on each rank's part, or pass "
            "x.detach()"
        )
    if isinstance(group, DeviceMesh) and group.ndim == 2:
        # parts of a rank of the ring lie one after another
        outer, inner = mesh_groups(group)
        x = torch.cat(_parts(x, Transport(inner), dim), dim)
        transport = Transport(outer)
    else:
        transport = Transport(group_of("group", group))
    parts = _parts(x, transport, dim)
    counts = tuple(part.shape[dim] for part in parts)
    whole = torch.cat(parts, dim)
    lengths = _lengths(whole, dim, placement, cu_seqlens)
    found = placed("q", tuple(lengths), counts, placement, packed=cu_seqlens is not None)
    if placement == "contiguous":
        return whole
    order = torch.cat([stream_index(shard, lengths) for shard in found])
    return whole.index_select(dim, order.argsort().to(x.device))


def shard_positions(
    length: int,
    group: Group = None,
    *,
    placement: Placement = "contiguous",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Position in its sequence of each token of this rank: for rotary embeddings, say.

    Args:
        length: tokens of the sequence, over all ranks; of all packed ones together.
        group, placement, cu_seqlens: as for `shard_sequence`.

    Returns:
        [tokens of this rank] int64, on the CPU.
    """
    like = torch.empty(length)
    lengths = _lengths(like, 0, placement, cu_seqlens)
    if isinstance(group, DeviceMesh) and group.ndim == 2:
        outer, inner = mesh_groups(group)
        ring = Transport(outer)
        shard = shards(lengths, ring.world, placement)[ring.rank]
        return positions(shard)[_inner_run(shard, Transport(inner))]
    transport = Transport(group_of("group", group))
    return positions(shards(lengths, transport.world, placement)[transport.rank])


def own_positions(
    tokens: int,
    group: Group = None,
    *,
    placement: Placement = "contiguous",
    timeout: float | None = None,
) -> Tensor:
    """As `shard_positions`, from what each rank holds: one small exchange in each dimension.

    Args:
        tokens: how many this rank holds.
        group, placement, timeout: as for `ring_attention`; or a mesh of two dimensions.

    Raises:
        ValueError: the ranks hold other numbers than a zigzag placement gives them.
    """
    meshed = isinstance(group, DeviceMesh) and group.ndim == 2
    # ring and heads; those that share heads agree first
    groups = mesh_groups(group)[::-1] if meshed else (group_of("group", group),)
    ranks = [Transport(part, timeout) for part in groups]
    facts = exchanged(
        "positions", lambda: {"placement": placement, "Sq": tokens, "Sk": tokens}, ranks
    )
    counts = [tuple(theirs["Sq"] for theirs in members) for members in facts]
    shard = placed("q", (sum(counts[-1]),), counts[-1], placement, packed=False)[ranks[-1].rank]
    first = sum(counts[0][: ranks[0].rank]) if meshed else 0
    return positions(shard)[first : first + tokens]


def _own_index(group: Any, lengths: Sequence[int], placement: Placement) -> Tensor:
    """[tokens of this rank]: their places among all."""
    if isinstance(group, DeviceMesh) and group.ndim == 2:
        outer, inner = mesh_groups(group)
        ring = Transport(outer)
        shard = shards(lengths, ring.world, placement)[ring.rank]
        return stream_index(shard, lengths)[_inner_run(shard, Transport(inner))]
    transport = Transport(group_of("group", group))
    return stream_index(shards(lengths, transport.world, placement)[transport.rank], lengths)


def _inner_run(shard: Shard, heads: Transport) -> slice:
    """The tokens of a rank of the ring that one of those that share its heads holds."""
    total = tokens_of(shard)
    start, stop = (total * r // heads.world for r in (heads.rank, heads.rank + 1))
    return slice(start, stop)


def _lengths(x: Tensor, dim: int, placement: Any, cu_seqlens: Tensor | None) -> tuple[int, ...]:
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {PLACEMENTS}; got {placement!r}")
    if cu_seqlens is None:
        return (x.shape[dim],)
    lengths = packed_lengths("cu_seqlens", cu_seqlens)
    if sum(lengths) != x.shape[dim]:
        raise ValueError(
            f"cu_seqlens must end with the tokens of x along dim {dim}, {x.shape[dim]}; got "
            f"{sum(lengths)}"
        )
    return lengths


def _parts(x: Tensor, transport: Transport, dim: int) -> list[Tensor]:
    """Every rank's x, which differ in size along `dim`; one exchange of sizes, one of data."""
    if transport.world == 1:
        return [x]
    mine = torch.tensor([x.shape[dim]], dtype=torch.int64, device=x.device)
    counts = transport.all_gather(mine, "sizes of parts").flatten().tolist()
    rows = x.detach().movedim(dim, 0)
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    found = transport.all_gather(padded, "parts of a sequence")
    return [part[:count].movedim(0, dim) for part, count in zip(found, counts, strict=True)]

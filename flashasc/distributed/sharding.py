"""Give each rank its part of a sequence, and put the parts together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ._agreement import Facts
from ._call import lengths_digest, packed_lengths, placed
from ._groups import Group, group_of, mesh_groups
from ._placement import PLACEMENTS, Placement, Shard, positions, shards, stream_index, tokens_of
from ._run import exchanged
from ._transport import Transport, require_backend

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
    _check_dim(x, dim)
    lengths = _lengths(x.shape[dim], placement, cu_seqlens, f"x along dim {dim}")
    index = _own_index(group, lengths, placement)
    return x.index_select(dim, index.to(x.device))


def unshard_sequence(
    x: Tensor,
    group: Group = None,
    *,
    dim: int,
    placement: Placement = "contiguous",
    cu_seqlens: Tensor | None = None,
    timeout: float | None = None,
) -> Tensor:
    """The whole sequence, on every rank, from the ranks' parts. Not differentiable.

    Args:
        x: this rank's part; parts may differ in size along `dim`, and in nothing else.
        group, dim, placement, cu_seqlens: as for `shard_sequence`.
        timeout: as for `ring_attention`.

    Returns:
        [...] contiguous, all tokens along `dim` in their order.

    Raises:
        TypeError, ValueError: an argument is wrong on this rank, or ranks disagree; the message
            names it.
        NotImplementedError: gradients are asked for, or the group does not move such tensors.
        PeerError: an argument is wrong on another rank; the message names both.
        CommunicationError: a transfer failed or took too long.

    Ranks agree by one small exchange in each dimension of the mesh, before anything is moved.
    """
    meshed = isinstance(group, DeviceMesh) and group.ndim == 2
    # parts of a rank of the ring lie one after another: those are joined first
    groups = mesh_groups(group)[::-1] if meshed else (group_of("group", group),)
    transports = [Transport(part, timeout) for part in groups]
    lengths: tuple[int, ...] = ()

    def describe() -> Facts:
        nonlocal lengths
        facts = _facts_of_part(x, dim, placement, transports[0].group)
        lengths = () if cu_seqlens is None else packed_lengths("cu_seqlens", cu_seqlens)
        return {**facts, "cu_seqlens": None if cu_seqlens is None else lengths_digest(lengths)}

    found = exchanged("unshard_sequence", describe, transports)
    counts = [tuple(theirs["Sq"] for theirs in members) for members in found]
    total = sum(counts[-1])
    if cu_seqlens is None:
        lengths = (total,)
    elif sum(lengths) != total:
        raise ValueError(_wrong_total("x on all ranks", total, lengths))
    held = placed("x", lengths, counts[-1], placement, packed=False)
    whole = x
    for transport, theirs in zip(transports, counts, strict=True):
        whole = _joined(whole, transport, dim, theirs)
    if placement == "contiguous":
        return whole.contiguous()
    order = torch.cat([stream_index(shard, lengths) for shard in held])
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

    Raises:
        TypeError, ValueError: an argument is wrong.
    """
    _check_count("length", length)
    lengths = _lengths(length, placement, cu_seqlens)
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
        TypeError, ValueError, PeerError, CommunicationError: as `unshard_sequence`; the ranks hold
            other numbers than a zigzag placement gives them.
    """
    meshed = isinstance(group, DeviceMesh) and group.ndim == 2
    # ring and heads; those that share heads agree first
    groups = mesh_groups(group)[::-1] if meshed else (group_of("group", group),)
    ranks = [Transport(part, timeout) for part in groups]

    def describe() -> Facts:
        _check_placement(placement)
        _check_count("tokens", tokens)
        return {"placement": placement, "Sq": tokens, "Sk": tokens}

    facts = exchanged("own_positions", describe, ranks)
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


def _lengths(
    tokens: int, placement: Any, cu_seqlens: Tensor | None, where: str = "the sequence"
) -> tuple[int, ...]:
    _check_placement(placement)
    if cu_seqlens is None:
        return (tokens,)
    lengths = packed_lengths("cu_seqlens", cu_seqlens)
    if sum(lengths) != tokens:
        raise ValueError(_wrong_total(where, tokens, lengths))
    return lengths


def _wrong_total(where: str, tokens: int, lengths: Sequence[int]) -> str:
    return f"cu_seqlens must end with the tokens of {where}, {tokens}; got {sum(lengths)}"


def _check_placement(placement: Any) -> None:
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {PLACEMENTS}; got {placement!r}")


def _check_dim(x: Any, dim: Any) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor; got {type(x).__name__}")
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an int; got {type(dim).__name__} {dim!r}")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(
            f"dim must be a dimension of x, which has {x.dim()}, {tuple(x.shape)}; got {dim}"
        )


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, 0 or more; got {type(value).__name__} {value!r}")
    if value < 0:
        raise ValueError(f"{name} must be a number of tokens, 0 or more; got {value}")


def _facts_of_part(x: Any, dim: Any, placement: Any, group: dist.ProcessGroup | None) -> Facts:
    """What the other ranks are told of a part, checked; "Sq" is how many tokens it has."""
    _check_dim(x, dim)
    _check_placement(placement)
    if torch.is_grad_enabled() and x.requires_grad:
        raise NotImplementedError(
            "unshard_sequence is not differentiable; compute the loss on each rank's part, or pass "
            "x.detach()"
        )
    if x.layout != torch.strided or x.device.type == "meta":
        raise NotImplementedError(
            f"x must be a dense tensor with data, which can be sent; got {x.layout} on {x.device}"
        )
    require_backend(dist.get_backend_config(group), x.device, "x is", collective=True)
    dim %= x.dim()
    shape = ["tokens" if n == dim else size for n, size in enumerate(x.shape)]
    return {
        "placement": placement,
        "dim": dim,
        "shape": str(shape).replace("'", ""),
        "dtype": str(x.dtype),
        "device type": x.device.type,
        "Sq": x.shape[dim],
        "Sk": x.shape[dim],
    }


def _joined(x: Tensor, transport: Transport, dim: int, counts: Sequence[int]) -> Tensor:
    """All ranks' x one after another along `dim`, along which they have so many each."""
    if transport.world == 1:
        return x
    rows = x.detach().movedim(dim, 0)
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    found = (
        transport.all_gather(padded, "parts of a sequence")
        if padded.numel()
        else [padded] * len(counts)
    )
    parts = [part[:count].movedim(0, dim) for part, count in zip(found, counts, strict=True)]
    return torch.cat(parts, dim)

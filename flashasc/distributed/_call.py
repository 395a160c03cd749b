"""One rank's call, checked, and what all ranks together compute."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .._arguments import Arguments, prepare
from .._problem import AttentionProblem, Extras, heads_first
from ._agreement import Facts
from ._placement import PLACEMENTS, Placement, Shard, shards, tokens_of


@dataclass(frozen=True)
class LocalCall:
    """What one rank brings to a call, as validated.

    Attributes:
        arguments: of the call, q, k and v in the dtype that is computed in.
        problem: the facts of this rank's tensors.
        placement: of the sequence.
        lengths_q, lengths_k: of each packed sequence, over all ranks; empty if not packed.
    """

    arguments: Arguments
    problem: AttentionProblem
    placement: Placement
    lengths_q: tuple[int, ...] = ()
    lengths_k: tuple[int, ...] = ()

    @classmethod
    def checked(cls, arguments: Arguments, placement: Any) -> LocalCall:
        """Check this rank's arguments.

        Raises:
            TypeError, ValueError, NotImplementedError: as `flashasc.attention`.
        """
        if placement not in PLACEMENTS:
            raise ValueError(f"placement must be one of {PLACEMENTS}; got {placement!r}")
        arguments, problem = prepare(arguments)
        if problem.device.type == "meta":
            raise NotImplementedError(
                "q, k and v are meta tensors, which cannot be sent; use tensors with data"
            )
        call = cls(arguments, problem, placement)
        if not problem.packed:
            return call
        return replace(
            call,
            lengths_q=packed_lengths("cu_seqlens_q", arguments.cu_seqlens_q),
            lengths_k=packed_lengths("cu_seqlens_k", arguments.cu_seqlens_k),
        )

    @property
    def q(self) -> Tensor:
        """[B, Hq, Sq, D] or [Hq, tokens, D] view of this rank's queries."""
        return heads_first(self.arguments.q, self.arguments.layout)

    @property
    def k(self) -> Tensor:
        """[B, Hk, Sk, D] or [Hk, tokens, D] view of this rank's keys."""
        return heads_first(self.arguments.k, self.arguments.layout)

    @property
    def v(self) -> Tensor:
        """[B, Hk, Sk, Dv] or [Hk, tokens, Dv] view of this rank's values."""
        return heads_first(self.arguments.v, self.arguments.layout)

    @property
    def extras(self) -> Extras:
        """The tensors beside q, k and v that parts of a call have in common."""
        return Extras(sinks=self.arguments.sinks)

    @property
    def asks_gradients(self) -> bool:
        """Whether autograd records this call."""
        return self._recorded(
            self.arguments.q, self.arguments.k, self.arguments.v, self.arguments.sinks
        )

    @staticmethod
    def _recorded(*inputs: Tensor | None) -> bool:
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)

    def facts(self) -> Facts:
        """What the other ranks are told."""
        p, packed = self.problem, self.problem.packed
        return {
            "placement": self.placement,
            "layout": p.layout,
            "dtype": str(p.dtype),
            "device type": p.device.type,
            "B": p.B,
            "Hq": p.Hq,
            "Hk": p.Hk,
            "D": p.D,
            "Dv": p.Dv,
            "causal": p.causal,
            "causal_align": "bottom_right" if p.bottom_right else "top_left",
            "scale": p.scale,
            "softcap": p.softcap,
            "window": [p.window_left, p.window_right],
            "precision": p.precision,
            "out_dtype": str(p.out_dtype),
            "return_lse": bool(self.arguments.return_lse),
            "impl": self.arguments.impl,
            "sinks": p.has_sinks,
            "gradients": self.asks_gradients,
            # where sinks alone ask for them, less goes back
            "gradients of q, k or v": self._recorded(*self.arguments[:3]),
            "cu_seqlens_q": lengths_digest(self.lengths_q) if packed else None,
            "cu_seqlens_k": lengths_digest(self.lengths_k) if packed else None,
            "Sq": p.tokens_q if packed else p.Sq,
            "Sk": p.tokens_k if packed else p.Sk,
        }


@dataclass(frozen=True)
class Geometry:
    """Where all queries and keys of a call lie.

    Attributes:
        q, k: what each rank holds.
        offsets: query i of a sequence is aligned with its key i + offset, counted in the whole
            sequence.
    """

    q: Sequence[Shard]
    k: Sequence[Shard]
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, call: LocalCall, counts_q: Sequence[int], counts_k: Sequence[int]) -> Geometry:
        """Of a call whose ranks hold so many queries and keys.

        Raises:
            ValueError: a rank holds another number than its placement says.
        """
        packed = call.problem.packed
        lengths_q = call.lengths_q if packed else (sum(counts_q),)
        lengths_k = call.lengths_k if packed else (sum(counts_k),)
        held_q, held_k = (
            placed(name, tuple(lengths), tuple(counts), call.placement, packed=packed)
            for name, lengths, counts in (("q", lengths_q, counts_q), ("k", lengths_k, counts_k))
        )
        offsets = tuple(
            m - n if call.problem.bottom_right else 0
            for n, m in zip(lengths_q, lengths_k, strict=True)
        )
        return cls(held_q, held_k, offsets)


# layers of a model ask the same, one after another
@lru_cache
def placed(
    name: str,
    lengths: tuple[int, ...],
    counts: tuple[int, ...],
    placement: Placement,
    *,
    packed: bool,
) -> tuple[Shard, ...]:
    """What ranks with so many tokens hold.

    Raises:
        ValueError: so many they do not.
    """
    if packed and sum(counts) != sum(lengths):
        raise ValueError(
            f"{name}: the ranks hold {list(counts)} tokens, {sum(counts)} together, and "
            f"cu_seqlens_{name} says {sum(lengths)}. It counts the tokens of all ranks, and is the "
            "same on each"
        )
    found = shards(lengths, len(counts), placement, counts)
    for rank, (shard, count) in enumerate(zip(found, counts, strict=True)):
        if tokens_of(shard) != count:
            raise ValueError(
                f"{name}: rank {rank} holds {count} tokens, and a zigzag placement of "
                f"{sum(lengths)} gives it {tokens_of(shard)}. Cut the sequence with "
                f'shard_sequence(..., placement="zigzag"), or pass placement="contiguous", which '
                "takes any lengths"
            )
    return tuple(found)


def packed_lengths(name: str, cu_seqlens: Tensor) -> tuple[int, ...]:
    """Lengths of the packed sequences; waits for the device.

    Raises:
        TypeError, ValueError: they are none; they do not start with 0, or fall.
    """
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(cu_seqlens).__name__}")
    if cu_seqlens.dim() != 1 or not cu_seqlens.numel() or cu_seqlens.is_floating_point():
        raise ValueError(
            f"{name} must be integers [sequences + 1], cumulative lengths that start with 0; got "
            f"{tuple(cu_seqlens.shape)} of {cu_seqlens.dtype}"
        )
    edges: list[int] = cu_seqlens.tolist()
    lengths = tuple(stop - start for start, stop in zip(edges, edges[1:]))  # noqa: RUF007
    if edges[0] != 0 or any(length < 0 for length in lengths):
        raise ValueError(
            f"{name} must start with 0 and not fall; got {edges[:8]}. It holds the cumulative "
            "lengths of the whole sequences, over all ranks"
        )
    return lengths


def lengths_digest(lengths: tuple[int, ...]) -> str:
    """Short, and different for different lengths."""
    return f"{len(lengths)} sequences, {hashlib.sha256(repr(lengths).encode()).hexdigest()[:12]}"

"""Ring attention: blocks of keys go round, while each rank attends to the one that it has.

Source: Liu, Zaharia, Abbeel, arXiv:2310.01889 (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import reference
from .._dispatch import Impl
from .._problem import AttentionProblem, Extras
from ._blocks import BlockAttention
from ._call import Geometry
from ._placement import tokens_of
from ._queues import beside, is_queued, mark
from ._transport import Transport, as_bytes

Blocks = Callable[[AttentionProblem, Extras, Impl, Geometry, int], BlockAttention]
"""Makes what computes."""


@dataclass(frozen=True)
class Ring:
    """A validated call, the same on all ranks, and the ranks.

    Attributes:
        transport: the ranks.
        problem: the facts of the call.
        impl: as for `flashasc.attention`.
        geometry: where all queries and keys lie.
        blocks: makes what computes.
    """

    transport: Transport
    problem: AttentionProblem
    impl: Impl
    geometry: Geometry
    blocks: Blocks = BlockAttention

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of this rank's queries, differentiable.

        Args:
            q: [B, Hq, S, D] or [Hq, tokens, D] view, any strides: this rank's.
            k, v: likewise.
            sinks: [Hq].

        Returns:
            (out, lse): [B, Hq, S, Dv] and [B, Hq, S], or [Hq, tokens, Dv] and [Hq, tokens].
        """
        found: tuple[Tensor, Tensor] = _RingAttention.apply(q, k, v, sinks, self)  # type: ignore[no-untyped-call]
        return found

    def math(self, sinks: Tensor | None) -> BlockAttention:
        """What computes this rank's rows."""
        extras = Extras(sinks=sinks)
        rank = self.transport.rank
        return self.blocks(self.problem, extras, self.impl, self.geometry, rank)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As `attend`, without a record for autograd."""
        math = self.math(sinks)
        begin = partial(math.begin, self.transport.rank, q)
        for source, (k_block, v_block) in self.rotate((k, v), self.steps(math), begin):
            math.add(q, k_block, v_block, source)
        return math.finish(q, k, v)

    def steps(self, math: BlockAttention) -> int:
        """How many blocks each rank has to see: less than all where a window hides the rest.

        The same on all ranks, as all of them know the geometry.
        """
        world = self.transport.world
        # from the last on: most calls need all
        for step in range(world - 1, 0, -1):
            if any(
                math.visibility(piece, keys) != "none"
                for rank in range(world)
                for piece in self.geometry.q[rank]
                for keys in self.geometry.k[(rank - step) % world]
            ):
                return step + 1
        return 1

    def rotate(
        self, own: Sequence[Tensor], steps: int, begin: Callable[..., None] | None = None
    ) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """Send blocks of keys round the ring.

        Args:
            own: [..., S, C] this rank's tensors, of one dtype.
            steps: how many blocks to see, this rank's own among them.
            begin: given this rank's block, makes a device compute something with it, before the
                host, which is slower than the first transfer, prepares that. Not called where
                computing takes the host.

        Yields:
            (source, tensors): whose block it is, and the block: this rank's own tensors, and
            contiguous ones, good until the next, of the others. The next is under way meanwhile.
        """
        transport, dtype = self.transport, own[0].dtype
        rank, world = transport.rank, transport.world
        if steps == 1:
            yield rank, tuple(own)
            return
        counts = [tokens_of(shard) for shard in self.geometry.k]
        shapes = [[(*x.shape[:-2], count, x.shape[-1]) for x in own] for count in counts]
        sizes = [sum(torch.Size(shape).numel() for shape in block) for block in shapes]
        # two buffers by turns: one is computed on and sent, the other one filled
        current, coming = (own[0].new_empty(max(sizes)) for _ in range(2))
        device, early = current.device, begin if is_queued(current.device) else None
        # neither what is computed of this rank's block nor its way to the next waits for the other
        aside = nullcontext if early is None else partial(beside, device, mark(device))
        with aside():
            for target, x in zip(_views(current, shapes[rank]), own, strict=True):
                target.copy_(x)
        if early is not None:
            early(*own)
        for step in range(steps):
            source = (rank - step) % world
            pending = None
            if step < steps - 1:
                after = sizes[(source - 1) % world]
                with nullcontext() if step else aside():
                    pending = transport.exchange(
                        as_bytes(current[: sizes[source]]),
                        as_bytes(coming[:after]),
                        step,
                        f"ring exchange of {_name(dtype)} keys and values",
                    )
            yield source, _views(current, shapes[source]) if step else tuple(own)
            if pending is not None:
                pending.wait()
            current, coming = coming, current

    def backward(
        self,
        grads: tuple[Tensor, Tensor | None],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        out: Tensor,
        lse: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v, in the working dtype.

        Each block goes round once more, and what it is owed goes with it, back to its owner.
        """
        transport = self.transport
        rank, world = transport.rank, transport.world
        working = reference.working_dtype(q.dtype)
        math = self.math(sinks)
        grad_out, grad_lse = grads
        dq = torch.zeros_like(q, dtype=working, memory_format=torch.contiguous_format)
        owed: Tensor | None = None
        pending = None
        for source, (k_block, v_block) in self.rotate((k, v), world):
            mine = q.new_zeros(k_block.numel() + v_block.numel(), dtype=working)
            dk, dv = _views(mine, [k_block.shape, v_block.shape])
            tensors = (q, k_block, v_block, out, lse)
            math.gradients(grad_out, grad_lse, tensors, source, (dq, dk, dv))
            if pending is not None and owed is not None:
                pending.wait()
                mine += owed
            # the block's next stop is the rank after this one; the last stop, its owner
            coming = (source - 1) % world
            owed = mine if world == 1 else mine.new_empty(self._owed(k, v, coming))
            if world == 1:
                break
            step = (rank - source) % world
            pending = transport.exchange(
                as_bytes(mine), as_bytes(owed), step, "ring exchange of gradients"
            )
        assert owed is not None
        if pending is not None:
            pending.wait()
        dk, dv = _views(owed, [k.shape, v.shape])
        return dq, dk, dv

    def _owed(self, k: Tensor, v: Tensor, rank: int) -> int:
        """How many numbers dk and dv of a rank have."""
        count = tokens_of(self.geometry.k[rank])
        return sum(torch.Size((*x.shape[:-2], count, x.shape[-1])).numel() for x in (k, v))


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, ring: Ring
    ) -> tuple[Tensor, Tensor]:
        out, lse = ring.forward(q, k, v, sinks)
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.ring = ring
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, sinks, out, lse = ctx.saved_tensors
        # every rank takes part, asked or not: others wait for what passes through here
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        dq, dk, dv = ctx.ring.backward((grad_out, grad_lse), q, k, v, sinks, out, lse)
        d_sinks = None
        if sinks is not None and ctx.needs_input_grad[3]:
            d_sinks = _sink_gradient(sinks, grad_out, grad_lse, out, lse)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), d_sinks, None


def _sink_gradient(
    sinks: Tensor, grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor
) -> Tensor:
    """[Hq]: what this rank's queries contribute."""
    delta = (grad_out.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    if grad_lse is not None:
        delta = delta - grad_lse
    # a sink of -inf takes no part
    shares = (sinks.to(lse.dtype)[:, None] - lse).exp().masked_fill(lse == -torch.inf, 0.0)
    by_row = -(shares * delta)
    heads = by_row if by_row.dim() == 2 else by_row.sum(0)
    return heads.sum(-1).to(sinks.dtype)


def _views(flat: Tensor, shapes: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
    """Tensors one behind another in a flat one."""
    found, start = [], 0
    for shape in shapes:
        size = torch.Size(shape).numel()
        found.append(flat[start : start + size].view(*shape))
        start += size
    return tuple(found)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

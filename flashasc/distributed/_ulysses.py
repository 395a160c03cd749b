"""Heads for sequence: each rank gives away its tokens of most heads and gets all tokens of a few.

Source: Jacobs et al., arXiv:2309.14509 (2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._queues import on_device
from ._transport import Pending, Transport, as_bytes


@dataclass(frozen=True)
class HeadExchange:
    """Heads against sequence, and back, among the ranks of a group.

    Attributes:
        transport: the ranks.
        counts_q, counts_k: how many tokens of the queries and keys each rank holds.
        Hq, Hk: query and key/value heads; Hq is a multiple of the ranks and of Hk.
    """

    transport: Transport
    counts_q: tuple[int, ...]
    counts_k: tuple[int, ...]
    Hq: int
    Hk: int

    @property
    def heads(self) -> int:
        """Query heads that a rank gets."""
        return self.Hq // self.transport.world

    def all_tokens(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All tokens of this rank's heads. All three are under way before any is waited for.

        Args:
            q: [B, Hq, S, D] view, any strides: this rank's tokens of all heads.
            k, v: [B, Hk, S, D] likewise.

        Returns:
            q: [B, heads, tokens of all ranks, D] view, tokens in the order of ranks.
            k, v: likewise, of the key/value heads that these query heads read. A head that several
                ranks read goes to each of them.
        """
        found = exchange_rows(
            self.transport,
            [
                self._away(self.split(q), self.counts_q, "queries"),
                self._away(self._read(k), self.counts_k, "keys"),
                self._away(self._read(v), self.counts_k, "values"),
            ],
        )
        # [tokens, B, heads, D] -> [B, heads, tokens, D]
        q, k, v = (x.permute(1, 2, 0, 3) for x in found)
        return q, k, v

    def split(self, q: Tensor) -> Tensor:
        """Query heads in the order of the ranks that get them: as they are."""
        return q

    def _read(self, k: Tensor) -> Tensor:
        """The key/value heads that each rank reads, rank by rank."""
        if self.key_heads == list(range(self.Hk)):
            return k
        return k.index_select(1, on_device(torch.tensor(self.key_heads), k.device))

    @property
    def key_heads(self) -> list[int]:
        """The key/value heads that each rank reads, rank by rank, each rank as many.

        With g query heads a key/value head and n query heads a rank, runs of gcd(g, n) query heads
        lie within one key/value head and within one rank.
        """
        run = math.gcd(self.Hq // self.Hk, self.heads)
        return [first // (self.Hq // self.Hk) for first in range(0, self.Hq, run)]

    def _away(self, x: Tensor, counts: Sequence[int], what: str) -> Rows:
        rank, world = self.transport.rank, self.transport.world
        # [B, world * n, S, D] -> rows of [B, n, D], those for rank 0 first
        rows = x.unflatten(1, (world, -1)).permute(1, 3, 0, 2, 4).flatten(0, 1)
        return Rows(rows, (counts[rank],) * world, tuple(counts), f"heads for sequence, {what}")

    def back(self, out: Tensor, lse: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """This rank's tokens of all heads again.

        Args:
            out: [B, heads, tokens of all ranks, Dv] view, tokens in the order of ranks.
            lse: [B, heads, tokens of all ranks], or None.

        Returns:
            (out, lse): [B, Hq, S, Dv] and [B, Hq, S] views.
        """
        home = [self._home(out, "output")]
        if lse is not None:
            home.append(self._home(lse[..., None], "log-sum-exp"))
        found = [
            # [world * S, B, heads, C] -> [B, world * heads, S, C]
            x.unflatten(0, (self.transport.world, -1)).permute(2, 0, 3, 1, 4).flatten(1, 2)
            for x in exchange_rows(self.transport, home)
        ]
        return found[0], None if lse is None else found[1][..., 0]

    def _home(self, x: Tensor, what: str) -> Rows:
        counts, world = self.counts_q, self.transport.world
        receive = (counts[self.transport.rank],) * world
        return Rows(x.permute(2, 0, 1, 3), counts, receive, f"sequence for heads, {what}")


class Rows(NamedTuple):
    """What a rank gives away, and gets.

    Attributes:
        rows: [sum(send), ...] any strides, those for rank 0 first.
        send, receive: how many rows for, and from, each rank.
        what: named where it fails.
    """

    rows: Tensor
    send: tuple[int, ...]
    receive: tuple[int, ...]
    what: str


def exchange_rows(transport: Transport, away: Sequence[Rows]) -> list[Tensor]:
    """Give each rank its rows; differentiable. All start before any is waited for.

    Returns:
        For each of `away`: [sum(receive), ...] contiguous, in the order of ranks.
    """
    if transport.world == 1:
        return [x.rows.contiguous() for x in away]
    plans = [x[1:] for x in away]
    return list(_ExchangeRows.apply(transport, plans, *(x.rows for x in away)))  # type: ignore[no-untyped-call]


_Plan = tuple[tuple[int, ...], tuple[int, ...], str]


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, transport: Transport, plans: Sequence[_Plan], *rows: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transport = transport
        ctx.plans = [(receive, send, f"gradient of {what}") for send, receive, what in plans]
        return _exchange(transport, rows, plans)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return None, None, *_exchange(ctx.transport, grads, ctx.plans)


def _exchange(
    transport: Transport, rows: Sequence[Tensor], plans: Sequence[_Plan]
) -> tuple[Tensor, ...]:
    # what is sent is kept until it has arrived; one is made contiguous while others are on the way
    under_way = [_start(transport, x, *plan) for x, plan in zip(rows, plans, strict=True)]
    for _, _, pending in under_way:
        pending.wait()
    return tuple(found for found, _, _ in under_way)


def _start(
    transport: Transport, rows: Tensor, send: Sequence[int], receive: Sequence[int], what: str
) -> tuple[Tensor, Tensor, Pending]:
    """(found, rows, pending)."""
    rows = rows.contiguous()
    assert rows.shape[0] == sum(send), (rows.shape, send)
    found = rows.new_empty((sum(receive), *rows.shape[1:]))
    width = rows[:1].numel() if rows.shape[0] else found[:1].numel()
    pending = transport.all_to_all(
        as_bytes(found.view(-1)).view(sum(receive), width * rows.itemsize),
        as_bytes(rows.view(-1)).view(sum(send), width * rows.itemsize),
        receive,
        send,
        what,
    )
    return found, rows, pending

"""Heads for sequence: each rank gives away its tokens of most heads and gets all tokens of a few.

Source: Jacobs et al., arXiv:2309.14509 (2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._transport import Transport, as_bytes


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

    def queries(self, q: Tensor) -> Tensor:
        """All tokens of this rank's query heads.

        Args:
            q: [B, Hq, S, D] view, any strides: this rank's tokens of all heads.

        Returns:
            [B, heads, tokens of all ranks, D] view, tokens in the order of ranks.
        """
        return self._gathered(q, self.counts_q, "queries")

    def keys(self, k: Tensor, what: str = "keys") -> Tensor:
        """All tokens of the key/value heads that this rank's query heads read.

        Args:
            k: [B, Hk, S, D] view, any strides: this rank's tokens of all heads.
            what: "keys" or "values".

        A head that several ranks read goes to each of them.
        """
        needed = torch.tensor(self.key_heads, device=k.device)
        if self.key_heads != list(range(self.Hk)):
            k = k.index_select(1, needed)
        return self._gathered(k, self.counts_k, what)

    @property
    def key_heads(self) -> list[int]:
        """The key/value heads that each rank reads, rank by rank, each rank as many.

        With g query heads a key/value head and n query heads a rank, runs of gcd(g, n) query heads
        lie within one key/value head and within one rank.
        """
        run = math.gcd(self.Hq // self.Hk, self.heads)
        return [first // (self.Hq // self.Hk) for first in range(0, self.Hq, run)]

    def _gathered(self, x: Tensor, counts: Sequence[int], what: str) -> Tensor:
        rank, world = self.transport.rank, self.transport.world
        # [B, world * n, S, D] -> rows of [B, n, D], those for rank 0 first
        rows = x.unflatten(1, (world, -1)).permute(1, 3, 0, 2, 4).flatten(0, 1)
        found = exchange_rows(
            self.transport, rows, [counts[rank]] * world, counts, f"heads for sequence, {what}"
        )
        return found.permute(1, 2, 0, 3)

    def back(self, x: Tensor, what: str = "output") -> Tensor:
        """This rank's tokens of all heads again.

        Args:
            x: [B, heads, tokens of all ranks, C] view, tokens in the order of ranks.
            what: "output" or "log-sum-exp".

        Returns:
            [B, Hq, S, C] view.
        """
        rank, world = self.transport.rank, self.transport.world
        counts = self.counts_q
        found = exchange_rows(
            self.transport,
            x.permute(2, 0, 1, 3),
            counts,
            [counts[rank]] * world,
            f"sequence for heads, {what}",
        )
        # [world * S, B, heads, C] -> [B, world * heads, S, C]
        by_rank: Tensor = found.unflatten(0, (world, -1))
        return by_rank.permute(2, 0, 3, 1, 4).flatten(1, 2)


def exchange_rows(
    transport: Transport, rows: Tensor, send: Sequence[int], receive: Sequence[int], what: str
) -> Tensor:
    """Give each rank its rows; differentiable.

    Args:
        transport: the ranks.
        rows: [sum(send), ...] any strides.
        send, receive: how many rows for, and from, each rank.
        what: named where it fails.

    Returns:
        [sum(receive), ...] contiguous, in the order of ranks.
    """
    if transport.world == 1:
        return rows.contiguous()
    found: Tensor = _ExchangeRows.apply(rows, transport, send, receive, what)  # type: ignore[no-untyped-call]
    return found


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        transport: Transport,
        send: Sequence[int],
        receive: Sequence[int],
        what: str,
    ) -> Tensor:
        ctx.reverse = (transport, receive, send, f"gradient of {what}")
        return _exchange(rows, transport, send, receive, what)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return _exchange(grad, *ctx.reverse), None, None, None, None


def _exchange(
    rows: Tensor, transport: Transport, send: Sequence[int], receive: Sequence[int], what: str
) -> Tensor:
    rows = rows.contiguous()
    assert rows.shape[0] == sum(send), (rows.shape, send)
    found = rows.new_empty((sum(receive), *rows.shape[1:]))
    width = rows[:1].numel() if rows.shape[0] else found[:1].numel()
    transport.all_to_all(
        as_bytes(found.view(-1)).view(sum(receive), width * rows.itemsize),
        as_bytes(rows.view(-1)).view(sum(send), width * rows.itemsize),
        receive,
        send,
        what,
    )
    return found

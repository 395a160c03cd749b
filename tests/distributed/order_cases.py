"""In which order a rank computes and moves: run inside a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from flashasc._arguments import Arguments
from flashasc.distributed import (
    ContextParallel,
    PeerError,
    _ring,
    count_transfers,
    ring_attention,
)
from flashasc.distributed._blocks import BlockAttention, Pair
from flashasc.distributed._run import run_ring, run_ulysses
from flashasc.distributed._transport import Pending, Transport

Events = list[str]


class NotedPending(Pending):
    """Says when it is waited for."""

    def __init__(self, pending: Pending, what: str, events: Events) -> None:
        super().__init__(pending.transport, pending.works)
        self.what, self.events = what, events

    def wait(self) -> None:
        self.events.append(f"wait for {self.what}")
        super().wait()


class NotedTransport(Transport):
    """Says when it starts to move something."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self.events = events

    def exchange(self, send: Tensor, receive: Tensor, step: int, what: str) -> Pending:
        return self._noted(f"step {step}", lambda: super(NotedTransport, self).exchange(
            send, receive, step, what))  # fmt: skip

    def all_to_all(
        self,
        receive: Tensor,
        send: Tensor,
        receive_rows: Sequence[int],
        send_rows: Sequence[int],
        what: str,
    ) -> Pending:
        return self._noted(what, lambda: super(NotedTransport, self).all_to_all(
            receive, send, receive_rows, send_rows, what))  # fmt: skip

    def _noted(self, what: str, start: Callable[[], Pending]) -> Pending:
        self.events.append(f"start {what}")
        return NotedPending(start(), what, self.events)


def exchanges_of_facts() -> list[int]:
    """Collectives of a call on which ranks agree, of one on which they don't, of one refused."""
    q = torch.ones(1, 2, 6, 8)
    rank, found = dist.get_rank(), []
    for call in (
        # the same number, written in two ways
        lambda: ring_attention(q, q, q, softcap=(3, 3.0)[rank]),
        lambda: ring_attention(q, q, q, softcap=3.0 + rank),
        lambda: ring_attention(q, q, q) if rank else ContextParallel().refuse(OSError("none")),
    ):
        with count_transfers() as counts:
            try:
                call()
                found.append(counts.collectives)
            except (ValueError, OSError, PeerError):
                found.append(-counts.collectives)
    return found


def orders() -> dict[str, Events]:
    """What happens in calls of two ranks: as on a CPU, and as on a device with queues."""
    found = {}
    tensors = [torch.randn(1, 2, 12, 8, generator=torch.Generator().manual_seed(3))] * 3
    for name, placement in (("zigzag", "zigzag"), ("contiguous", "contiguous")):
        plain, queued = [_ring_order(placement, tensors, q) for q in (False, True)]
        assert torch.equal(plain[1], queued[1])
        found[name], found[f"{name}, queued"] = plain[0], queued[0]
    events: Events = []
    arguments = Arguments(*tensors, causal=True, return_lse=True)
    run_ulysses(arguments, "contiguous", NotedTransport(events))
    found["ulysses"] = events
    return found


def _ring_order(placement: Any, tensors: list[Tensor], queued: bool) -> tuple[Events, Tensor]:
    events: Events = []

    class Noted(BlockAttention):
        def _attend(self, q: Tensor, k: Tensor, v: Tensor, number: int, pair: Pair) -> None:
            events.append("attend")
            super()._attend(q, k, v, number, pair)

    def mark(device: torch.device) -> str:
        events.append("mark")
        return "mark"

    @contextmanager
    def beside(device: torch.device, after: Any) -> Iterator[None]:
        events.append(f"beside, after {after}")
        yield

    patches = {"is_queued": lambda device: queued, "mark": mark, "beside": beside}
    with mock.patch.multiple(_ring, **patches):
        out = run_ring(Arguments(*tensors, causal=True), placement, NotedTransport(events), Noted)
    assert isinstance(out, Tensor)
    return events, out

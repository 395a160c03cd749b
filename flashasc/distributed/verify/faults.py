"""Faults to inject, to see that the checks find them: each one thing, wrong on one rank."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..._states import AttentionState, merge_states
from .._blocks import BlockAttention
from .._placement import Piece
from .._run import Result
from .._transport import Pending, Transport
from .._ulysses import HeadExchange
from .outcomes import Layer, Op
from .peer_faults import FUSED_FAULTS, with_fused_fault
from .setting import Setting

KILLED = 9
"""Exit status of a rank that a fault kills."""


@dataclass(frozen=True)
class Fault:
    """Something to go wrong.

    Attributes:
        layer: the first that has to find it.
        what: in words.
        install: puts it into a rank's setting.
        breaks: communication does not work afterwards.
    """

    layer: Layer
    what: str
    install: Callable[[Setting], Setting]
    breaks: bool = False


def with_fault(setting: Setting, name: str, rank: int, ops: Sequence[Op]) -> Setting:
    """The setting of this rank, with a fault if it is the one.

    Raises:
        ValueError: no such fault, or rank; or nothing is checked that could have it.
    """
    if name in FUSED_FAULTS:
        if "ulysses-fused" not in ops:
            raise ValueError(f"--inject: {name} is a fault of --op ulysses-fused")
        return with_fused_fault(setting, name) if dist.get_rank() == rank else setting
    if name not in FAULTS:
        known = ", ".join((*FAULTS, *FUSED_FAULTS))
        raise ValueError(f"--inject: {name} is no fault; expected {known}")
    if not 0 <= rank < dist.get_world_size():
        raise ValueError(f"--at: expected a rank, 0 to {dist.get_world_size() - 1}; got {rank}")
    return FAULTS[name].install(setting) if dist.get_rank() == rank else setting


class _Tampered(Transport):
    """What arrives is changed before anyone sees it."""

    def change(self, received: Tensor, intended: Tensor, parts: Sequence[int]) -> None:
        """Write into `received` what this rank is to see.

        Args:
            received: flat uint8, with what was there before the transfer.
            intended: what arrived.
            parts: bytes of each part: one for each rank, or two halves.
        """
        raise NotImplementedError

    def exchange(self, send: Tensor, receive: Tensor, step: int, what: str) -> Pending:
        arrived = torch.empty_like(receive)
        pending = super().exchange(send, arrived, step, what)
        half = receive.numel() // 2
        return _Afterwards(
            pending, lambda: self.change(receive, arrived, [half, receive.numel() - half])
        )

    def all_to_all(
        self,
        receive: Tensor,
        send: Tensor,
        receive_rows: Sequence[int],
        send_rows: Sequence[int],
        what: str,
    ) -> Pending:
        arrived = torch.empty_like(receive)
        pending = super().all_to_all(arrived, send, receive_rows, send_rows, what)
        width = receive.shape[1]
        parts = [rows * width for rows in receive_rows]
        return _Afterwards(pending, lambda: self.change(receive.view(-1), arrived.view(-1), parts))

    def all_gather(self, x: Tensor, what: str) -> Tensor:
        found = super().all_gather(x, what)
        if not what.startswith("facts"):
            flat = found.view(torch.uint8).view(-1)
            arrived = flat.clone()
            flat.zero_()
            self.change(flat, arrived, [flat.numel() // self.world] * self.world)
        return found


class _Afterwards(Pending):
    """Transfers after which something is done."""

    def __init__(self, pending: Pending, after: Callable[[], None]) -> None:
        super().__init__(pending.transport, pending.works)
        self.after = after

    def wait(self) -> None:
        super().wait()
        self.after()


class _Swapped(_Tampered):
    def change(self, received: Tensor, intended: Tensor, parts: Sequence[int]) -> None:
        pieces = list(intended.split(list(parts)))
        if len(pieces) > 1:
            pieces[0], pieces[1] = pieces[1], pieces[0]
        received.copy_(torch.cat(pieces))


class _Stale(_Tampered):
    def change(self, received: Tensor, intended: Tensor, parts: Sequence[int]) -> None:
        # what was in the buffer stays there
        pass


class _Corrupt(_Tampered):
    def change(self, received: Tensor, intended: Tensor, parts: Sequence[int]) -> None:
        received.copy_(intended)
        # the highest exponent bits of the last number
        received[-1:] ^= 0x7C


class _Zeros(_Tampered):
    def change(self, received: Tensor, intended: Tensor, parts: Sequence[int]) -> None:
        received.zero_()


class _Truncated(_Tampered):
    def change(self, received: Tensor, intended: Tensor, parts: Sequence[int]) -> None:
        cut = intended.numel() * 3 // 4
        received[:cut] = intended[:cut]
        received[cut:] = 0


class _Dropped(Transport):
    def start(self, wanted: Sequence[tuple[Any, Tensor, int, str]]) -> Pending:
        return super().start([row for row in wanted if row[0] is not dist.isend])


class _WrongPeer(Transport):
    def start(self, wanted: Sequence[tuple[Any, Tensor, int, str]]) -> Pending:
        turned = [
            (kind, buffer, (self.rank - 1) % self.world if kind is dist.isend else peer, what)
            for kind, buffer, peer, what in wanted
        ]
        return super().start(turned)


class _Interrupted(Transport):
    """Something happens instead of, or before, a transfer of attention's."""

    def interrupt(self, what: str) -> None:
        """What happens."""
        raise NotImplementedError

    def exchange(self, send: Tensor, receive: Tensor, step: int, what: str) -> Pending:
        self.interrupt(f"{what}, step {step}")
        return super().exchange(send, receive, step, what)

    def all_to_all(
        self,
        receive: Tensor,
        send: Tensor,
        receive_rows: Sequence[int],
        send_rows: Sequence[int],
        what: str,
    ) -> Pending:
        if what != "all_to_all_single":
            self.interrupt(what)
        return super().all_to_all(receive, send, receive_rows, send_rows, what)


class _Killed(_Interrupted):
    def interrupt(self, what: str) -> None:
        self._note(what)
        os._exit(KILLED)


class _Asleep(_Interrupted):
    def interrupt(self, what: str) -> None:
        self._note(f"asleep before {what}")
        time.sleep(1.5 * (self.timeout or 0.0))


class _CountedTwice(Transport):
    def collective(self, what: str, operation: Callable[..., Any], *args: Any, **kw: Any) -> None:
        before = args[0].clone() if what == "all_reduce" else None
        super().collective(what, operation, *args, **kw)
        if before is not None:
            args[0].add_(before)


class _WrongShard(Transport):
    def collective(self, what: str, operation: Callable[..., Any], *args: Any, **kw: Any) -> None:
        if what == "reduce_scatter":
            out, whole = args
            args = (out, whole.view(self.world, -1).roll(1, 0).view(whole.shape))
        super().collective(what, operation, *args, **kw)


class _StaleHeads(HeadExchange):
    @property
    def key_heads(self) -> list[int]:
        # as if there were half as many, as in an earlier call
        return [head // 2 for head in super().key_heads]

    def split(self, q: Tensor) -> Tensor:
        # for half as many ranks
        half: Tensor = q.unflatten(1, (2, -1)).flip(1).flatten(1, 2)
        return half


class _WrongDiagonal(BlockAttention):
    def diagonals(self, queries: Piece, keys: Piece) -> tuple[int, ...]:
        return tuple(diagonal + 1 for diagonal in super().diagonals(queries, keys))


class _MergeSkipped(BlockAttention):
    def merge(self, a: AttentionState, b: AttentionState) -> AttentionState:
        return b


class _SinkTwice(BlockAttention):
    def finalize(self, state: AttentionState) -> tuple[Tensor, Tensor]:
        sinks = self.extras.sinks
        if sinks is None:
            return super().finalize(state)
        twice = self.extras._replace(sinks=sinks + math.log(2.0))
        once, self.extras = self.extras, twice
        try:
            return super().finalize(state)
        finally:
            self.extras = once


class _BlockSkipped(BlockAttention):
    def add(self, q: Tensor, k: Tensor, v: Tensor, source: int) -> None:
        world = len(self.geometry.k)
        if world == 1 or source != (self.rank + 1) % world:
            super().add(q, k, v, source)


class _RoundedStates(BlockAttention):
    def merge(self, a: AttentionState, b: AttentionState) -> AttentionState:
        rounded = [replace(s, acc=s.acc.to(torch.bfloat16).to(s.acc.dtype)) for s in (a, b)]
        return merge_states(*rounded)


def _shifted(result: Result) -> Result:
    out = result[0] if isinstance(result, tuple) else result
    return out.roll(1, 0 if out.dim() == 3 else 2)


def _moves(transport: type[Transport]) -> Callable[[Setting], Setting]:
    return lambda setting: replace(setting, transport=transport)


def _computes(blocks: type[BlockAttention]) -> Callable[[Setting], Setting]:
    return lambda setting: replace(setting, blocks=blocks)


FAULTS: dict[str, Fault] = {
    "swap-blocks": Fault("comm", "two blocks that arrive change places", _moves(_Swapped)),
    "stale-buffer": Fault("comm", "a wait is left out: a buffer is read early", _moves(_Stale)),
    "corrupt": Fault("comm", "bits of one number that arrives are flipped", _moves(_Corrupt)),
    "zeros": Fault("comm", "zeros come from a collective or a receive", _moves(_Zeros)),
    "truncate": Fault("comm", "the last quarter of a block is missing", _moves(_Truncated)),
    "drop-send": Fault("comm", "a send is left out", _moves(_Dropped), True),
    "wrong-peer": Fault("comm", "a block is sent to the rank before", _moves(_WrongPeer), True),
    "kill": Fault("comm", "the process ends", _moves(_Killed), True),
    "late": Fault("comm", "the rank sleeps beyond the deadline", _moves(_Asleep), True),
    "count-twice": Fault("comm", "all_reduce counts this rank twice", _moves(_CountedTwice)),
    "wrong-shard": Fault("comm", "reduce_scatter gives away other shards", _moves(_WrongShard)),
    "stale-heads": Fault(
        "comm",
        "heads are split as for another number of them",
        lambda setting: replace(setting, exchange=_StaleHeads),
    ),
    "wrong-diagonal": Fault(
        "compute", "queries are aligned one key too far", _computes(_WrongDiagonal)
    ),
    "skip-merge": Fault("compute", "a block replaces those before it", _computes(_MergeSkipped)),
    "skip-block": Fault("compute", "a rank's keys are left out", _computes(_BlockSkipped)),
    "sink-twice": Fault("compute", "sinks count twice", _computes(_SinkTwice)),
    "rounded-states": Fault(
        "compute", "states are rounded to bfloat16 between blocks", _computes(_RoundedStates)
    ),
    "shifted-output": Fault(
        "fused",
        "rows of the output are shifted by one",
        lambda setting: replace(setting, finish=_shifted),
    ),
}

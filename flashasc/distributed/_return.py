"""The way back from heads to sequence inside the attention kernel: its protocol.

Each rank computes all rows of some heads; a row of all heads belongs to one rank. A tile that is
finished is stored where its rows' owner will look for them, in the owner's memory. Nothing is sent
afterwards but a signal to each rank.

Memory. Each rank of a group has, in memory that its peers can address, two buffers and `world`
words of 32 bits, which are 0 at first. Call n = 0, 1, ... uses buffer n % 2. A buffer holds what
this rank gets back, [B, heads of all ranks, its rows, Dv], and behind it the log-sum-exp. Its own
heads are not stored there: they go where the result is, which is this rank's alone.

    stored[world]       for how many calls each rank has stored here. Only that rank adds to it.

A call, on a rank r:

    1. store    each tile with its owners.
    2. signal   add 1 to stored[r] of every rank, also of those that no tile went to.
    3. wait     stored[s] >= n + 1 for every s; it is n + 1 or n + 2.
    4. take     copy the peers' heads from the buffer to the result.

The steps of a rank follow each other, as do its calls: on a GPU they are kernels of one stream.

Why it holds. What is taken is there: s adds the n + 1st time after it has stored for call n.
Nobody stores into a buffer that is still to be read: s stores for call n + 2 into the buffer of
call n after step 3 of call n + 1, which saw stored[r] >= n + 2 there, and r has added that often
only after step 4 of call n. Nor is a counter ever further than n + 2 in step 3 of call n: s adds
the n + 3rd time after step 3 of call n + 1, which waits for r to add the n + 2nd time, and r does
so after its step 3 of call n. More is an error, and so is less when the time is up. A signal of
an earlier call can't stand for one of this call: counters only grow, and the earlier ones are in
the target. So calls behind each other need no barrier, and nobody says that a buffer is free:
the next call's signal does. Counters go round after 2**32 calls; differences are compared, which
are small.

Order of memory. Step 2 is in a kernel behind the one that stores, and adds with release at system
scope; step 3 reads with acquire at system scope, and step 4 is a kernel behind it. The reads of
step 4 are done when the next call's kernels begin, so its signal releases them too.

Failure. Waits are bounded: `timeout` seconds, or what the group was made with. A wait that gives up
notes which peer is how far, and nothing is stored with, taken from or said to a peer any more: the
result is NaN. With a timeout the host waits for the call and raises CommunicationError; without,
the next call of the group raises it. A return path that failed stays so: ranks no longer agree on
their counts. No address is ever computed from what a peer wrote; rows are stored where the agreed
sizes put them, inside a buffer that holds the largest rank's part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from .._arguments import Arguments
from ._agreement import Facts
from ._parcel import Parcel
from ._transport import CommunicationError, Transport

UNFUSED = "use fused=False, which exchanges outputs with all_to_all_single"
"""The way out that every refusal names."""

Found = tuple[Tensor, Tensor | None]
"""A rank's rows of all heads: its output, and its log-sum-exp if asked for."""


@dataclass(frozen=True)
class Failure:
    """A wait that gave up, or found a counter too far.

    Attributes:
        peer: rank in the group.
        ahead: the counter, from its target.
        call: where.
    """

    peer: int
    ahead: int
    call: int


class PeerMemory(ABC):
    """Memory of all ranks of a group as one of them reaches it, and how it gets tiles there.

    Args:
        transport: the ranks.
        device: of tensors.
        slot_bytes: of each of two buffers.
        poison: NaN is left in what was taken, so that what does not arrive shows.
    """

    name: ClassVar[str]

    def __init__(
        self, transport: Transport, device: torch.device, slot_bytes: int, *, poison: bool = False
    ) -> None:
        self.rank, self.world = transport.rank, transport.world
        self.device = device
        self.slot_bytes = slot_bytes
        self.poison = poison

    @classmethod
    @abstractmethod
    def check(cls, device: torch.device) -> Facts:
        """What ranks must agree about to reach each other's memory.

        Raises:
            NotImplementedError: there is no such memory here.
        """

    def result(self, parcel: Parcel) -> Found:
        """New tensors for what this rank gets back; NaN in them where they are poisoned."""
        out = torch.empty(parcel.out_shape(self.rank), dtype=parcel.dtype, device=self.device)
        lse = None
        if parcel.with_lse:
            lse = torch.empty(parcel.lse_shape(self.rank), device=self.device)
        if self.poison:
            for x in (out, lse):
                if x is not None:
                    x.fill_(torch.nan)
        return out, lse

    @abstractmethod
    def begin(self) -> None:
        """A call begins: what is handed to the device now comes behind the call before it."""

    @abstractmethod
    def attend(self, arguments: Arguments, parcel: Parcel, slot: int, found: Found) -> None:
        """Compute the attention of this rank's heads, and store tiles with their owners.

        Args:
            found: where this rank's own rows go.
        """

    @abstractmethod
    def push(self, x: Tensor, lse: Tensor | None, parcel: Parcel, slot: int, found: Found) -> None:
        """Store tiles of x [B, heads, rows, Dv] and lse [B, heads, rows]: see `attend`."""

    @abstractmethod
    def meet(self, call: int, *, seconds: float) -> None:
        """Signal all ranks that a call is stored, and wait, in the stream, for their signals."""

    @abstractmethod
    def take(self, parcel: Parcel, slot: int, found: Found) -> None:
        """Copy what peers stored to where it belongs; NaN throughout after a failure."""

    @abstractmethod
    def finish(self, *, wait: bool) -> None:
        """A call was handed to the device; `wait` for it."""

    @abstractmethod
    def failures(self) -> list[Failure]:
        """What waits have reported so far."""

    @abstractmethod
    def counters(self) -> list[int]:
        """The words stored[world], as they are now."""

    @classmethod
    @abstractmethod
    def tile_rows(cls, arguments: Arguments) -> int:
        """Rows of a tile of the kernel that `attend` runs.

        Raises:
            NotImplementedError: there is no such kernel for this call.
        """

    @abstractmethod
    def quiesce(self) -> None:
        """Wait for all that was handed to the device."""


def int32(number: int) -> int:
    """A counter that has gone round, as a signed number."""
    return (number + 2**31) % 2**32 - 2**31


class ReturnPath:
    """The way back among the ranks of a group: buffers, and how often they were used.

    Args:
        transport: the ranks.
        memory: of which kind.
    """

    def __init__(self, transport: Transport, memory: type[PeerMemory]) -> None:
        self.kind = memory
        self.memory: PeerMemory | None = None
        self.broken = ""
        self.calls = 0
        self._names = [transport.name(rank) for rank in range(transport.world)]
        self._rank = transport.rank
        self._seconds = _group_seconds(transport)

    def attend(
        self, arguments: Arguments, parcel: Parcel, transport: Transport, device: torch.device
    ) -> Found:
        """This rank's rows of all heads, of the attention that all ranks compute."""
        memory = self.buffers(transport, device, parcel.bytes)
        return self._call(memory, parcel, transport, partial(memory.attend, arguments))

    def push(self, x: Tensor, lse: Tensor | None, parcel: Parcel, transport: Transport) -> Found:
        """This rank's rows of all heads, of what all ranks have: no computation."""
        memory = self.buffers(transport, x.device, parcel.bytes)
        return self._call(memory, parcel, transport, partial(memory.push, x, lse))

    def buffers(self, transport: Transport, device: torch.device, slot_bytes: int) -> PeerMemory:
        """Buffers of this size at least; all ranks make them together, and larger ones anew."""
        if self.memory is None or self.memory.slot_bytes < slot_bytes:
            old = self.memory
            if old is not None:
                old.quiesce()
            self.memory = self.kind(transport, device, slot_bytes)
            # let go of now: nobody gets past the making of new ones before all are done with these
            del old
            self.calls = 0
        return self.memory

    def _call(
        self,
        memory: PeerMemory,
        parcel: Parcel,
        transport: Transport,
        store: Callable[[Parcel, int, Found], None],
    ) -> Found:
        call, slot = self.calls, self.calls % 2
        assert not self.broken, self.broken
        seconds = self._seconds if transport.timeout is None else transport.timeout
        try:
            if transport.on_step is not None:
                transport.on_step(f"sequence for heads, fused, call {call}")
            memory.begin()
            found = memory.result(parcel)
            store(parcel, slot, found)
            memory.meet(call, seconds=seconds)
            memory.take(parcel, slot, found)
            memory.finish(wait=transport.timeout is not None)
        except Exception as error:
            # counts no longer agree with the peers'
            self.broken = self.broken or f"{type(error).__name__}: {error}"
            raise
        self.calls += 1
        if transport.timeout is not None:
            self.check(seconds)
        return found

    def check(self, seconds: float | None = None) -> None:
        """Raise what has gone wrong so far.

        Raises:
            CommunicationError: a peer did not come, or too much came; the message names all three.
        """
        failures = self.memory.failures() if self.memory is not None else []
        if failures:
            self.broken = self.broken or self._told(failures, seconds or self._seconds)
        if self.broken:
            raise CommunicationError(
                f"{self.broken}. This group's way back stays closed: {UNFUSED}, or make a new group"
            )

    def unsettled(self) -> str:
        """What counters say that they should not, once all ranks are done; "" if nothing."""
        if self.memory is None:
            return ""
        for source, counter in zip(self._names, self.memory.counters(), strict=True):
            if ahead := int32(counter - self.calls):
                return (
                    f"rank {source} signalled {abs(ahead)} calls "
                    f"{'more' if ahead > 0 else 'less'} than there were"
                )
        return ""

    def _told(self, failures: list[Failure], seconds: float) -> str:
        first = failures[0]
        peers = ", ".join(str(self._names[failure.peer]) for failure in failures)
        where = (
            f"rank {self._names[self._rank]}: sequence for heads, fused, step tiles of call "
            f"{first.call}, peer rank {peers}"
        )
        if first.ahead > 0:
            return f"{where}: signalled {first.ahead} calls further than it can be"
        return f"{where}: has not signalled in {seconds:g} s that it stored them here"


def _group_seconds(transport: Transport) -> float:
    """How long a collective of a group may take."""
    group = dist.group.WORLD if transport.group is None else transport.group
    for kind in ("cuda", "cpu"):
        try:
            backend = group._get_backend(torch.device(kind))  # type: ignore[union-attr]
            return float(backend.options._timeout.total_seconds())
        except (AttributeError, RuntimeError):
            continue
    return float(dist.default_pg_timeout.total_seconds())


_paths: WeakKeyDictionary[Any, dict[type[PeerMemory], ReturnPath]] = WeakKeyDictionary()


def return_path(transport: Transport, memory: type[PeerMemory]) -> ReturnPath:
    """The way back of a group, made once."""
    group = dist.group.WORLD if transport.group is None else transport.group
    paths = _paths.setdefault(group, {})
    if memory not in paths:
        paths[memory] = ReturnPath(transport, memory)
    return paths[memory]

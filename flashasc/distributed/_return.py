"""The way back from heads to sequence inside the attention kernel: its protocol.

Each rank computes all rows of some heads; a row of all heads belongs to one rank. A tile that is
finished is stored where its rows' owner will look for them, in the owner's memory, and the owner is
signalled. Nothing is sent afterwards.

Memory. Each rank of a group has, in memory that its peers can address, two buffers and 3 * world
words of 32 bits, which are 0 at first. Call n = 0, 1, ... uses buffer n % 2. A buffer holds what
this rank gets back, [B, heads of all ranks, its rows, Dv], and behind it the log-sum-exp.

    arrived[2][world]   how many tiles each rank has stored here, by buffer, since the beginning.
                        Only that rank adds to it: once for each tile and each run of this rank's
                        rows in it, with release, after the tile.
    freed[world]        how many calls each rank has taken from its own buffers, as it tells its
                        peers. Only that rank writes it, with release, after it has read a buffer.

A call, on a rank r:

    1. wait     freed[o] >= n - 1 for every o: buffer n % 2 of all owners is read to the end.
    2. store    each tile with its owners, and after it add 1 to their arrived[n % 2][r].
    3. wait     arrived[n % 2][s] == target for every s. The target grows with each call by the
                tiles that a rank has for this one, which all ranks work out from the agreed sizes.
    4. take     copy the buffer to the result.
    5. free     write n + 1 into freed[r] of every rank.

Why it holds. Counters only grow and are compared with a sum over all calls, so a signal of an
earlier call can't stand for one of this call: the earlier ones are in the target. While a rank has
said n, that calls 0 to n - 1 are taken, its peers get past step 1 of call n + 1 at most, for call
n + 2 waits for it to say n + 1. So nobody stores into a buffer that is still being read, and while
a rank waits in step 3 of call n no tile of call n + 2 can be counted: a counter beyond its target
is an error, and so is one below it when the time is up. freed[o] may be beyond n - 1 in step 1 of
call n: by 1 where o has rows, which needs this rank's tiles to get further, and by 3 where it has
none. Back-to-back calls need no barrier. Counters go round after 2**32 tiles; differences are
compared, which are small.

Order of memory. Step 2: threads of a program store, meet at a barrier, one adds with release at
system scope. Steps 1 and 3: read with acquire at system scope; what the stream does afterwards sees
what was released. Step 5: a kernel of its own behind the copy, so that all of it has been read.

Failure. Waits are bounded: `timeout` seconds, or what the group was made with. A wait that gives up
notes which peer is how far, and nothing is stored with, taken from or said to a peer any more: the
result is NaN. With a timeout the host waits for the call and raises CommunicationError; without,
the next call of the group raises it. A return path that failed stays so: ranks no longer agree on
their counts. No address is ever computed from what a peer wrote; rows are stored where the agreed
sizes put them, inside a buffer that holds the largest rank's part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal
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

Step = Literal["buffers", "tiles"]
STEPS: tuple[Step, ...] = ("buffers", "tiles")


@dataclass(frozen=True)
class Failure:
    """A wait that gave up, or found a counter too far.

    Attributes:
        peer: rank in the group.
        ahead: the counter, from its target.
        step, call: where.
    """

    peer: int
    ahead: int
    step: Step
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
        self.slot_bytes = slot_bytes
        self.poison = poison

    @classmethod
    @abstractmethod
    def check(cls, device: torch.device) -> Facts:
        """What ranks must agree about to reach each other's memory.

        Raises:
            NotImplementedError: there is no such memory here.
        """

    @abstractmethod
    def wait(
        self, step: Step, first_word: int, target: int, *, allowed: int, call: int, seconds: float
    ) -> None:
        """Wait, from here on in the stream, for world words to be `target` to target + allowed."""

    @abstractmethod
    def attend(self, arguments: Arguments, parcel: Parcel, slot: int) -> None:
        """Compute the attention of this rank's heads, and store tiles with their owners."""

    @abstractmethod
    def push(self, x: Tensor, lse: Tensor | None, parcel: Parcel, slot: int) -> None:
        """Store tiles of x [B, heads, rows, Dv] and lse [B, heads, rows] with their owners."""

    @abstractmethod
    def take(self, parcel: Parcel, slot: int) -> tuple[Tensor, Tensor | None]:
        """Copy what arrived: new tensors; NaN throughout after a failure."""

    @abstractmethod
    def post(self, word: int, value: int) -> None:
        """Write a word of every rank's, behind all that was done so far."""

    @abstractmethod
    def finish(self, *, wait: bool) -> None:
        """A call was handed to the device; `wait` for it."""

    @abstractmethod
    def failures(self) -> list[Failure]:
        """What waits have reported so far."""

    @abstractmethod
    def counters(self) -> list[int]:
        """The words arrived[2][world], as they are now."""

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
        self._start_counting()
        self._names = [transport.name(rank) for rank in range(transport.world)]
        self._rank = transport.rank
        self._seconds = _group_seconds(transport)

    def _start_counting(self) -> None:
        self.calls = 0
        self.targets = [0, 0]

    def attend(
        self, arguments: Arguments, parcel: Parcel, transport: Transport, device: torch.device
    ) -> tuple[Tensor, Tensor | None]:
        """This rank's rows of all heads, of the attention that all ranks compute."""
        memory = self.buffers(transport, device, parcel.bytes)
        return self._call(parcel, transport, lambda slot: memory.attend(arguments, parcel, slot))

    def push(
        self, x: Tensor, lse: Tensor | None, parcel: Parcel, transport: Transport
    ) -> tuple[Tensor, Tensor | None]:
        """This rank's rows of all heads, of what all ranks have: no computation."""
        memory = self.buffers(transport, x.device, parcel.bytes)
        return self._call(parcel, transport, lambda slot: memory.push(x, lse, parcel, slot))

    def buffers(self, transport: Transport, device: torch.device, slot_bytes: int) -> PeerMemory:
        """Buffers of this size at least; all ranks make them together, and larger ones anew."""
        if self.memory is None or self.memory.slot_bytes < slot_bytes:
            old = self.memory
            if old is not None:
                old.quiesce()
            self.memory = self.kind(transport, device, slot_bytes)
            # let go of now: nobody gets past the making of new ones before all are done with these
            del old
            self._start_counting()
        return self.memory

    def _call(
        self, parcel: Parcel, transport: Transport, store: Any
    ) -> tuple[Tensor, Tensor | None]:
        memory, call, slot, world = self.memory, self.calls, self.calls % 2, parcel.world
        assert memory is not None and not self.broken, self.broken
        seconds = self._seconds if transport.timeout is None else transport.timeout
        try:
            if transport.on_step is not None:
                transport.on_step(f"sequence for heads, fused, call {call}")
            freed = int32(call - 1)
            memory.wait("buffers", 2 * world, freed, allowed=3, call=call, seconds=seconds)
            store(slot)
            self.targets[slot] += parcel.signals(self._rank)
            target = int32(self.targets[slot])
            memory.wait("tiles", slot * world, target, allowed=0, call=call, seconds=seconds)
            found = memory.take(parcel, slot)
            memory.post(2 * world + self._rank, int32(call + 1))
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
        counters = [] if self.memory is None else self.memory.counters()
        world = len(self._names)
        for number, counter in enumerate(counters):
            slot, source = divmod(number, world)
            if ahead := int32(counter - self.targets[slot]):
                return (
                    f"rank {self._names[source]} signalled {abs(ahead)} tiles "
                    f"{'more' if ahead > 0 else 'less'} than the calls had for this rank"
                )
        return ""

    def _told(self, failures: list[Failure], seconds: float) -> str:
        first = failures[0]
        peers = ", ".join(str(self._names[failure.peer]) for failure in failures)
        where = (
            f"rank {self._names[self._rank]}: sequence for heads, fused, step {first.step} of call "
            f"{first.call}, peer rank {peers}"
        )
        if first.ahead > 0:
            return f"{where}: {first.ahead} signals more than belong to this call"
        if first.step == "buffers":
            return f"{where}: it has not read its buffer of call {first.call - 2} in {seconds:g} s"
        return f"{where}: {-first.ahead} tiles that it stores here have not come in {seconds:g} s"


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

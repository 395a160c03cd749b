"""What moves between ranks: torch.distributed, counted, with deadlines that name who is missing.

Data is moved as bytes, so that every dtype arrives bit for bit on every backend.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._queues import beside, is_queued, on_device

# torch 2.13 has a new name for it
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
# between two looks at a device's queue
_POLL_SECONDS = 0.0005
# what 64-bit clocks of nanoseconds still hold, added to what they show
_LONGEST_SECONDS = 1e9
# backends count milliseconds, and take 0 for no deadline
_SHORTEST_SECONDS = 0.001
# of peers that a message names
_MOST_NAMES = 16


class CommunicationError(RuntimeError):
    """A transfer that did not happen. The message names the rank, the step and the peer."""


@dataclass
class Transfers:
    """How much was moved, by this rank."""

    sends: int = 0
    receives: int = 0
    collectives: int = 0
    bytes_sent: int = 0


_counting: list[Transfers] = []


@contextmanager
def count_transfers() -> Iterator[Transfers]:
    """Count what this process moves inside.

    `CommDebugMode` of torch counts collectives, and does not see point-to-point transfers.
    """
    counts = Transfers()
    _counting.append(counts)
    try:
        yield counts
    finally:
        _counting.remove(counts)


@dataclass
class Pending:
    """Transfers under way; `wait` before touching their buffers."""

    transport: Transport
    works: list[tuple[Any, str, int | None]]
    """(work, what for, peer)."""

    def wait(self) -> None:
        """Wait until all are done: on an accelerator its current stream does.

        Raises:
            CommunicationError: a deadline passed, or a peer is gone.
        """
        # a receive before its send: where a rank is gone, the one before it may follow soon, and it
        # is the first that is to be named
        for work, what, peer in reversed(self.works):
            self.transport.complete(work, what, peer)


class Transport:
    """The ranks of a group, as one of them sees them.

    Args:
        group: the ranks; None: all.
        timeout: seconds that a transfer may take; None: what the group was made with. On an
            accelerator a deadline makes the host wait for each transfer.
        on_step: called with a description of each transfer before it starts.

    Attributes:
        rank, world: place in the group, and its size.
        counts: what was moved.
        refused: what is wrong with the timeout. A rank that has a wrong one still has to tell the
            others, with the group's own deadline: see `exchanged`.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        timeout: float | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        self.group = group
        self.refused = timeout_error(timeout)
        self.timeout = timeout if self.refused is None else None
        self.on_step = on_step
        self.rank: int = dist.get_rank(group)
        self.world: int = dist.get_world_size(group)
        self.counts = Transfers()

    def name(self, rank: int) -> int:
        """The number that a member of the group has among all ranks: what messages say."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def others(self) -> str:
        """The members of the group but this one, in words."""
        names = [str(self.name(rank)) for rank in range(self.world) if rank != self.rank]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return f"rank{'s' * (len(names) > 1)} {', '.join(names[:_MOST_NAMES])}{more}"

    def exchange(self, send: Tensor, receive: Tensor, step: int, what: str) -> Pending:
        """Start to send to the next rank and receive from the one before.

        Args:
            send, receive: [bytes] uint8, contiguous; of length 0 where there is nothing to move.
            step, what: named where it fails.
        """
        following, previous = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        self._note(f"{what}, step {step}")
        wanted: list[tuple[Any, Tensor, int, str]] = []
        if send.numel():
            wanted.append((dist.isend, send, following, f"{what}, step {step}: send"))
        if receive.numel():
            wanted.append((dist.irecv, receive, previous, f"{what}, step {step}: receive"))
        return self.start(wanted)

    def start(self, wanted: Sequence[tuple[Any, Tensor, int, str]]) -> Pending:
        """Start point-to-point transfers: (dist.isend or dist.irecv, buffer, peer, what for)."""
        operations = [
            dist.P2POp(kind, buffer, group=self.group, group_peer=peer)
            for kind, buffer, peer, _ in wanted
        ]
        for counts in self._counters():
            for kind, buffer, *_ in wanted:
                counts.sends += kind is dist.isend
                counts.receives += kind is not dist.isend
                counts.bytes_sent += buffer.numel() if kind is dist.isend else 0
        if not operations:
            return Pending(self, [])
        with self._named(wanted[0][3], wanted[0][2]):
            works = dist.batch_isend_irecv(operations)
        # where a backend joins all of them in one work, it stands for the last
        return Pending(
            self,
            [
                (work, *reversed(row[2:]))
                for work, row in zip(works, wanted[-len(works) :], strict=True)
            ],
        )

    def all_to_all(
        self,
        receive: Tensor,
        send: Tensor,
        receive_rows: Sequence[int],
        send_rows: Sequence[int],
        what: str,
    ) -> Pending:
        """Start to give each rank its rows, in the order of ranks.

        Args:
            receive: [sum(receive_rows), bytes] uint8, contiguous.
            send: [sum(send_rows), bytes] uint8, contiguous.
            receive_rows, send_rows: how many from, and for, each rank.
            what: named where it fails.
        """
        rows = (list(receive_rows), list(send_rows))
        return self._begin(what, dist.all_to_all_single, receive, send, *rows)

    def all_gather(self, x: Tensor, what: str) -> Tensor:
        """[world, ...] of every rank's x, of one shape on all ranks; contiguous."""
        found = x.new_empty((self.world, *x.shape))
        self.collective(
            what, _ALL_GATHER, as_bytes(found).view(-1), as_bytes(x.contiguous()).view(-1)
        )
        return found

    def all_gather_on_host(self, x: Tensor, what: str) -> Tensor:
        """As `all_gather` of a tensor on the host, to the host, whatever the group's device.

        Where the group has no side on the host, this goes beside the device's current stream: the
        host waits for the transfers that the group was given before, not for what is computed.
        """
        device = metadata_device(self.group)
        if not is_queued(device):
            return self.all_gather(x, what)
        with beside(device) as stream:
            gathered = self.all_gather(on_device(x, device), what)
            found = torch.empty(gathered.shape, dtype=gathered.dtype, pin_memory=True)
            found.copy_(gathered, non_blocking=True)
            stream.synchronize()
        return found

    def collective(self, what: str, operation: Callable[..., Any], *args: Any, **kw: Any) -> None:
        """Run a collective of torch.distributed on this group, and wait for it."""
        self._begin(what, operation, *args, **kw).wait()

    def _begin(self, what: str, operation: Callable[..., Any], *args: Any, **kw: Any) -> Pending:
        self._note(what)
        for counts in self._counters():
            counts.collectives += 1
        with self._named(what, None):
            work = operation(*args, group=self.group, async_op=True, **kw)
        return Pending(self, [(work, what, None)])

    def complete(self, work: Any, what: str, peer: int | None) -> None:
        """Wait for a work of torch.distributed."""
        with self._named(what, peer):
            if self.timeout is None:
                work.wait()
            elif self._waits_on_host:
                work.wait(timedelta(seconds=max(self.timeout, _SHORTEST_SECONDS)))
            else:
                self._poll(work)
                work.wait()

    @property
    def _waits_on_host(self) -> bool:
        return "gloo" in dist.get_backend(self.group)

    def _poll(self, work: Any) -> None:
        assert self.timeout is not None
        deadline = time.monotonic() + self.timeout
        while not work.is_completed():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not done within {self.timeout:g} s")
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def _named(self, what: str, peer: int | None) -> Iterator[None]:
        """Say what failed where, instead of what a backend says."""
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            if isinstance(error, (CommunicationError, NotImplementedError)):
                raise
            # gloo starts with a place in its own source
            reason = re.sub(r"^\[\S+\] ", "", str(error).strip().splitlines()[0])
            reason = reason.partition(". ")[0]
            late = "timed out" in reason.lower() or isinstance(error, TimeoutError)
            if late and self.timeout is not None:
                reason = f"not done within {self.timeout:g} s"
            if late and peer is None:
                # who is late, the members of a collective cannot tell
                reason = f"{reason}, waiting for {self.others()}"
            with_whom = "" if peer is None else f", peer rank {self.name(peer)}"
            where = f"rank {self.name(self.rank)}: {what}{with_whom}"
            raise CommunicationError(f"{where}: {reason}") from error

    def _note(self, what: str) -> None:
        if self.on_step is not None:
            self.on_step(what)

    def _counters(self) -> tuple[Transfers, ...]:
        return (self.counts, *_counting)


def timeout_error(timeout: Any) -> ValueError | None:
    """What is wrong with a `timeout=`: None for None, and for seconds."""
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is None or (number and 0 < timeout <= _LONGEST_SECONDS):
        return None
    return ValueError(
        f"timeout must be seconds, more than 0 and at most {_LONGEST_SECONDS:g}, or None: what the "
        f"group was made with; got {timeout!r}"
    )


def as_bytes(x: Tensor) -> Tensor:
    """A contiguous tensor's memory as uint8, with the last dimension in bytes."""
    assert x.is_contiguous()
    return x if x.dtype == torch.uint8 else x.detach().view(torch.uint8)


def metadata_device(group: dist.ProcessGroup | None) -> torch.device:
    """Where small facts are exchanged: on the host if the group can do that, else on its device."""
    kinds = list(_backends(dist.get_backend_config(group)))
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], getattr(torch, kinds[0]).current_device())


def require_backend(
    config: str, device: torch.device, what: str = "q, k and v are", *, collective: bool = False
) -> None:
    """Refuse tensors that the backend of a group does not move between ranks.

    Args:
        config: of the group: "cpu:gloo,cuda:nccl", as `get_backend_config` returns it.
        device: of the tensors.
        what: the tensors, in words.
        collective: collectives alone move them.

    Raises:
        NotImplementedError: the message names the way out.
    """
    backend = _backends(config).get(device.type)
    # gloo has collectives for CUDA tensors, but no point-to-point transfers
    if backend is not None and (collective or backend != "gloo" or device.type == "cpu"):
        return
    better = {"cuda": "nccl", "npu": "hccl", "cpu": "gloo"}.get(device.type)
    way = f'init_process_group("{better}")' if better else "a backend for this device"
    raise NotImplementedError(
        f"{what} on {device}, and the group's backends ({config}) do not send tensors from "
        f"there to other ranks; start the group with {way}, or move the tensors"
    )


def _backends(config: str) -> dict[str, str]:
    """Backend by device type."""
    pairs = (pair.partition(":") for pair in str(config).split(","))
    return {kind: backend for kind, _, backend in pairs}

"""An emulation of symmetric memory for CPU processes of one host: to test the protocol with.

It is no way to run fast: tiles are computed first and then stored one by one from Python, into
files that all processes have mapped. What it shares with GPUs is the protocol of `_return`, whose
rows are whose, where they lie, and what each signal counts. Signals have one writer each, so adding
to one needs no atomic instruction; the order of stores is what the processor keeps (x86 keeps it).
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._arguments import Arguments
from ..attention import attention
from ._agreement import Facts
from ._parcel import ALIGNMENT, Parcel
from ._return import UNFUSED, Failure, Found, PeerMemory, int32
from ._transport import Transport

_TILE_ROWS = 16


@dataclass(frozen=True)
class Run:
    """Rows of one head that belong to one rank, and where they go there.

    Attributes:
        rows: [rows, Dv].
        lse: [rows], or None.
        owner: whose they are.
        batch, head: of which sequence and which of the storing rank's heads.
        place: of the first one among the owner's rows.
    """

    rows: Tensor
    lse: Tensor | None
    owner: int
    batch: int
    head: int
    place: int

    def first(self, count: int) -> Run:
        """The same without the rows from `count` on."""
        lse = None if self.lse is None else self.lse[:count]
        return replace(self, rows=self.rows[:count], lse=lse)


class EmulatedBuffers(PeerMemory):
    """Buffers in files that the processes of a group map: see `PeerMemory`."""

    name = "emulated in shared files"

    def __init__(
        self, transport: Transport, device: torch.device, slot_bytes: int, *, poison: bool = False
    ) -> None:
        super().__init__(transport, device, slot_bytes, poison=poison)
        self._words_bytes = -(-4 * self.world // ALIGNMENT) * ALIGNMENT
        self._maps = mapped(transport, self._words_bytes + 2 * slot_bytes)
        self.words = [memoryview(one)[: 4 * self.world].cast("i") for one in self._maps]
        self.failed: list[Failure] = []
        if poison:
            for slot in range(2):
                self._buffer(self.rank, slot).fill_(0xFF)
        # nobody stores before all have poisoned theirs
        dist.barrier(transport.group)

    @classmethod
    def check(cls, device: torch.device) -> Facts:
        if device.type != "cpu":
            raise NotImplementedError(
                f"the emulation is for CPU tensors; q, k and v are on {device}: {UNFUSED}"
            )
        return {"memory of peers": cls.name}

    def begin(self) -> None:
        pass

    def attend(self, arguments: Arguments, parcel: Parcel, slot: int, found: Found) -> None:
        options = arguments._asdict()
        q, k, v = (options.pop(name) for name in "qkv")
        computed: Any = attention(q, k, v, **options)
        out, lse = computed if parcel.with_lse else (computed, None)
        self.push(out, lse, parcel, slot, found)

    def push(self, x: Tensor, lse: Tensor | None, parcel: Parcel, slot: int, found: Found) -> None:
        for batch, head, first, stop in parcel.tiles():
            row = first
            while row < stop and not self.failed:
                owner, place, end = parcel.pieces.owner_of(row)
                to = min(end, stop)
                numbers = None if lse is None else lse[batch, head, row:to]
                run = Run(x[batch, head, row:to], numbers, owner, batch, head, place)
                self.store(run, parcel, slot, found)
                row = to

    def store(self, run: Run, parcel: Parcel, slot: int, found: Found) -> None:
        """Store rows of one of this rank's heads with their owner."""
        head = self.rank * parcel.heads + run.head
        out, numbers = found if run.owner == self.rank else self.views(parcel, slot, run.owner)
        places = slice(run.place, run.place + len(run.rows))
        if parcel.heads_first:
            out[run.batch, head, places] = run.rows
        else:
            out[run.batch, places, head] = run.rows
        if run.lse is not None and numbers is not None:
            numbers[run.batch, head, places] = run.lse

    def meet(self, call: int, *, seconds: float) -> None:
        if self.failed:
            return
        for owner in range(self.world):
            self.signal(owner, call)
        target = int32(call + 1)
        deadline = time.monotonic() + seconds
        late: list[Failure] = []
        for rank in range(self.world):
            looks = 0
            while (ahead := int32(self.words[self.rank][rank] - target)) < 0:
                if time.monotonic() > deadline:
                    break
                looks += 1
                time.sleep(0 if looks < 100 else 0.0002)
            if not 0 <= ahead <= 1:
                late.append(Failure(rank, ahead, call))
        self.failed += late

    def signal(self, owner: int, call: int) -> None:
        """Count one more call with a rank."""
        self.words[owner][self.rank] = int32(self.words[owner][self.rank] + 1)

    def take(self, parcel: Parcel, slot: int, found: Found) -> None:
        first = self.rank * parcel.heads
        for x, arrived, dim in zip(
            found, self.views(parcel, slot, self.rank), (1 if parcel.heads_first else 2, 1)
        ):
            if x is None or arrived is None:
                continue
            if self.failed:
                x.fill_(torch.nan)
                continue
            for heads in (slice(0, first), slice(first + parcel.heads, None)):
                at = (slice(None),) * dim + (heads,)
                x[at] = arrived[at]
        if self.poison:
            self._buffer(self.rank, slot).fill_(0xFF)

    def finish(self, *, wait: bool) -> None:
        pass

    def failures(self) -> list[Failure]:
        return self.failed

    def counters(self) -> list[int]:
        return list(self.words[self.rank])

    @classmethod
    def tile_rows(cls, arguments: Arguments) -> int:
        return _TILE_ROWS

    def quiesce(self) -> None:
        pass

    def _buffer(self, rank: int, slot: int) -> Tensor:
        whole = torch.frombuffer(self._maps[rank], dtype=torch.uint8)
        return whole[self._words_bytes + slot * self.slot_bytes :][: self.slot_bytes]

    def views(self, parcel: Parcel, slot: int, owner: int) -> tuple[Tensor, Tensor | None]:
        """A rank's output and log-sum-exp in a buffer."""
        assert parcel.bytes <= self.slot_bytes, (parcel, self.slot_bytes)
        whole = self._buffer(owner, slot)
        shape = torch.Size(parcel.out_shape(owner))
        out = whole[: shape.numel() * parcel.dtype.itemsize].view(parcel.dtype).view(shape)
        if not parcel.with_lse:
            return out, None
        shape = torch.Size(parcel.lse_shape(owner))
        lse = whole[parcel.lse_at :][: 4 * shape.numel()].view(torch.float32).view(shape)
        return out, lse


def mapped(transport: Transport, size: int) -> list[mmap.mmap]:
    """Memory of each rank, 0 at first, seen by all; the files are gone when all have it."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    handle, path = tempfile.mkstemp(prefix="flashasc-", dir=folder)
    with os.fdopen(handle, "wb") as file:
        file.truncate(size)
    try:
        names = [""] * transport.world
        dist.all_gather_object(names, path, transport.group)
        maps = []
        for name in names:
            with open(name, "r+b") as file:
                maps.append(mmap.mmap(file.fileno(), size))
        dist.barrier(transport.group)
    finally:
        os.unlink(path)
    return maps

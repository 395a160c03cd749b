"""Faults of stores with peers, to see that the checks find them; in the emulation, on CPUs."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from .._emulated import EmulatedBuffers, Run
from .._parcel import Parcel
from .._return import Found
from .setting import Setting


@dataclass(frozen=True)
class FusedFault:
    """Something to go wrong on one rank; the layer that has to find it is "comm".

    Attributes:
        what: in words.
        memory: that does it.
        breaks: communication does not work afterwards.
    """

    what: str
    memory: type[EmulatedBuffers]
    breaks: bool = False


def with_fused_fault(setting: Setting, name: str) -> Setting:
    """A setting whose rank has a fault.

    Raises:
        ValueError: not on this device.
    """
    if setting.device.type != "cpu":
        raise ValueError(f"--inject: {name} is a fault of the emulation on CPUs")
    return replace(setting, memory=FUSED_FAULTS[name].memory)


class _LostSignal(EmulatedBuffers):
    def signal(self, owner: int, call: int) -> None:
        if call != 1 or owner == self.rank:
            super().signal(owner, call)


class _StaleSignal(EmulatedBuffers):
    def signal(self, owner: int, call: int) -> None:
        super().signal(owner, call)
        if call == 1:
            # once more: the next call finds it
            super().signal(owner, call)


class _SwappedPeers(EmulatedBuffers):
    def store(self, run: Run, parcel: Parcel, slot: int, found: Found) -> None:
        # where the first two ranks' rows are alike; signals go to the right ones
        other = 1 - run.owner if run.owner < 2 else run.owner
        room = max(parcel.pieces.owned[other] - run.place, 0)
        super().store(replace(run.first(room), owner=other), parcel, slot, found)


class _ShortTile(EmulatedBuffers):
    def store(self, run: Run, parcel: Parcel, slot: int, found: Found) -> None:
        super().store(run.first(max(len(run.rows) - 1, 1)), parcel, slot, found)


class _LateStore(EmulatedBuffers):
    """Each peer's tile is stored after the next one, and the last one after the signal."""

    def __init__(self, *args: object, **options: object) -> None:
        self.waiting: list[tuple[Run, Parcel, int, Found]] = []
        super().__init__(*args, **options)  # type: ignore[arg-type]

    def store(self, run: Run, parcel: Parcel, slot: int, found: Found) -> None:
        what = (run, parcel, slot, found)
        if run.owner == self.rank:
            super().store(*what)
            return
        before, self.waiting = self.waiting, [what]
        for late in before:
            super().store(*late)

    def take(self, parcel: Parcel, slot: int, found: Found) -> None:
        # long enough for the owner to take what it believes is there
        time.sleep(0.05)
        for late in self.waiting:
            super().store(*late)
        self.waiting = []
        super().take(parcel, slot, found)


FUSED_FAULTS: dict[str, FusedFault] = {
    "lost-signal": FusedFault("a call is stored and not signalled", _LostSignal, True),
    "stale-signal": FusedFault("a signal of the call before counts for a call", _StaleSignal, True),
    "swapped-peers": FusedFault("ranks 0 and 1 get each other's tiles", _SwappedPeers),
    "short-tile": FusedFault("the last row of each tile is not stored", _ShortTile),
    "early-signal": FusedFault("the signal comes before what it stands for", _LateStore),
}

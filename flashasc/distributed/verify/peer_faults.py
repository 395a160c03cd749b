"""Faults of stores with peers, to see that the checks find them; in the emulation, on CPUs."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from torch import Tensor

from .._emulated import EmulatedBuffers
from .._parcel import Parcel
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
    def signal(self, slot: int, owner: int, tile: tuple[int, int, int]) -> None:
        if not (slot == 1 and tile == (0, 1, 16)):
            super().signal(slot, owner, tile)


class _StaleSignal(EmulatedBuffers):
    def signal(self, slot: int, owner: int, tile: tuple[int, int, int]) -> None:
        if slot == 1 and tile == (0, 0, 0):
            # counted where the call before it counted
            super().signal(0, owner, tile)
        super().signal(slot, owner, tile)


class _SwappedPeers(EmulatedBuffers):
    def store(
        self,
        rows: Tensor,
        lse: Tensor | None,
        parcel: Parcel,
        slot: int,
        owner: int,
        batch: int,
        head: int,
        place: int,
    ) -> None:
        # where the first two ranks' rows are alike; signals go to the right ones
        other = 1 - owner if owner < 2 else owner
        room = max(parcel.pieces.owned[other] - place, 0)
        some = None if lse is None else lse[:room]
        super().store(rows[:room], some, parcel, slot, other, batch, head, place)


class _ShortTile(EmulatedBuffers):
    def store(
        self,
        rows: Tensor,
        lse: Tensor | None,
        parcel: Parcel,
        slot: int,
        owner: int,
        batch: int,
        head: int,
        place: int,
    ) -> None:
        short = max(len(rows) - 1, 1)
        some = None if lse is None else lse[:short]
        super().store(rows[:short], some, parcel, slot, owner, batch, head, place)


class _LateStore(EmulatedBuffers):
    """Each tile is stored after the next one's signal, and the last one after all signals."""

    def __init__(self, *args: object, **options: object) -> None:
        self.waiting: list[tuple[object, ...]] = []
        super().__init__(*args, **options)  # type: ignore[arg-type]

    def store(self, *what: object) -> None:
        before, self.waiting = self.waiting, [what]
        for late in before:
            super().store(*late)  # type: ignore[arg-type]

    def post(self, word: int, value: int) -> None:
        # by now the owner has taken what it believes is there
        time.sleep(0.05)
        for late in self.waiting:
            super().store(*late)  # type: ignore[arg-type]
        self.waiting = []
        super().post(word, value)


FUSED_FAULTS: dict[str, FusedFault] = {
    "lost-signal": FusedFault("a tile is stored and not signalled", _LostSignal, True),
    "stale-signal": FusedFault("a signal counts for the call before its own", _StaleSignal, True),
    "swapped-peers": FusedFault("ranks 0 and 1 get each other's tiles", _SwappedPeers),
    "short-tile": FusedFault("the last row of each tile is not stored", _ShortTile),
    "early-signal": FusedFault("signals come before what they stand for", _LateStore),
}

"""Buffers that kernels of this package reach peers with: everything but where they come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arguments import Arguments, prepare
from .._dispatch import AttentionPlan, kernel_route, plan_attention
from .._problem import AttentionProblem, Extras
from .._repeat import Launch, Memo, alike, recording
from .._target import current
from ._parcel import ALIGNMENT, Parcel
from ._return import UNFUSED, Failure, Found, PeerMemory, int32
from ._transport import Transport

if TYPE_CHECKING:
    from ..kernels.peer_launch import Arrived, PeerStores


class DeviceBuffers(PeerMemory):
    """Buffers in memory whose addresses, of all ranks, hold on this rank's device.

    Args:
        transport, device, slot_bytes, poison: see `PeerMemory`.

    Attributes:
        memory: uint8 [buffer_bytes], this rank's own: words, and two buffers.
        addresses: of each rank's memory; and peers: the same, int64 [world], for kernels.
        failed: int32 [1], and report: int32 [3, world], readable by the host: see `meet_kernel`.
    """

    def __init__(
        self, transport: Transport, device: torch.device, slot_bytes: int, *, poison: bool = False
    ) -> None:
        super().__init__(transport, device, slot_bytes, poison=poison)
        self.route = kernel_route(device)
        self.memory, self.addresses = self.shared(transport, buffer_bytes(self.world, slot_bytes))
        self.peers = torch.tensor(self.addresses, dtype=torch.int64, device=device)
        self.words = self.memory[: 4 * self.world].view(torch.int32)
        self.failed = torch.zeros(1, dtype=torch.int32, device=device)
        self.report = self.on_host(torch.zeros(3, self.world, dtype=torch.int32))
        self.places: dict[tuple[Parcel, int], Places] = {}
        self.starts: Memo[Launch] = Memo()

    @abstractmethod
    def shared(self, transport: Transport, size: int) -> tuple[Tensor, list[int]]:
        """(memory, addresses); words are 0 on all ranks before any of them returns."""

    def on_host(self, x: Tensor) -> Tensor:
        """A CPU tensor where kernels can write it too."""
        return x

    def clear(self, memory: Tensor) -> None:
        """Set words to 0, and poison buffers."""
        memory.fill_(0xFF if self.poison else 0)
        memory[: _words_bytes(self.world)] = 0

    @classmethod
    def plan(cls, problem: AttentionProblem, impl: Any) -> AttentionPlan:
        """The plan of a call that one kernel serves.

        Raises:
            NotImplementedError: no such kernel stores with peers.
        """
        plan = plan_attention(problem, impl)
        if plan.route != "device" or plan.config is None or plan.split is not None:
            raise NotImplementedError(
                "fused=True stores from the attention kernel for many queries, and this call is "
                f"not computed by it ({plan}): {UNFUSED}"
            )
        return plan

    def attend(self, arguments: Arguments, parcel: Parcel, slot: int, found: Found) -> None:
        places = self.at(parcel, slot)
        tensors = {
            "q_ptr": arguments.q,
            "k_ptr": arguments.k,
            "v_ptr": arguments.v,
            "sinks_ptr": arguments.sinks,
            "out_ptr": found[0] if found[0].numel() else self.memory[:16].view(parcel.dtype),
            "lse_ptr": found[1],
            "memories_ptr": places.stores.memories,
            "pieces_ptr": places.stores.pieces,
            "failed_ptr": self.failed,
        }
        alike = call_alike(arguments)
        # the numbers that kernels are told are those of a parcel and a buffer
        key = None if alike is None else (alike, parcel, slot)
        known = self.starts.get(key)
        if known is not None:
            with current(self.device):
                known(tensors)
            return
        with recording() as launches:
            self._attend(arguments, parcel, places.stores, tensors)
        launch = launches[0] if len(launches) == 1 else None
        if key is None or launch is None:
            return
        given = ((tensors.get(name), x) for name, x in launch.tensors())
        # a copy that was made on the way would be missing
        if all(x is not None and x.data_ptr() == y.data_ptr() for x, y in given):
            launch.forget()
            self.starts.keep(key, launch)

    def _attend(
        self,
        arguments: Arguments,
        parcel: Parcel,
        stores: PeerStores,
        tensors: Mapping[str, Any],
    ) -> None:
        """Work out the kernel's arguments, and start it."""
        from ..kernels.attention_launch import launch_attention_fwd

        arguments, problem = prepare(arguments)
        plan = self.plan(problem, arguments.impl)
        assert plan.config is not None and plan.target is not None and plan.route != "reference"
        assert plan.config.block_m == parcel.block_m
        out, lse = tensors["out_ptr"], tensors["lse_ptr"]
        shape = (problem.B, problem.Hq, problem.Sq)
        launch_attention_fwd(
            arguments.q,
            arguments.k,
            arguments.v,
            out.view(-1)[:1].view(1, 1, 1, 1).expand(*shape, problem.Dv),
            lse.view(-1)[:1].view(1, 1, 1).expand(shape) if parcel.with_lse else None,
            problem,
            Extras(sinks=arguments.sinks),
            plan.config,
            plan.target,
            plan.route,
            peers=stores,
        )

    def push(
        self,
        x: Tensor,
        lse: Tensor | None,
        parcel: Parcel,
        slot: int,
        found: Found,
        pause: int = 0,
    ) -> None:
        from ..kernels.peer_launch import launch_push

        stores = self.at(parcel, slot).stores
        launch_push(x, lse, found, stores, parcel.block_m, pause, route=self.route)

    def meet(self, call: int, *, seconds: float) -> None:
        from ..kernels.peer_launch import launch_meet

        launch_meet(
            self.peers,
            self.words,
            self.report,
            self.failed,
            at=4 * self.rank,
            target=int32(call + 1),
            call=call % 2**31,
            nanoseconds=min(int(seconds * 1e9), 2**62),
            route=self.route,
        )

    def take(self, parcel: Parcel, slot: int, found: Found) -> None:
        from ..kernels.peer_launch import launch_take

        places = self.at(parcel, slot)
        launch_take(
            *found, places.out, places.lse, self.failed, poison=self.poison, route=self.route
        )

    def failures(self) -> list[Failure]:
        kinds, ahead, calls = self.report.tolist()
        return [
            Failure(rank, ahead[rank], calls[rank]) for rank in range(self.world) if kinds[rank]
        ]

    def counters(self) -> list[int]:
        found: list[int] = self.words.tolist()
        return found

    @classmethod
    def tile_rows(cls, arguments: Arguments) -> int:
        alike = call_alike(arguments)
        rows = _tile_rows.get((cls, alike))
        if rows is None:
            _, problem = prepare(arguments)
            config = cls.plan(problem, arguments.impl).config
            assert config is not None
            rows = config.block_m
            if alike is not None:
                _tile_rows.keep((cls, alike), rows)
        return rows

    def at(self, parcel: Parcel, slot: int) -> Places:
        """Where the rows of a call with such sizes are stored, and taken from."""
        places = self.places.get((parcel, slot))
        if places is None:
            if len(self.places) >= _PLACES:
                self.places.clear()
            places = self.places[parcel, slot] = self._places(parcel, slot)
        return places

    def _places(self, parcel: Parcel, slot: int) -> Places:
        from ..kernels.peer_launch import Arrived, PeerStores

        assert parcel.bytes <= self.slot_bytes, (parcel, self.slot_bytes)
        start = _words_bytes(self.world) + slot * self.slot_bytes
        first = self.rank * parcel.heads
        memories = [self.addresses[owner] for _, owner, _, _ in parcel.pieces.lines[:-1]]
        stores = PeerStores(
            torch.tensor(memories, dtype=torch.int64).to(self.device),
            torch.tensor(parcel.pieces.lines, dtype=torch.int32).to(self.device),
            self.failed,
            out_at=start,
            lse_at=start + parcel.lse_at,
            rank=self.rank,
            first_head=first,
            all_heads=parcel.all_heads,
            heads_first=parcel.heads_first,
        )
        whole = self.memory[start:][: self.slot_bytes]
        own = slice(first, first + parcel.heads)
        shape = torch.Size(parcel.out_shape(self.rank))
        out = whole[: shape.numel() * parcel.dtype.itemsize].view(parcel.dtype).view(shape)
        arrived = Arrived.of(out, own, 1 if parcel.heads_first else 2)
        if not parcel.with_lse:
            return Places(stores, arrived, None)
        shape = torch.Size(parcel.lse_shape(self.rank))
        lse = whole[parcel.lse_at :][: 4 * shape.numel()].view(torch.float32).view(shape)
        return Places(stores, arrived, Arrived.of(lse, own, 1))


@dataclass(frozen=True)
class Places:
    """Where the rows of calls with the same sizes lie in one of the buffers.

    Attributes:
        stores: what a kernel is told that stores tiles.
        out, lse: what is taken from this rank's own memory.
    """

    stores: PeerStores
    out: Arrived
    lse: Arrived | None


_PLACES = 64
"""Sizes that are remembered."""
_tile_rows: Memo[int] = Memo()


def call_alike(arguments: Arguments) -> Hashable | None:
    """What the launch of a call depends on, see `alike`; None: it is worked out anew."""
    if torch._C._is_any_autocast_enabled():
        return None
    given = [x for x in arguments if isinstance(x, Tensor)]
    options = tuple(None if isinstance(x, Tensor) else x for x in arguments)
    places = tuple(isinstance(x, Tensor) for x in arguments)
    found = alike(given, options)
    return None if found is None else (found, places)


def buffer_bytes(world: int, slot_bytes: int) -> int:
    """Memory that a rank needs: words, and two buffers of slot_bytes, a multiple of 256."""
    assert slot_bytes % ALIGNMENT == 0, slot_bytes
    return _words_bytes(world) + 2 * slot_bytes


def _words_bytes(world: int) -> int:
    return -(-4 * world // ALIGNMENT) * ALIGNMENT

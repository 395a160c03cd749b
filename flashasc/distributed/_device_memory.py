"""Buffers that kernels of this package reach peers with: everything but where they come from."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arguments import Arguments, prepare
from .._dispatch import AttentionPlan, kernel_route, plan_attention
from .._problem import AttentionProblem, Extras
from ._parcel import ALIGNMENT, Parcel
from ._return import STEPS, UNFUSED, Failure, PeerMemory, Step
from ._transport import Transport

if TYPE_CHECKING:
    from ..kernels.peer_launch import PeerStores


class DeviceBuffers(PeerMemory):
    """Buffers in memory whose addresses, of all ranks, hold on this rank's device.

    Args:
        transport, device, slot_bytes, poison: see `PeerMemory`.

    Attributes:
        memory: uint8 [buffer_bytes], this rank's own: words, and two buffers.
        peers: int64 [world]: the address of each rank's memory.
        failed: int32 [1], and report: int32 [4, world], readable by the host: see `wait_kernel`.
    """

    def __init__(
        self, transport: Transport, device: torch.device, slot_bytes: int, *, poison: bool = False
    ) -> None:
        super().__init__(transport, device, slot_bytes, poison=poison)
        self.device = device
        self.route = kernel_route(device)
        self.memory, addresses = self.shared(transport, buffer_bytes(self.world, slot_bytes))
        self.peers = torch.tensor(addresses, dtype=torch.int64, device=device)
        self.words = self.memory[: 12 * self.world].view(torch.int32)
        self.failed = torch.zeros(1, dtype=torch.int32, device=device)
        self.report = self.on_host(torch.zeros(4, self.world, dtype=torch.int32))
        self.pieces: dict[Any, Tensor] = {}

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

    def wait(
        self, step: Step, first_word: int, target: int, *, allowed: int, call: int, seconds: float
    ) -> None:
        from ..kernels.peer_launch import launch_wait

        launch_wait(
            self.words[first_word : first_word + self.world],
            self.report,
            self.failed,
            target=target,
            allowed=allowed,
            step=STEPS.index(step),
            call=call % 2**31,
            nanoseconds=min(int(seconds * 1e9), 2**62),
            route=self.route,
        )

    def attend(self, arguments: Arguments, parcel: Parcel, slot: int) -> None:
        from ..kernels.attention_launch import launch_attention_fwd

        arguments, problem = prepare(arguments)
        plan = self.plan(problem, arguments.impl)
        assert plan.config is not None and plan.target is not None and plan.route != "reference"
        assert plan.config.block_m == parcel.block_m
        # what the kernel knows the dtypes by: its rows go elsewhere
        out, lse = (self.memory[:16].view(dtype)[:1] for dtype in (parcel.dtype, torch.float32))
        shape = (problem.B, problem.Hq, problem.Sq)
        launch_attention_fwd(
            arguments.q,
            arguments.k,
            arguments.v,
            out.view(1, 1, 1, 1).expand(*shape, problem.Dv),
            lse.view(1, 1, 1).expand(shape) if parcel.with_lse else None,
            problem,
            Extras(sinks=arguments.sinks),
            plan.config,
            plan.target,
            plan.route,
            peers=self.stores(parcel, slot),
        )

    def push(
        self, x: Tensor, lse: Tensor | None, parcel: Parcel, slot: int, pause: int = 0
    ) -> None:
        from ..kernels.peer_launch import launch_push

        launch_push(x, lse, self.stores(parcel, slot), parcel.block_m, pause, route=self.route)

    def take(self, parcel: Parcel, slot: int) -> tuple[Tensor, Tensor | None]:
        from ..kernels.peer_launch import launch_take

        out, lse = self._views(parcel, slot)
        found = torch.empty_like(out)
        launch_take(found, out, self.failed, poison=self.poison, route=self.route)
        if lse is None:
            return found, None
        found_lse = torch.empty_like(lse)
        launch_take(found_lse, lse, self.failed, poison=self.poison, route=self.route)
        return found, found_lse

    def post(self, word: int, value: int) -> None:
        from ..kernels.peer_launch import launch_post

        launch_post(self.peers, self.failed, 4 * word, value, route=self.route)

    def failures(self) -> list[Failure]:
        kinds, ahead, steps, calls = self.report.tolist()
        return [
            Failure(rank, ahead[rank], STEPS[steps[rank]], calls[rank])
            for rank in range(self.world)
            if kinds[rank]
        ]

    def counters(self) -> list[int]:
        found: list[int] = self.words[: 2 * self.world].tolist()
        return found

    @classmethod
    def tile_rows(cls, arguments: Arguments) -> int:
        _, problem = prepare(arguments)
        config = cls.plan(problem, arguments.impl).config
        assert config is not None
        return config.block_m

    def stores(self, parcel: Parcel, slot: int) -> PeerStores:
        """What a kernel is told that stores this call's tiles."""
        from ..kernels.peer_launch import PeerStores

        assert parcel.bytes <= self.slot_bytes, (parcel, self.slot_bytes)
        lines = parcel.pieces.lines
        if lines not in self.pieces:
            self.pieces[lines] = torch.tensor(lines, dtype=torch.int32).to(self.device)
        start = self._start(slot)
        return PeerStores(
            self.peers,
            self.pieces[lines],
            self.failed,
            out_at=start,
            lse_at=start + parcel.lse_at,
            signal_at=4 * (slot * self.world + self.rank),
            first_head=self.rank * parcel.heads,
            all_heads=parcel.all_heads,
            heads_first=parcel.heads_first,
        )

    def _start(self, slot: int) -> int:
        return _words_bytes(self.world) + slot * self.slot_bytes

    def _views(self, parcel: Parcel, slot: int) -> tuple[Tensor, Tensor | None]:
        """This rank's own output and log-sum-exp."""
        whole = self.memory[self._start(slot) :][: self.slot_bytes]
        shape = torch.Size(parcel.out_shape(self.rank))
        out = whole[: shape.numel() * parcel.dtype.itemsize].view(parcel.dtype).view(shape)
        if not parcel.with_lse:
            return out, None
        shape = torch.Size(parcel.lse_shape(self.rank))
        lse = whole[parcel.lse_at :][: 4 * shape.numel()].view(torch.float32).view(shape)
        return out, lse


def buffer_bytes(world: int, slot_bytes: int) -> int:
    """Memory that a rank needs: words, and two buffers of slot_bytes, a multiple of 256."""
    assert slot_bytes % ALIGNMENT == 0, slot_bytes
    return _words_bytes(world) + 2 * slot_bytes


def _words_bytes(world: int) -> int:
    return -(-12 * world // ALIGNMENT) * ALIGNMENT

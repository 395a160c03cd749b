"""Memory that peers address, on NVIDIA GPUs: PyTorch's symmetric memory, by pointers alone.

No multicast: each address is one peer's.
"""

from __future__ import annotations

import functools
import importlib.util
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._arguments import Arguments, prepare
from .._dispatch import AttentionPlan, plan_attention
from .._problem import AttentionProblem, Extras
from .._target import target_of
from ._agreement import Facts
from ._parcel import ALIGNMENT, Parcel
from ._return import STEPS, UNFUSED, Failure, PeerMemory, Step
from ._transport import Transport

if TYPE_CHECKING:
    from ..kernels.peer_launch import PeerStores

# between two looks at a device's queue
_POLL_SECONDS = 0.0005
_PUSHED_ROWS = 128
"""Rows of a tile that is pushed."""


class SymmetricBuffers(PeerMemory):
    """Buffers in symmetric memory, on each rank of a group that lies within one host.

    Args:
        transport, device, slot_bytes, poison: see `PeerMemory`.
        memory: uint8, of `buffer_bytes(world, slot_bytes)`, allocated with
            `torch.distributed._symmetric_memory.empty`, and the start of its allocation; None
            allocates it. On every rank or on none.

    Raises:
        ValueError: memory of another size, or that is not symmetric.
        NotImplementedError: symmetric memory cannot be set up here.
    """

    name = "symmetric memory"

    def __init__(
        self,
        transport: Transport,
        device: torch.device,
        slot_bytes: int,
        *,
        poison: bool = False,
        memory: Tensor | None = None,
    ) -> None:
        super().__init__(transport, device, slot_bytes, poison=poison)
        self.device = device
        with torch.cuda.device(device):
            self.memory, addresses, self.handle = _shared(
                transport, device, buffer_bytes(self.world, slot_bytes), memory, poison
            )
        self.peers = torch.tensor(addresses, dtype=torch.int64, device=device)
        self.words = self.memory[: 12 * self.world].view(torch.int32)
        self.failed = torch.zeros(1, dtype=torch.int32, device=device)
        self.report = torch.zeros(4, self.world, dtype=torch.int32).pin_memory()
        self.pieces: dict[Any, Tensor] = {}
        self.done: torch.cuda.Event | None = None
        self.stream: torch.cuda.Stream | None = None

    @classmethod
    def check(cls, device: torch.device) -> Facts:
        if device.type != "cuda" or torch.version.hip is not None:
            raise NotImplementedError(
                "fused=True stores into peers' memory through PyTorch's symmetric memory, which "
                f"flashasc uses on NVIDIA GPUs; q, k and v are on {device}: {UNFUSED}"
            )
        if importlib.util.find_spec("torch.distributed._symmetric_memory") is None:
            raise NotImplementedError(
                f"fused=True needs torch.distributed._symmetric_memory, which this PyTorch "
                f"({torch.__version__}) lacks: {UNFUSED}"
            )
        return {
            f"the host, with fused=True ({UNFUSED} and crosses hosts),": _host(),
            f"the kind of GPU, with fused=True ({UNFUSED}),": target_of(device).arch,
        }

    def wait(
        self, step: Step, first_word: int, target: int, *, allowed: int, call: int, seconds: float
    ) -> None:
        from ..kernels.peer_launch import launch_wait

        here = torch.cuda.current_stream(self.device)
        if self.done is not None and here != self.stream:
            # the words and buffers are used by one call after another
            here.wait_event(self.done)
        launch_wait(
            self.words[first_word : first_word + self.world],
            self.report,
            self.failed,
            target=target,
            allowed=allowed,
            step=STEPS.index(step),
            call=call % 2**31,
            nanoseconds=min(int(seconds * 1e9), 2**62),
        )

    def attend(self, arguments: Arguments, parcel: Parcel, slot: int) -> None:
        from ..kernels.attention_launch import launch_attention_fwd

        arguments, problem = prepare(arguments)
        plan = _kernel_plan(problem, arguments.impl)
        assert plan.config is not None and plan.target is not None
        assert plan.config.block_m == parcel.block_m
        # the kernel reads the dtypes; its rows go elsewhere
        out, lse = self._views(parcel, slot)
        shape = (problem.B, problem.Hq, problem.Sq)
        launch_attention_fwd(
            arguments.q,
            arguments.k,
            arguments.v,
            out.flatten()[:1].view(1, 1, 1, 1).expand(*shape, problem.Dv),
            None if lse is None else lse.flatten()[:1].view(1, 1, 1).expand(shape),
            problem,
            Extras(sinks=arguments.sinks),
            plan.config,
            plan.target,
            "device",
            peers=self.stores(parcel, slot),
        )

    def push(
        self, x: Tensor, lse: Tensor | None, parcel: Parcel, slot: int, pause: int = 0
    ) -> None:
        from ..kernels.peer_launch import launch_push

        launch_push(x, lse, self.stores(parcel, slot), parcel.block_m, pause)

    def take(self, parcel: Parcel, slot: int) -> tuple[Tensor, Tensor | None]:
        from ..kernels.peer_launch import launch_take

        out, lse = self._views(parcel, slot)
        found = torch.empty_like(out)
        launch_take(found, out, self.failed, poison=self.poison)
        if lse is None:
            return found, None
        found_lse = torch.empty_like(lse)
        launch_take(found_lse, lse, self.failed, poison=self.poison)
        return found, found_lse

    def post(self, word: int, value: int) -> None:
        from ..kernels.peer_launch import launch_post

        launch_post(self.peers, self.failed, 4 * word, value)

    def finish(self, *, wait: bool) -> None:
        self.stream = torch.cuda.current_stream(self.device)
        if self.done is None:
            self.done = torch.cuda.Event()
        self.done.record(self.stream)
        while wait and not self.done.query():
            time.sleep(_POLL_SECONDS)

    def failures(self) -> list[Failure]:
        kinds, ahead, steps, calls = self.report.tolist()
        return [
            Failure(rank, ahead[rank], STEPS[steps[rank]], calls[rank])
            for rank in range(self.world)
            if kinds[rank]
        ]

    @classmethod
    def tile_rows(cls, arguments: Arguments) -> int:
        _, problem = prepare(arguments)
        config = _kernel_plan(problem, arguments.impl).config
        assert config is not None
        return config.block_m

    def quiesce(self) -> None:
        torch.cuda.synchronize(self.device)

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


def _kernel_plan(problem: AttentionProblem, impl: Any) -> AttentionPlan:
    """The plan of a call that one kernel serves, on the GPU.

    Raises:
        NotImplementedError: no such kernel stores with peers.
    """
    plan = plan_attention(problem, impl)
    if plan.route != "device" or plan.config is None or plan.split is not None:
        raise NotImplementedError(
            "fused=True stores from the attention kernel for many queries, and this call is not "
            f"computed by it ({plan}): {UNFUSED}"
        )
    return plan


@functools.cache
def _host() -> str:
    """This host and this start of it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}".strip()


def _shared(
    transport: Transport, device: torch.device, size: int, memory: Tensor | None, poison: bool
) -> tuple[Tensor, list[int], Any]:
    """(memory, each rank's address of it, what keeps those valid)."""
    if memory is not None and (memory.dtype != torch.uint8 or memory.shape != (size,)):
        raise ValueError(
            f"memory must be uint8 of shape ({size},), see buffer_bytes; got {memory.dtype} of "
            f"shape {tuple(memory.shape)}"
        )
    if transport.world == 1 and memory is None:
        alone = torch.zeros(size, dtype=torch.uint8, device=device)
        return alone, [alone.data_ptr()], None
    import torch.distributed._symmetric_memory as symmetric
    from torch._C._distributed_c10d import _SymmetricMemory

    group = dist.group.WORLD if transport.group is None else transport.group
    given = memory is not None
    try:
        if memory is None:
            # an allocation of its own, whatever pools `empty` takes others from
            memory = _SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, device)
        memory.fill_(0xFF if poison else 0)
        memory[: _words_bytes(transport.world)] = 0
        # counters are 0 before any rank gets past the rendezvous
        torch.cuda.synchronize(device)
        handle = symmetric.rendezvous(memory, group)  # type: ignore[arg-type]
        addresses = [int(address) for address in handle.buffer_ptrs]
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        if given:
            raise ValueError(
                "memory must be allocated with torch.distributed._symmetric_memory.empty on every "
                f"rank of the group: {reason}. Pass memory=None, or {UNFUSED}"
            ) from error
        raise NotImplementedError(
            f"symmetric memory cannot be set up between these GPUs: {reason}. {UNFUSED}"
        ) from error
    if addresses[transport.rank] != memory.data_ptr():
        raise ValueError(
            "memory must be the start of its allocation, so that it lies at the same place on "
            f"every rank. Pass memory=None, or {UNFUSED}"
        )
    if not all(addresses):
        missing = [transport.name(r) for r, address in enumerate(addresses) if not address]
        raise NotImplementedError(f"the memory of ranks {missing} cannot be addressed: {UNFUSED}")
    return memory, addresses, handle

"""Memory that peers address, on NVIDIA GPUs: PyTorch's symmetric memory, by pointers alone.

No multicast: each address is one peer's.
"""

from __future__ import annotations

import functools
import importlib.util
import socket
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._target import target_of
from ._agreement import Facts
from ._device_memory import DeviceBuffers
from ._return import UNFUSED
from ._transport import Transport

# between two looks at a device's queue
_POLL_SECONDS = 0.0005


class SymmetricBuffers(DeviceBuffers):
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
        self.given = memory
        self.handle: Any = None
        self.done: torch.cuda.Event | None = None
        self.stream: torch.cuda.Stream | None = None
        with torch.cuda.device(device):
            super().__init__(transport, device, slot_bytes, poison=poison)

    @classmethod
    def check(cls, device: torch.device) -> Facts:
        if device.type != "cuda" or torch.version.hip is not None:
            raise NotImplementedError(
                "fused=True stores into peers' memory through PyTorch's symmetric memory, which "
                f"flashasc uses on NVIDIA GPUs; q, k and v are on {device}: {UNFUSED}"
            )
        if not _has_symmetric_memory():
            raise NotImplementedError(
                f"fused=True needs torch.distributed._symmetric_memory, which this PyTorch "
                f"({torch.__version__}) lacks: {UNFUSED}"
            )
        return {
            f"the host, with fused=True ({UNFUSED} and crosses hosts),": _host(),
            f"the kind of GPU, with fused=True ({UNFUSED}),": target_of(device).arch,
        }

    def shared(self, transport: Transport, size: int) -> tuple[Tensor, list[int]]:
        import torch.distributed._symmetric_memory as symmetric
        from torch._C._distributed_c10d import _SymmetricMemory

        memory = self.given
        if memory is not None and (memory.dtype != torch.uint8 or memory.shape != (size,)):
            raise ValueError(
                f"memory must be uint8 of shape ({size},), see buffer_bytes; got {memory.dtype} of "
                f"shape {tuple(memory.shape)}"
            )
        if transport.world == 1 and memory is None:
            memory = torch.empty(size, dtype=torch.uint8, device=self.device)
            self.clear(memory)
            return memory, [memory.data_ptr()]
        group = dist.group.WORLD if transport.group is None else transport.group
        try:
            if memory is None:
                # an allocation of its own, whatever pools `empty` takes others from
                memory = _SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, self.device)
            self.clear(memory)
            # done before any rank gets past the rendezvous
            torch.cuda.synchronize(self.device)
            self.handle = symmetric.rendezvous(memory, group)  # type: ignore[arg-type]
            if self.handle is None:
                raise RuntimeError("this memory is not symmetric")
            addresses = [int(address) for address in self.handle.buffer_ptrs]
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            if self.given is not None:
                raise ValueError(
                    "memory must be allocated with torch.distributed._symmetric_memory.empty on "
                    f"every rank of the group: {reason}. Pass memory=None, or {UNFUSED}"
                ) from error
            raise NotImplementedError(
                f"symmetric memory cannot be set up between these GPUs: {reason}. {UNFUSED}"
            ) from error
        if addresses[transport.rank] != memory.data_ptr():
            raise ValueError(
                "memory must be the start of its allocation, so that it lies at the same place on "
                f"every rank. Pass memory=None, or {UNFUSED}"
            )
        if missing := [transport.name(r) for r, address in enumerate(addresses) if not address]:
            raise NotImplementedError(
                f"the memory of ranks {missing} cannot be addressed from here: {UNFUSED}"
            )
        return memory, addresses

    def on_host(self, x: Tensor) -> Tensor:
        return x.pin_memory()

    def begin(self) -> None:
        here = torch.cuda.current_stream(self.device)
        if self.done is not None and here != self.stream:
            # the words and buffers are used by one call after another
            here.wait_event(self.done)

    def finish(self, *, wait: bool) -> None:
        self.stream = torch.cuda.current_stream(self.device)
        if self.done is None:
            self.done = torch.cuda.Event()
        self.done.record(self.stream)
        while wait and not self.done.query():
            time.sleep(_POLL_SECONDS)

    def quiesce(self) -> None:
        torch.cuda.synchronize(self.device)


@functools.cache
def _has_symmetric_memory() -> bool:
    return importlib.util.find_spec("torch.distributed._symmetric_memory") is not None


@functools.cache
def _host() -> str:
    """This host and this start of it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}".strip()

"""What one rank checks with: its ranks, its device, and the parts that may have a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from .._blocks import BlockAttention
from .._return import PeerMemory
from .._ring import Blocks
from .._run import Result
from .._transport import Transport
from .._ulysses import HeadExchange


def _unchanged(result: Result) -> Result:
    return result


@dataclass(frozen=True)
class Setting:
    """One rank's surroundings.

    Attributes:
        device: of tensors.
        dtype: of the data.
        mesh: ring and heads, for the hybrid.
        timeout: seconds for each transfer.
        on_step: told before each transfer.
        seed: of the data; another one each time, so that what an earlier run left shows.
        transport, blocks, exchange, finish: what moves, what computes, what exchanges heads, and
            what hands the result out; those of the package, or ones with a fault.
        memory: of peers, for what is fused; None: what the device has.
    """

    device: torch.device
    dtype: torch.dtype
    mesh: DeviceMesh
    timeout: float
    on_step: Callable[[str], None]
    seed: int = 0
    transport: Callable[..., Transport] = Transport
    blocks: Blocks = BlockAttention
    exchange: type[HeadExchange] = HeadExchange
    finish: Callable[[Result], Result] = _unchanged
    memory: type[PeerMemory] | None = None

    def ranks(self, group: dist.ProcessGroup | None = None) -> Transport:
        """The transport under test, in a group."""
        return self.transport(group, self.timeout, self.on_step)

    def official(self) -> Transport:
        """Plain torch.distributed among all ranks, with deadlines."""
        return Transport(None, self.timeout, self.on_step)

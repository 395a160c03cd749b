"""Start the kernels around a store with peers: what they are told, and how much each one does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from .launch import Route, launch
from .peer_kernels import post_kernel, push_kernel, take_kernel, wait_kernel

_NUMBERS = 4096
"""Numbers that a program of `take_kernel` copies."""
_INTEGERS = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class PeerStores:
    """Where the rows of one call go: what a kernel that stores with peers is told.

    Attributes:
        peers: int64 [world]: the address of each rank's memory.
        pieces: int32 [pieces + 1, 4]: see `blocks.layout.owner_of`.
        failed: int32 [1]: not 0 once a wait gave up.
        out_at, lse_at: bytes from an address to the output and log-sum-exp of the call.
        signal_at: bytes from an address to the counter of this rank's tiles.
        first_head, all_heads: number of this rank's first query head, and how many all have.
        heads_first: outputs are [B, heads, rows, Dv], else [B, rows, heads, Dv].
    """

    peers: Tensor
    pieces: Tensor
    failed: Tensor
    out_at: int
    lse_at: int
    signal_at: int
    first_head: int
    all_heads: int
    heads_first: bool

    def arguments(self) -> dict[str, Any]:
        """Runtime arguments, by name."""
        return {
            "peers_ptr": self.peers,
            "pieces_ptr": self.pieces,
            "failed_ptr": self.failed,
            "pieces": self.pieces.shape[0] - 1,
            "out_at": self.out_at,
            "lse_at": self.lse_at,
            "signal_at": self.signal_at,
            "first_head": self.first_head,
            "all_heads": self.all_heads,
        }

    def constants(self) -> dict[str, Any]:
        """Constexpr arguments, by name."""
        # not a compilation for each number of pieces
        steps = -(-(self.pieces.shape[0] - 1).bit_length() // 4) * 4
        return {"HEADS_FIRST": self.heads_first, "STEPS": steps}


def _start(
    kernel: Any, programs: int, args: dict[str, Any], constants: dict[str, Any], route: Route
) -> None:
    device = args["failed_ptr"].device
    launch(
        kernel,
        programs,
        args,
        constants,
        route=route,
        device=device,
        arch="",
        options={"num_warps": 8 if kernel is push_kernel else 4},
    )


def launch_wait(
    signals: Tensor,
    report: Tensor,
    failed: Tensor,
    *,
    target: int,
    allowed: int,
    step: int,
    call: int,
    nanoseconds: int,
    route: Route,
) -> None:
    """Let the stream wait until all counters are at a target: see `wait_kernel`.

    Args:
        signals: int32 [world], of this rank's memory.
        report: int32 [4, world], pinned on the host.
        failed: int32 [1].
    """
    args = {
        "signals_ptr": signals, "report_ptr": report, "failed_ptr": failed, "target": target,
        "allowed": allowed, "world": signals.shape[0], "step": step, "call": call,
        "limit": nanoseconds,
    }  # fmt: skip
    _start(wait_kernel, 1, args, {}, route)


def launch_take(
    out: Tensor, arrived: Tensor, failed: Tensor, *, poison: bool, route: Route
) -> None:
    """Copy what arrived, or NaN after a failure: see `take_kernel`.

    Args:
        out, arrived: contiguous, alike.
    """
    if not out.numel():
        return
    flat, source = (x.view(-1).view(_INTEGERS[x.itemsize]) for x in (out, arrived))
    args = {"out_ptr": flat, "arrived_ptr": source, "failed_ptr": failed, "numbers": flat.numel()}
    programs = triton.cdiv(flat.numel(), _NUMBERS)
    _start(take_kernel, programs, args, {"BLOCK": _NUMBERS, "POISON": poison}, route)


def launch_post(peers: Tensor, failed: Tensor, at: int, value: int, *, route: Route) -> None:
    """Tell all ranks a number, behind what the stream did so far: see `post_kernel`."""
    args = {
        "peers_ptr": peers, "failed_ptr": failed, "at": at, "value": value, "world": len(peers)
    }  # fmt: skip
    _start(post_kernel, 1, args, {}, route)


def launch_push(
    x: Tensor, lse: Tensor | None, stores: PeerStores, block_m: int, pause: int = 0, *, route: Route
) -> None:
    """Send rows as they are to their owners, tile by tile: see `push_kernel`.

    Args:
        x: [B, heads, rows, Dv], the last stride 1.
        lse: [B, heads, rows] fp32, the last stride 1; or None.
        block_m: rows of a tile.
        pause: most nanoseconds that a program waits before it stores.
    """
    B, heads, rows, Dv = x.shape
    assert x.stride(3) == 1 and (lse is None or lse.stride(2) == 1)
    tiles = triton.cdiv(rows, block_m)
    args = {
        "x_ptr": x, "lse_ptr": lse, "stride_xb": x.stride(0), "stride_xh": x.stride(1),
        "stride_xm": x.stride(2), "stride_lb": 0 if lse is None else lse.stride(0),
        "stride_lh": 0 if lse is None else lse.stride(1),
        "heads": heads, "rows": rows, "tiles": tiles, "pause": pause, **stores.arguments(),
    }  # fmt: skip
    constants = {
        "Dv": Dv, "BLOCK_DV": triton.next_power_of_2(Dv), "BLOCK_M": block_m,
        "WITH_LSE": lse is not None, **stores.constants(),
    }  # fmt: skip
    _start(push_kernel, B * heads * tiles, args, constants, route)

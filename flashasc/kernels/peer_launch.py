"""Start the kernels around a store with peers: what they are told, and how much each one does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from .launch import Route, launch
from .peer_kernels import meet_kernel, push_kernel, take_kernel

_NUMBERS = 4096
"""Numbers that a program of `take_kernel` copies."""
_INTEGERS = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class PeerStores:
    """Where the rows of one call go: what a kernel that stores with peers is told.

    Attributes:
        memories: int64 [pieces]: the address of the memory of each piece's owner.
        pieces: int32 [pieces + 1, 4]: see `blocks.layout.owner_of`.
        failed: int32 [1]: not 0 once a wait gave up.
        out_at, lse_at: bytes from an address to the output and log-sum-exp of the call.
        rank: this one, whose own rows stay here.
        first_head, all_heads: number of this rank's first query head, and how many all have.
        heads_first: outputs are [B, heads, rows, Dv], else [B, rows, heads, Dv].
    """

    memories: Tensor
    pieces: Tensor
    failed: Tensor
    out_at: int
    lse_at: int
    rank: int
    first_head: int
    all_heads: int
    heads_first: bool

    def arguments(self) -> dict[str, Any]:
        """Runtime arguments, by name."""
        return {
            "memories_ptr": self.memories,
            "pieces_ptr": self.pieces,
            "failed_ptr": self.failed,
            "pieces": self.pieces.shape[0] - 1,
            "out_at": self.out_at,
            "lse_at": self.lse_at,
            "rank": self.rank,
            "first_head": self.first_head,
            "all_heads": self.all_heads,
        }

    def constants(self) -> dict[str, Any]:
        """Constexpr arguments, by name."""
        # the least with 16**levels >= pieces; at least 1
        levels = max(1, -(-(self.pieces.shape[0] - 2).bit_length() // 4))
        return {"HEADS_FIRST": self.heads_first, "LEVELS": levels}


def _start(
    kernel: Any,
    programs: int,
    args: dict[str, Any],
    constants: dict[str, Any],
    route: Route,
    *,
    warps: int,
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
        options={"num_warps": warps},
    )


def launch_meet(
    peers: Tensor,
    signals: Tensor,
    report: Tensor,
    failed: Tensor,
    *,
    at: int,
    target: int,
    call: int,
    nanoseconds: int,
    route: Route,
) -> None:
    """Signal what the stream stored so far, and let it wait for all ranks: see `meet_kernel`.

    Args:
        peers: int64 [world].
        signals: int32 [world], of this rank's memory.
        report: int32 [3, world], pinned on the host.
        failed: int32 [1].
    """
    args = {
        "peers_ptr": peers, "signals_ptr": signals, "report_ptr": report, "failed_ptr": failed,
        "at": at, "target": target, "world": signals.shape[0], "call": call, "limit": nanoseconds,
    }  # fmt: skip
    _start(meet_kernel, 1, args, {"RANKS": triton.next_power_of_2(len(peers))}, route, warps=1)


@dataclass(frozen=True)
class Arrived:
    """Where peers stored what a rank gets back, as a matrix of which some columns are its own.

    Attributes:
        numbers: contiguous integers, as wide as the floats that they are.
        rows, columns: of the matrix.
        own_from, own_to: columns of this rank's heads, which nobody stores there.
    """

    numbers: Tensor
    rows: int
    columns: int
    own_from: int
    own_to: int

    @classmethod
    def of(cls, x: Tensor, heads: slice, dim: int) -> Arrived:
        """Of a contiguous tensor with heads in one dimension, of which `heads` are this rank's."""
        rows, inner = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :])
        flat = x.view(-1).view(_INTEGERS[x.itemsize])
        return cls(flat, rows, x.shape[dim] * inner, heads.start * inner, heads.stop * inner)

    @property
    def block(self) -> int:
        """Columns of a program."""
        return min(_NUMBERS, 1 << max(self.columns - 1, 0).bit_length())

    @property
    def programs(self) -> int:
        """How many take all of it."""
        lines = _NUMBERS // self.block
        return -(-self.rows // lines) * -(-self.columns // self.block)


def launch_take(
    out: Tensor,
    lse: Tensor | None,
    arrived: Arrived,
    arrived_lse: Arrived | None,
    failed: Tensor,
    *,
    poison: bool,
    route: Route,
) -> None:
    """Copy what arrived beside this rank's own, or NaN after a failure: see `take_kernel`.

    Args:
        out, lse: contiguous, where it goes.
    """
    if not out.numel():
        return
    assert (lse is None) == (arrived_lse is None)
    flat = [None if x is None else x.view(-1).view(_INTEGERS[x.itemsize]) for x in (out, lse)]
    second = arrived_lse or arrived
    args = {
        "out_ptr": flat[0], "arrived_ptr": arrived.numbers, "lse_ptr": flat[1],
        "arrived_lse_ptr": None if arrived_lse is None else arrived_lse.numbers,
        "failed_ptr": failed, "programs": arrived.programs,
        "rows": arrived.rows, "columns": arrived.columns, "own_from": arrived.own_from,
        "own_to": arrived.own_to, "lse_rows": second.rows, "lse_columns": second.columns,
        "lse_from": second.own_from, "lse_to": second.own_to,
    }  # fmt: skip
    constants = {
        "BLOCK": arrived.block, "LSE_BLOCK": second.block, "WITH_LSE": lse is not None,
        "POISON": poison,
    }  # fmt: skip
    programs = arrived.programs + (0 if arrived_lse is None else arrived_lse.programs)
    _start(take_kernel, programs, args, constants, route, warps=4)


def launch_push(
    x: Tensor,
    lse: Tensor | None,
    found: tuple[Tensor, Tensor | None],
    stores: PeerStores,
    block_m: int,
    pause: int = 0,
    *,
    route: Route,
) -> None:
    """Send rows as they are to their owners, tile by tile: see `push_kernel`.

    Args:
        x: [B, heads, rows, Dv], the last stride 1.
        lse: [B, heads, rows] fp32, the last stride 1; or None.
        found: this rank's own output and log-sum-exp: where its own rows go.
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
        "heads": heads, "rows": rows, "tiles": tiles, "pause": pause,
        "out_ptr": found[0], "out_lse_ptr": found[1], **stores.arguments(),
    }  # fmt: skip
    constants = {
        "Dv": Dv, "BLOCK_DV": triton.next_power_of_2(Dv), "BLOCK_M": block_m,
        "WITH_LSE": lse is not None, **stores.constants(),
    }  # fmt: skip
    _start(push_kernel, B * heads * tiles, args, constants, route, warps=8)

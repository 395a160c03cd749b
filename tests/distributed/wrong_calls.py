"""Calls that are wrong on one rank or on all: run inside a rank."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from flashasc.distributed import (
    ContextParallel,
    hybrid_attention,
    own_positions,
    ring_attention,
    shard_positions,
    shard_sequence,
    ulysses_attention,
    unshard_sequence,
)


@dataclass(frozen=True)
class WrongCall:
    """A call of two ranks, and what both raise.

    Attributes:
        call: gets the rank.
        errors: names of what rank 0 and rank 1 raise.
        message: in both.
    """

    call: Callable[[int], Any]
    errors: tuple[str, str]
    message: str


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*(shape or (1, 4, 6, 8)), generator=torch.Generator().manual_seed(0)).to(
        dtype
    )


def ring(*qkv: Any, **options: Any) -> Any:
    q = qkv or (tensor(),)
    return ring_attention(*(q * 3 if len(q) == 1 else q), **options)


def edges(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def packed(tokens: int, cu_seqlens: torch.Tensor, **options: Any) -> Any:
    x = tensor(tokens, 4, 8)
    return ring(x, layout="TND", cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, **options)


VALUE = ("ValueError", "ValueError")
CALLS: dict[str, WrongCall] = {
    "dtypes": WrongCall(
        lambda r: ring(tensor(dtype=(torch.float32, torch.bfloat16)[r])),
        VALUE,
        "dtype .* rank 0 has 'torch.float32', rank 1 has 'torch.bfloat16'",
    ),
    "batch": WrongCall(lambda r: ring(tensor(1 + r, 4, 6, 8)), VALUE, "B must be the same"),
    "head size": WrongCall(lambda r: ring(tensor(1, 4, 6, 8 + r)), VALUE, "D must be the same"),
    "heads": WrongCall(lambda r: ring(tensor(1, 4 + r, 6, 8)), VALUE, "Hq must be the same"),
    "an option": WrongCall(
        lambda r: ring(causal=bool(r)), VALUE, "causal .* rank 0 has False, rank 1 has True"
    ),
    "windows": WrongCall(lambda r: ring(window=(r, 2)), VALUE, "window must be the same"),
    "placements": WrongCall(
        lambda r: ring(placement=("contiguous", "zigzag")[r]), VALUE, "placement .* 'zigzag'"
    ),
    "gradients": WrongCall(
        lambda r: ring(tensor().requires_grad_(r == 1)), VALUE, "gradients must be the same"
    ),
    "sinks": WrongCall(
        lambda r: ring(sinks=tensor(4) if r else None), VALUE, "sinks must be the same"
    ),
    "operators": WrongCall(
        lambda r: (ring_attention, ulysses_attention)[r](*[tensor()] * 3),
        VALUE,
        "operator .* 'ring_attention', rank 1 has 'ulysses_attention'",
    ),
    "no tensor": WrongCall(
        lambda r: ring([1.0]) if r else ring(),
        ("PeerError", "TypeError"),
        "q must be a torch.Tensor; got list",
    ),
    "a wrong shape": WrongCall(
        lambda r: ring(tensor(4, 6, 8)) if r else ring(),
        ("PeerError", "ValueError"),
        "q must have 4 dimensions",
    ),
    "not supported": WrongCall(
        lambda r: ring(precision="high"), ("NotImplementedError",) * 2, 'precision="high"'
    ),
    "no such placement": WrongCall(
        lambda r: ring(placement="zig"), VALUE, "placement must be one of"
    ),
    "timeout": WrongCall(lambda r: ring(timeout=0), VALUE, "timeout must be seconds"),
    **{
        f"timeout {wrong!r} on one rank": WrongCall(
            lambda r, wrong=wrong: ring(timeout=wrong if r else 20.0),  # type: ignore[misc]
            ("PeerError", "ValueError"),
            "timeout must be seconds",
        )
        for wrong in (-1, math.nan, math.inf, "x", True)
    },
    "timeout of a mesh": WrongCall(
        lambda r: hybrid_attention(
            *[tensor()] * 3, mesh=init_device_mesh("cpu", (2, 1)), timeout=None if r else -1
        ),
        ("ValueError", "PeerError"),
        "timeout must be seconds",
    ),
    "timeout of positions": WrongCall(
        lambda r: own_positions(4, timeout=0 if r else None),
        ("PeerError", "ValueError"),
        "timeout must be seconds",
    ),
    "tokens of positions": WrongCall(
        lambda r: own_positions((-1, 4)[r]), ("ValueError", "PeerError"), "tokens must be a number"
    ),
    "whose gradients": WrongCall(
        lambda r: ulysses_attention(
            tensor().requires_grad_(r == 0),
            *[tensor()] * 2,
            sinks=tensor(4).requires_grad_(r == 1),
        ),
        VALUE,
        "gradients of q, k or v must be the same",
    ),
    "meta": WrongCall(
        lambda r: ring(tensor().to("meta")) if r == 0 else ring(),
        ("NotImplementedError", "PeerError"),
        "meta tensors",
    ),
    "zigzag of other lengths": WrongCall(
        lambda r: ring(tensor(1, 4, 6 + 4 * r, 8), placement="zigzag"),
        VALUE,
        "rank 0 holds 6 tokens, and a zigzag placement of 16 gives it 8",
    ),
    "heads over ranks": WrongCall(
        lambda r: ulysses_attention(*[tensor(1, 3, 6, 8)] * 3), VALUE, "Hq = 3. Use ring_attention"
    ),
    "packed lengths": WrongCall(
        lambda r: packed(6, edges(0, 12 + r)), VALUE, "cu_seqlens_q must be the same"
    ),
    "packed tokens": WrongCall(
        lambda r: packed(6, edges(0, 5, 9)), VALUE, r"hold \[6, 6\] tokens, 12 together"
    ),
    "falling lengths": WrongCall(
        lambda r: packed(6, edges(0, 9, 5)), VALUE, "cu_seqlens_q must start with 0 and not fall"
    ),
    "a group of another kind": WrongCall(
        lambda r: ring(group="all"), ("TypeError",) * 2, "group must be a process group"
    ),
    "mesh of two dimensions": WrongCall(
        lambda r: ring(group=init_device_mesh("cpu", (2, 1))), VALUE, "a mesh of one dimension"
    ),
    "mesh of one dimension": WrongCall(
        lambda r: hybrid_attention(*[tensor()] * 3, mesh=init_device_mesh("cpu", (2,))),
        VALUE,
        "mesh must have two dimensions",
    ),
    "hybrid, wrong on one rank": WrongCall(
        lambda r: hybrid_attention(
            *[tensor(dtype=(torch.float32, torch.float16)[r])] * 3,
            mesh=init_device_mesh("cpu", (2, 1)),
        ),
        VALUE,
        "dtype must be the same",
    ),
    "another group's": WrongCall(lambda r: ring(group=_member_of(r)), VALUE, "member"),
    "gradient of unshard": WrongCall(
        lambda r: unshard_sequence(tensor().requires_grad_(), dim=2),
        ("NotImplementedError",) * 2,
        "unshard_sequence is not differentiable",
    ),
    "gradient of unshard on one rank": WrongCall(
        lambda r: unshard_sequence(tensor().requires_grad_(r == 1), dim=2),
        ("PeerError", "NotImplementedError"),
        "unshard_sequence is not differentiable",
    ),
    "dtypes of unshard": WrongCall(
        # as many bytes
        lambda r: unshard_sequence(tensor().half().repeat(1, 1, 1, 2) if r else tensor(), dim=2),
        VALUE,
        r"unshard_sequence: shape .* rank 0 has '\[1, 4, tokens, 8\]', rank 1 has .* 16",
    ),
    "dtype of unshard": WrongCall(
        lambda r: ContextParallel().unshard(tensor().half() if r else tensor(), 2),
        VALUE,
        "dtype must be the same .* rank 1 has 'torch.float16'",
    ),
    "shapes of unshard": WrongCall(
        lambda r: unshard_sequence(tensor()[..., : 8 - 4 * r], dim=2), VALUE, "shape must be the"
    ),
    "dims of unshard": WrongCall(
        lambda r: unshard_sequence(tensor(), dim=(-2, 1)[r]), VALUE, "dim .* has 2, rank 1 has 1"
    ),
    "no dim of unshard": WrongCall(
        lambda r: unshard_sequence(tensor(), dim=(9, 2)[r]),
        ("ValueError", "PeerError"),
        r"dim must be a dimension of x, which has 4, \(1, 4, 6, 8\); got 9",
    ),
    "placements of unshard": WrongCall(
        lambda r: unshard_sequence(tensor(), dim=2, placement=("zig", "zigzag")[r]),
        ("ValueError", "PeerError"),
        "placement must be one of",
    ),
    "lengths of unshard": WrongCall(
        lambda r: unshard_sequence(tensor(), dim=2, cu_seqlens=edges(0, 12 - r, 12)),
        VALUE,
        "cu_seqlens must be the same",
    ),
    "tokens of unshard": WrongCall(
        lambda r: unshard_sequence(tensor(), dim=2, cu_seqlens=edges(0, 7)),
        VALUE,
        "cu_seqlens must end with the tokens of x on all ranks, 12; got 7",
    ),
    "timeout of unshard": WrongCall(
        lambda r: unshard_sequence(tensor(), dim=2, timeout=(None, -1)[r]),
        ("PeerError", "ValueError"),
        "timeout must be seconds",
    ),
    "one of a mesh's unshard": WrongCall(
        lambda r: unshard_sequence(
            tensor().to((torch.float32, torch.int32)[r]), init_device_mesh("cpu", (1, 2)), dim=2
        ),
        VALUE,
        "dtype must be the same",
    ),
    "dim of shard": WrongCall(
        lambda r: shard_sequence(tensor(), dim=7), VALUE, "dim must be a dimension of x"
    ),
    "length of positions": WrongCall(
        lambda r: shard_positions(-3), VALUE, "length must be a number of tokens, 0 or more; got -3"
    ),
    "tokens of shard": WrongCall(
        lambda r: shard_sequence(tensor(), dim=2, cu_seqlens=edges(0, 7)),
        VALUE,
        "cu_seqlens must end with the tokens of x",
    ),
}


def _member_of(rank: int) -> Any:
    """A group without this rank."""
    groups = [dist.new_group([r]) for r in range(2)]
    return groups[1 - rank]


def all_wrong() -> dict[str, tuple[str, str]]:
    """What each call raises on this rank, and that a right one works afterwards."""
    found = {}
    for name, wrong in CALLS.items():
        try:
            wrong.call(dist.get_rank())
            found[name] = ("nothing", "")
        except Exception as error:
            found[name] = (type(error).__name__, str(error))
    ring()
    return found


def late_peers() -> str:
    """What rank 0 of three says, where the others come too late."""
    if dist.get_rank():
        time.sleep(3)
        return ""
    try:
        ring(timeout=0.5)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def wrong_in_a_mesh() -> tuple[str, str]:
    """What four ranks of a mesh raise where one has another dtype."""
    mesh = init_device_mesh("cpu", (2, 2))
    dtype = torch.float64 if dist.get_rank() == 3 else torch.float32
    try:
        hybrid_attention(*[tensor(dtype=dtype)] * 3, mesh=mesh)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""

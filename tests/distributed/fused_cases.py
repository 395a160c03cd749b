"""The way back inside the kernel, on ranks: what each of them finds."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flashasc._arguments import Arguments
from flashasc.distributed import shard_sequence
from flashasc.distributed._emulated import EmulatedBuffers
from flashasc.distributed._run import run_ulysses
from flashasc.distributed._transport import Transport
from flashasc.distributed.verify.tags import same_bits


def whole(seed: int, length: int, heads: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(2, n, length, 16, generator=generator).to(dtype)
        for n in (heads, heads // 2, heads // 2)
    ]


def fused_is_unfused() -> list[str]:
    """Calls that differ in bits."""
    world = dist.get_world_size()
    wrong = []
    cases = itertools.product(
        ("contiguous", "zigzag"), ("BNSD", "BSND"), (False, True), (torch.bfloat16, torch.float32)
    )
    for number, (placement, layout, with_lse, dtype) in enumerate(cases):
        tensors = whole(number, 16 * world + 5 * number + 3, 2 * world, dtype)
        q, k, v = (shard_sequence(x, dim=2, placement=placement) for x in tensors)
        if layout == "BSND":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        arguments = Arguments(q, k, v, layout=layout, causal=True, return_lse=with_lse)
        found: Any = run_ulysses(arguments, placement, Transport(), memory=EmulatedBuffers)
        right: Any = run_ulysses(arguments, placement, Transport())
        pairs = zip(found, right, strict=True) if with_lse else [(found, right)]
        if not all(same_bits(a, b) for a, b in pairs):
            wrong.append(f"{placement} {layout} {with_lse} {dtype}")
    return wrong

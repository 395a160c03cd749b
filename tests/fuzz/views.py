"""Memory layouts of a tensor: every way in which a view can lie in a storage."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import torch
from torch import Tensor


class View(NamedTuple):
    """How a tensor lies in memory."""

    kind: str
    seed: int


KINDS = ("contiguous", "contiguous", "moved", "last moved", "cut", "step", "last step", "expanded")


def draw_view(rng: random.Random) -> View:
    """One of the kinds."""
    return View(rng.choice(KINDS), rng.getrandbits(30))


def lay_out(x: Tensor, view: View, rng: random.Random, fill: float | bool = math.nan) -> Tensor:
    """An equal tensor that lies in memory as `view` says; `fill` is what lies around it.

    "expanded" makes rows alike: the values along a dimension become those of its first.
    """
    dims = x.dim()
    if dims == 0 or not x.numel():
        return x
    match view.kind:
        case "moved":
            # all but the last dimension in another order
            order = [*random.Random(view.seed).sample(range(dims - 1), dims - 1), dims - 1]
            return _permuted(x, order)
        case "last moved":
            order = random.Random(view.seed).sample(range(dims), dims)
            return _permuted(x, order)
        case "cut":
            # a part of a larger tensor: another offset, and so another alignment
            before = [rng.randint(0, 3) for _ in range(dims)]
            sizes = [n + b + rng.randint(0, 3) for n, b in zip(x.shape, before, strict=True)]
            room = torch.full(sizes, fill, dtype=x.dtype)
            part = room[tuple(slice(b, b + n) for b, n in zip(before, x.shape, strict=True))]
            return part.copy_(x)
        case "step" | "last step":
            dim = dims - 1 if view.kind == "last step" else rng.randrange(max(dims - 1, 1))
            sizes = list(x.shape)
            sizes[dim] *= 3
            room = torch.full(sizes, fill, dtype=x.dtype)
            index = [slice(None)] * dims
            index[dim] = slice(rng.randint(0, 2), None, 3)
            return room[tuple(index)].copy_(x)
        case "expanded":
            dim = rng.randrange(max(dims - 1, 1))
            return x.narrow(dim, 0, 1).contiguous().expand_as(x)
    return x.contiguous()


def _permuted(x: Tensor, order: list[int]) -> Tensor:
    back = [order.index(d) for d in range(x.dim())]
    return x.permute(order).contiguous().permute(back)

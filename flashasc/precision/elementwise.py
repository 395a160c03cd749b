"""Element by element: which agree, and long tensors a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK = 1 << 18
"""Elements held in float64 at a time."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def chunks(*tensors: Tensor | None, size: int | None = None) -> Iterator[list[Tensor]]:
    """Equally long pieces of tensors of one shape, flat, on the CPU; None stays away.

    Nothing is yielded for tensors without elements.
    """
    flat = [tensor.detach().reshape(-1) for tensor in tensors if tensor is not None]
    step = size or CHUNK
    for start in range(0, flat[0].numel(), step):
        yield [tensor[start : start + step].cpu() for tensor in flat]


def agree(actual: Tensor, expected: Tensor, rtol: float, atol: float, equal_nan: bool) -> Tensor:
    """Where |actual - expected| <= atol + rtol * |expected|; integers and bool: where equal.

    An infinity agrees with itself alone, never by way of an infinite tolerance.
    """
    if not expected.is_floating_point():
        return bits(actual) == bits(expected)
    a, e = actual.double(), expected.double()
    close = (a - e).abs() <= atol + rtol * e.abs()
    good = torch.where(a.isfinite() & e.isfinite(), close, a == e)
    return good | (a.isnan() & e.isnan()) if equal_nan else good


def bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: equal where the bits are, -0.0 unlike 0.0."""
    return tensor.contiguous().view(_INTEGERS[tensor.element_size()])


def allowance(expected: Tensor, rtol: float, atol: float) -> Tensor:
    """How far off each element may be, float64; 0 for integers and bool."""
    if not expected.is_floating_point():
        return torch.zeros(expected.shape, dtype=torch.float64)
    return atol + rtol * expected.double().abs()


def unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Coordinates of an element, given its place in the flat tensor."""
    place = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        place.append(rest)
    return tuple(reversed(place))

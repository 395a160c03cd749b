"""Data that says where it comes from, and what is wrong with data that should be elsewhere.

`flashasc.precision.Tags` gives every position of every block a value of its own. These values come
again after 250 positions, so that any number of blocks fits in 16 bits, and are small, so that sums
of them are exact: what reductions are checked with.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .._transport import as_bytes

# half of the integers that bfloat16 has in a row, about
_BASE = 125


def tagged(rank: int, block: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Values that no other rank or block has there, nor 250 positions in a row; exact in bfloat16.

    Args:
        rank, block: less than 125 each.
        shape, dtype: of the result; integers from 1 to 250, on the CPU.
    """
    position = torch.arange(torch.Size(shape).numel())
    # even positions tell the block, in small numbers, and odd ones the rank
    code = torch.where(position % 2 == 0, block * 37, rank * 41)
    values = (code + position // 2 * 11) % _BASE + 1 + position % 2 * _BASE
    return values.to(dtype).view(shape)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same in shape, dtype and every bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(as_bytes(a.contiguous().view(-1)), as_bytes(b.contiguous().view(-1)))


def difference(found: Tensor, expected: Tensor, others: Mapping[str, Tensor]) -> str:
    """What is wrong with data, in words; "" where nothing is.

    Args:
        found, expected: what arrived, and what should have.
        others: what else might have arrived, by name.
    """
    found, expected = found.detach().cpu(), expected.detach().cpu()
    if same_bits(found, expected):
        return ""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        shapes = [f"{x.dtype} {tuple(x.shape)}" for x in (found, expected)]
        return f"{shapes[0]} instead of {shapes[1]}"
    if not found.any():
        return "all zeros"
    for name, other in others.items():
        if same_bits(found, other.detach().cpu()):
            return f"holds {name}"
    flat, right = found.reshape(-1), expected.reshape(-1)
    wrong = (flat != right).nonzero().view(-1).tolist()
    count = len(flat)
    if not wrong:
        return "the same values in other bits"
    half = count // 2
    if torch.equal(flat.roll(half), right) or torch.equal(flat.roll(-half), right):
        return "its halves are swapped"
    first, last = wrong[0], wrong[-1]
    if last == count - 1 and len(wrong) > 1 and first > 0 and len(wrong) >= 0.9 * (count - first):
        return f"truncated: right up to element {first} of {count}, then something else"
    return (
        f"{len(wrong)} of {count} elements differ, the first at {first}: {flat[first].item():g} "
        f"instead of {right[first].item():g}"
    )

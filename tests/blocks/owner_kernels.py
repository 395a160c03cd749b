"""Wrapper kernel for the tests of `blocks.layout.owner_of`."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.layout import owner_of


@triton.jit
def owner_kernel(pieces_ptr, out_ptr, rows, pieces, STEPS: tl.constexpr):
    """What owner_of says of each row, into out, [rows, 5]."""
    for row in range(0, rows):
        owner, place, owned, first, end = owner_of(pieces_ptr, row, pieces, STEPS)
        tl.store(out_ptr + 5 * row, owner)
        tl.store(out_ptr + 5 * row + 1, place)
        tl.store(out_ptr + 5 * row + 2, owned)
        tl.store(out_ptr + 5 * row + 3, first)
        tl.store(out_ptr + 5 * row + 4, end)

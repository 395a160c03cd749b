"""Wrapper kernel for the tests of `blocks.layout.piece_of` and `owner_of`."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.layout import owner_of, piece_of


@triton.jit
def owner_kernel(pieces_ptr, rows_ptr, out_ptr, rows, pieces, LEVELS: tl.constexpr):
    """What piece_of and owner_of say of each of some rows, into out, [rows, 6]."""
    for i in range(0, rows):
        row = tl.load(rows_ptr + i)
        piece = piece_of(pieces_ptr, row, pieces, LEVELS)
        owner, place, owned, first, end = owner_of(pieces_ptr, row, piece)
        tl.store(out_ptr + 6 * i, piece)
        tl.store(out_ptr + 6 * i + 1, owner)
        tl.store(out_ptr + 6 * i + 2, place)
        tl.store(out_ptr + 6 * i + 3, owned)
        tl.store(out_ptr + 6 * i + 4, first)
        tl.store(out_ptr + 6 * i + 5, end)

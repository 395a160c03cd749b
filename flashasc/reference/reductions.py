"""Reductions of rows in plain PyTorch: what the kernels compute, tile by tile, lane by lane."""

from __future__ import annotations

import torch
from torch import Tensor

from .._reductions import Largest, Method, Term

LANES = 1024
"""Numbers of a row in a tile: as many sums are kept side by side."""

_TILE = 1 << 20
"""Numbers of all rows in a tile, about: memory is bounded whatever the input's size."""

_EXTRACTIONS = 3

Pair = tuple[Tensor, Tensor]


def sum_rows(x: Tensor, term: Term, given: Tensor | None, method: Method) -> list[Tensor]:
    """Sum what `term` says over each row.

    Args:
        x: [rows, numbers] of any float dtype, any strides.
        term: see `Term`.
        given: [rows]: the scale, pivot or mean of each row, for the terms that have one.
        method: how the sums are kept.

    Returns:
        One [rows] tensor, or for "spread" two: of the squares, and of the deviations. float32, or
        float64 for float64.
    """
    step = max(1, _TILE // LANES)
    blocks = [
        _sum_block(x[i : i + step], term, None if given is None else given[i : i + step], method)
        for i in range(0, x.shape[0], step)
    ]
    return [torch.cat(parts) for parts in zip(*blocks, strict=True)]


def max_rows(x: Tensor, of: Largest) -> Tensor:
    """Largest x, -x or |x| of each row; NaN where a row holds one.

    Args:
        x: [rows, numbers] of any float dtype, not empty.
        of: see `Largest`.

    Returns:
        [rows] float32, or float64 for float64.
    """
    largest = -x.amin(1) if of == "negated" else x.amax(1)
    if of == "size":
        largest = torch.maximum(largest, -x.amin(1))
    return largest.to(torch.promote_types(x.dtype, torch.float32))


def _sum_block(x: Tensor, term: Term, given: Tensor | None, method: Method) -> list[Tensor]:
    sums: list[Pair] = []
    for tile in x.split(LANES, 1):
        addends = _terms(tile.to(torch.promote_types(x.dtype, torch.float32)), term, given)
        if not sums:
            sums = [(torch.zeros_like(a), torch.zeros_like(a)) for a in addends]
        width = tile.shape[1]
        for (acc, comp), addend in zip(sums, addends, strict=True):
            # the last tile may be short: the other lanes are done
            acc[:, :width], comp[:, :width] = accumulate(
                acc[:, :width], comp[:, :width], addend, method
            )
    return [torch.add(*row_total(*pair, method)) for pair in sums]


def _terms(x: Tensor, term: Term, given: Tensor | None) -> tuple[Tensor, ...]:
    match term:
        case "value":
            return (x,)
        case "square":
            return (x * x,)
    assert given is not None
    column = given[:, None]
    match term:
        case "scaled":
            return ((x * column).square(),)
        case "weight":
            return ((x - torch.where(column.isfinite(), column, 0.0)).exp(),)
        case "spread":
            apart = x - column
            return (apart.square(), apart)


def accumulate(acc: Tensor, comp: Tensor, x: Tensor, method: Method) -> Pair:
    """Add to the sums acc + comp, as `blocks.reduce.accumulate` does."""
    match method:
        case "plain":
            return acc + x, comp
        case "kahan":
            return _fold(acc, x + comp)
        case "sum2":
            total, error = _two_sum(acc, x)
            kept, error = _fold(total, comp + error)
            return torch.where(kept.isfinite(), kept, total), error


def row_total(acc: Tensor, comp: Tensor, method: Method) -> Pair:
    """Sum over the lanes, as `blocks.reduce.row_total` does."""
    match method:
        case "plain":
            total = acc.sum(1)
            error = torch.zeros_like(total)
        case "kahan":
            total, error = _row_sum(acc)
            error = error + comp.sum(1)
        case "sum2":
            total, error = _row_sum2(acc, comp)
    return total, torch.where(total.isfinite(), error, 0.0)


def _two_sum(a: Tensor, b: Tensor) -> Pair:
    total = a + b
    b_rounded = total - a
    return total, (a - (total - b_rounded)) + (b - b_rounded)


def _fold(acc: Tensor, x: Tensor) -> Pair:
    total = acc + x
    return total, torch.where(total.isfinite(), x - (total - acc), 0.0)


def _extract(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """High parts that add up exactly in any order, the rest, and whether there is such a grid."""
    largest = x.abs().amax(1) * (2.0 * x.shape[1])
    info = torch.finfo(x.dtype)
    # the next power of two, exactly; what is not normal lies on the normal numbers' grid already
    grid = (largest / torch.frexp(largest).mantissa).nan_to_num(0.0).clamp(min=info.tiny)[:, None]
    high = (grid + x) - grid
    return high, x - high, largest < 1.0 / (2.0 * info.tiny)


def _row_sum(x: Tensor) -> Pair:
    high, low, exact = _extract(x)
    total, error = high.sum(1), low.sum(1)
    exact = exact & error.isfinite()
    return torch.where(exact, total, x.sum(1)), torch.where(exact, error, 0.0)


def _row_sum2(acc: Tensor, comp: Tensor) -> Pair:
    high, rest, exact = _extract(acc)
    total = high.sum(1)
    error = torch.zeros_like(total)
    for _ in range(_EXTRACTIONS - 1):
        high, rest, _exact = _extract(rest)
        total, error = accumulate(total, error, high.sum(1), "sum2")
    carried, carried_error = _row_sum(comp)
    total, error = accumulate(total, error, carried, "sum2")
    last = error + (carried_error + rest.sum(1))
    kept = total + last
    error = last - (kept - total)
    exact = exact & error.isfinite()
    return torch.where(exact, kept, acc.sum(1)), torch.where(exact, error, 0.0)

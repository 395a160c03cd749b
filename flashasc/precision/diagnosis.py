"""What mismatches look like: a swap, an offset, a flipped bit, memory never written."""

from __future__ import annotations

import torch
from torch import Tensor

from .elementwise import agree, bits
from .moved import bounding_box, describe, moved_slices
from .rounding import unit_in_last_place
from .statistics import Errors

# more bad elements than this are not looked at bit by bit
_MOST_FLIPS = 16
# ulps that an error has to have for one bit to explain it
_LARGE = 16
# a pattern has to explain so many elements, and so large a share of those in its box
_LEAST, _SHARE = 8, 0.99
_MOST_FITTED = 1 << 21
# so many errors have one sign by chance once in a million tensors
_LEANING = 100


def diagnose(actual: Tensor, expected: Tensor, bad: Tensor, rtol: float, atol: float) -> list[str]:
    """Name the patterns that explain the mismatches of a tensor.

    Args:
        actual, expected: [...] one shape and dtype, on the CPU.
        bad: [...] bool, where they do not agree; at least one does not.
        rtol, atol: within which values are taken for equal.

    Returns:
        Where the mismatches are, and what they look like, as far as that is clear.
    """
    box = bounding_box(bad) if bad.dim() else ()
    count = int(bad.sum())
    found = [_where(bad, box, count)]
    for pattern in (_unwritten, _moved, _flipped, _offset_or_scale):
        if words := pattern(actual, expected, bad, rtol, atol):
            found.append(words)
            # the first pattern that explains everything is the simplest
            break
    return found


def leaning(errors: Errors) -> str | None:
    """Say so where the errors have one sign: a sum that truncates, or lacks a term."""
    off = errors.too_small + errors.too_large
    most = max(errors.too_small, errors.too_large)
    if off < _LEANING or most <= 0.75 * off:
        return None
    way = "small" if most == errors.too_small else "large"
    return (
        f"errors lean one way: {most / off:.0%} of them are too {way}, on average by "
        f"{errors.relative_bias:+.2g} of the result; a sum that is truncated, stagnates or lacks a "
        "term does that, rounding to nearest does not"
    )


def _where(bad: Tensor, box: tuple[slice, ...], count: int) -> str:
    words = f"{count} of {bad.numel()} elements differ"
    if not box:
        return words
    inside = int(torch.tensor([s.stop - s.start for s in box]).prod())
    place = ", ".join(
        ":" if (s.start, s.stop) == (0, size) else f"{s.start}:{s.stop}"
        for s, size in zip(box, bad.shape)
    )
    filled = "all of" if inside == count else "within"
    return f"{words}, {filled} [{place}]"


def _unwritten(
    actual: Tensor, expected: Tensor, bad: Tensor, rtol: float, atol: float
) -> str | None:
    values = actual[bad]
    if len(values) < 2:
        return None
    if bool((values == 0).all()):
        return "zero wherever they differ: never written, or a block that was skipped"
    if bool(values.isnan().all()):
        return "NaN wherever they differ: never written, or 0 * inf, inf - inf, 0 / 0"
    return None


def _flipped(actual: Tensor, expected: Tensor, bad: Tensor, rtol: float, atol: float) -> str | None:
    if int(bad.sum()) > _MOST_FLIPS or actual.dtype == torch.bool:
        return None
    places = bad.nonzero()
    words = []
    for place in places.tolist():
        bit = _bit(actual[tuple(place)], expected[tuple(place)], exact=rtol == atol == 0)
        if bit is None:
            return None
        words.append(f"bit {bit}{_part(bit, actual.dtype)} at {tuple(place)}")
    if rtol == atol == 0:
        return "they differ in one bit each: " + ", ".join(words)
    return "as if flipped: " + ", ".join(words)


def _bit(actual: Tensor, expected: Tensor, *, exact: bool) -> int | None:
    """The one bit whose flip makes an element right.

    Args:
        actual, expected: [] each.
        exact: whether all else is right to the last bit. If not, an element counts as right within
            2 ulps; and small errors, which by chance often are a bit, are left alone.
    """
    width = 8 * actual.element_size()
    raw = bits(actual.reshape(1))
    ones = (torch.ones(width, dtype=torch.int64) << torch.arange(width)).to(raw.dtype)
    flipped = (raw ^ ones).view(actual.dtype)
    wanted = expected.reshape(1).expand(width)
    right = bits(flipped) == bits(wanted)
    if not exact:
        unit = unit_in_last_place(expected.double(), expected.dtype).item()
        off = abs(actual.double() - expected.double()).item() / unit
        if off < _LARGE:
            return None
        if off > 4 * _LARGE or off != off:
            right |= agree(flipped, wanted, 0.0, 2 * unit, False)
    return int(right.nonzero()[-1]) if bool(right.any()) else None


def _part(bit: int, dtype: torch.dtype) -> str:
    """Which part of a floating number a bit belongs to."""
    if not dtype.is_floating_point:
        return ""
    info = torch.finfo(dtype)
    mantissa = round(-torch.log2(torch.tensor(info.eps)).item())
    if bit == info.bits - 1:
        return " (sign)"
    return " (exponent)" if bit >= mantissa else " (mantissa)"


def _moved(actual: Tensor, expected: Tensor, bad: Tensor, rtol: float, atol: float) -> str | None:
    if not bad.dim():
        return None
    moves = moved_slices(actual, expected, bad, rtol, atol)
    return describe(*moves) if moves else None


def _offset_or_scale(
    actual: Tensor, expected: Tensor, bad: Tensor, rtol: float, atol: float
) -> str | None:
    """One number added, or multiplied by, over the box of the mismatches."""
    if int(bad.sum()) < _LEAST or not actual.is_floating_point():
        return None
    box = bounding_box(bad) if bad.dim() else ()
    # of very many elements a few million, evenly spread, tell as much
    step = max(1, bad[box].numel() // _MOST_FITTED)
    a, e, off = (x[box].reshape(-1)[::step] for x in (actual, expected, bad))
    a, e = a.double(), e.double()
    finite = a.isfinite() & e.isfinite()
    a, e, before = a[finite], e[finite], (~off)[finite].double().mean().item()
    if a.numel() < _LEAST:
        return None
    if rtol == atol == 0:
        # bits were compared; what was added was rounded
        rtol = 4 * torch.finfo(actual.dtype).eps
        atol = rtol * e.abs().mean().item()
    offset = (a - e).median().item()
    size = (e * e).sum().item()
    scale = (a * e).sum().item() / size if size else 1.0
    best = None
    for fitted, words in (
        (e + offset, f"as if {offset:+.4g} had been added to every element there"),
        (e * scale, f"as if every element there had been multiplied by {scale:.4g}"),
    ):
        share = agree(a, fitted, rtol, atol, False).double().mean().item()
        if share >= _SHARE and share > max(before, best[0] if best else 0.0):
            best = (share, words)
    return best[1] if best else None

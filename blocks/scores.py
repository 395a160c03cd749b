"""What changes a score before the softmax: its units, capping, and a penalty on distance."""

import triton
import triton.language as tl

from .constants import INF, LARGEST, LN2, LN2_HIGH, LN2_LOW, LOG2E


@triton.jit
def tanh(x):
    """Hyperbolic tangent out of `tl.exp`, which every target has.

    Args:
        x: [...] fp32.

    Returns:
        [...] fp32, within 3 ulp. NaN gives NaN.

    Source: Cephes (Moshier, 1989), tanhf: its polynomial below 0.625, 1 - 2 / (e**2x + 1) above.
    """
    size = tl.abs(x)
    square = x * x
    poly = -5.70498872745e-3 * square + 2.06390887954e-2
    poly = poly * square - 5.37397155531e-2
    poly = poly * square + 1.33314422036e-1
    poly = poly * square - 3.33332819422e-1
    near = poly * square * x + x
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    # the comparison is false for NaN, and near carries it
    return tl.where(size > 0.625, tl.where(x < 0, -far, far), near)


@triton.jit
def soft_cap(scores, cap):
    """Scores pressed into (-cap, cap).

    Args:
        scores: [M, N] fp32, in units of the cap: score / cap.
        cap: fp32, in the units that the result is to have.

    Returns:
        [M, N] fp32: cap * tanh(scores).
    """
    return tanh(scores) * cap


@triton.jit
def to_log2(x):
    """Natural units to log2 units, where what is finite stays finite.

    Args:
        x: [...] fp32, natural units. Finite numbers beyond 2.3e38 in size count as that.

    Returns:
        [...] fp32, log2 units.
    """
    bounded = tl.minimum(tl.maximum(x, -LARGEST * LN2), LARGEST * LN2)
    return tl.where(tl.abs(x) < INF, bounded, x) * LOG2E


@triton.jit
def above(x, pivot):
    """How far natural scores lie above a pivot in log2 units, in natural units.

    Scores times log2(e) would be rounded once more, by 9e-5 of a weight at a score of 1000. Their
    differences here are exact, and so is the pivot in natural units where it is a whole number
    below 2**16.

    Args:
        x: [...] fp32, natural units.
        pivot: [...] fp32, log2 units; no x is more than 14 above it.

    Returns:
        [...] fp32, natural units: x - pivot * ln(2). At most 11 (exp(11) fits in fp16), which only
        pivots of 2**24 and more reach, by their rounding.

    Source: Cody, Waite, Software Manual for the Elementary Functions (1980): a constant in two
    parts, the first so short that its product is exact.
    """
    distance = (x - pivot * LN2_HIGH) - pivot * LN2_LOW
    # not tl.minimum, which may drop a NaN
    return tl.where(distance > 11.0, 11.0, distance)


@triton.jit
def natural_base(base, candidate, top):
    """What natural scores of a tile are to be subtracted from, where pivots are in log2 units.

    As `above`, with all that depends on a pivot's size done once a row instead of once a score.

    Args:
        base: [M] fp32, log2 units, whole numbers, finite or inf. The pivot.
        candidate: [M] fp32, log2 units. The pivot that this tile alone would have.
        top: [M] fp32, natural units. The tile's largest score, no more than 14 log2 units above
            the pivot.

    Returns:
        (high, low): [M] fp32, natural units, to be subtracted one after the other. Their sum is
        base * ln(2), high exactly representable with bits to spare, where base is below 2**24.
        (top - high) - low is at most 11, as in `above`.
    """
    # whole numbers of at most 16 bits, the first of which times the 8 bits of LN2_HIGH is exact
    coarse = tl.where(tl.abs(base) < 2.0**16, base, tl.floor(base * (1 / 256)) * 256.0)
    high = coarse * LN2_HIGH
    low = (base - coarse) * LN2_HIGH + base * LN2_LOW
    # from 2**24 on pivots are rounded, and ever further: there a tile whose own the pivot is takes
    # its top for it, lest all of its weights be 0. (2**25: no pivot from there on is a lowered one)
    huge = tl.abs(base) >= 2.0**25
    high = tl.where(huge, tl.where(candidate == base, top, base * LN2), high)
    low = tl.where(huge, 0.0, low)
    return tl.maximum(high, (top - low) - 11.0), low


@triton.jit
def distance(offs_m, offs_n, diagonal):
    """How far each key is from the one that a query is aligned with.

    Args:
        offs_m: [M] int32. Query rows.
        offs_n: [N] int32. Keys.
        diagonal: int32. Query i is aligned with key i + diagonal.

    Returns:
        [M, N] fp32: |row + diagonal - key|, exact below 2**24.
    """
    return tl.abs((offs_m[:, None] + diagonal - offs_n[None, :]).to(tl.float32))

"""Compensated arithmetic: sums that carry their own rounding error.

One sign convention: a compensated value is a pair `(acc, comp)` whose true value is `acc + comp`.
Bounds and derivations are in `blocks/README.md`.
"""

import triton
import triton.language as tl

from .constants import INF


@triton.jit
def two_sum(a, b):
    """Sum of two tiles and its exact rounding error, whatever their order of magnitude.

    Args:
        a, b: [...] fp32, one shape.

    Returns:
        (total, error): total == fl(a + b), and total + error == a + b exactly unless it overflows.

    Source: Knuth, The Art of Computer Programming 2 (1969), section 4.2.2, theorem B.
    """
    total = a + b
    b_rounded = total - a
    error = (a - (total - b_rounded)) + (b - b_rounded)
    return total, error


@triton.jit
def fast_two_sum(a, b):
    """Sum of two tiles and its exact rounding error, where |a| >= |b| or a == 0.

    Args:
        a, b: [...] fp32, one shape.

    Returns:
        (total, error): total == fl(a + b), and total + error == a + b exactly. Where |a| < |b| the
        error is off by at most u * |b|, u = 2**-24, which is what Kahan's sum lives with.

    Source: Dekker, Numerische Mathematik 18 (1971), 224-242.
    """
    total = a + b
    error = b - (total - a)
    return total, error


@triton.jit
def fold(acc, addend):
    """Add a tile to an accumulator and return what the addition rounded away.

    Args:
        acc: [...] fp32. The running sum.
        addend: [...] fp32. What to add, the previous compensation included.

    Returns:
        (acc, comp): [...] fp32. comp is 0 where the new acc is not finite: inf - inf would turn an
        honest infinity into NaN on the next step.
    """
    total, error = fast_two_sum(acc, addend)
    comp = tl.where(tl.abs(total) < INF, error, 0.0)
    return total, comp


@triton.jit
def kahan_add(acc, comp, x):
    """Add a tile to a compensated sum.

    Args:
        acc, comp: [...] fp32. The sum so far is acc + comp.
        x: [...] fp32.

    Returns:
        (acc, comp): the new pair. After n calls the error of acc + comp is at most
        (2u + O(n u**2)) * sum(abs(x)), u = 2**-24: it does not grow with n in any range met here.

    Source: Kahan, Communications of the ACM 8 (1965), 40.
    """
    return fold(acc, x + comp)


@triton.jit
def merge(acc_a, comp_a, acc_b, comp_b):
    """Add two compensated sums.

    Args:
        acc_a, comp_a, acc_b, comp_b: [...] fp32, one shape.

    Returns:
        (acc, comp): pair for the sum of both. Symmetric in a and b, bit for bit. comp is 0 where
        the sum is not finite.
    """
    total, error = two_sum(acc_a, acc_b)
    acc, comp = fast_two_sum(total, error + (comp_a + comp_b))
    # acc, not total: at the end of the range the compensations alone may carry it over
    finite = tl.abs(acc) < INF
    return tl.where(finite, acc, total), tl.where(finite, comp, 0.0)


@triton.jit
def power_of_two(exponent):
    """Exactly 2**exponent, built from the bits of the number.

    `tl.exp2` of an integer is not exact everywhere: the Ascend compiler turns it into
    exp(x * ln 2). A factor from here never rounds what it multiplies (short of underflow).

    Args:
        exponent: [...] fp32, whole numbers. At most 127; below -126 (and -inf) the result is 0.

    Returns:
        [...] fp32.
    """
    biased = tl.minimum(tl.maximum(exponent, -127.0), 127.0).to(tl.int32) + 127
    return (biased << 23).to(tl.float32, bitcast=True)


@triton.jit
def extract(x):
    """Split a tile, without error, into high parts that add up exactly in any order, and the rest.

    Args:
        x: [M, N] fp32, N <= 2**20.

    Returns:
        (high, low, exact): [M, N], [M, N] fp32 and [M] bool. high + low == x. Where exact, every
        partial sum of a row's high parts is an fp32 number, and low is at most 2**-22 * N times the
        row's largest number. Not exact: the largest number is so large that 2 * N times it reaches
        2**127; then high is x and low is 0. A NaN or inf makes its low part NaN.

    Source: Rump, Ogita, Oishi, SIAM J. Sci. Comput. 31 (2008), 189-224, ExtractVector.
    """
    # a power of two above 2 * N * max(abs(x)): every partial sum of the high parts fits under it,
    # and each is a multiple of 2**-24 times it, so that none is rounded
    bound = tl.max(tl.abs(x), axis=1) * (2.0 * x.shape[1])  # [M]
    exponent = (bound.to(tl.int32, bitcast=True) >> 23).to(tl.float32) - 126.0
    # 2**127 is the last grid; without one the sum of the high parts is the plain sum
    exact = exponent <= 127.0
    grid = tl.where(exact, power_of_two(exponent), 0.0)[:, None]  # [M, 1]
    high = (grid + x) - grid
    return high, x - high, exact


@triton.jit
def row_sum(x):
    """Sum over the columns of a tile, with the rounding error of every column kept.

    The high parts of an extraction are added without error, the low ones plainly. Only built-in
    reductions are used: a `tl.reduce` over (total, error) tuples does not lower for Ascend.

    Args:
        x: [M, N] fp32, N <= 2**20.

    Returns:
        (total, comp): [M] fp32. total + comp is off from the exact sum by at most
        N**3 * 2**-46 * max(abs(x)). A row with an inf or NaN, or one so large that
        2 * N * max(abs(x)) reaches 2**127, gives the plain sum and comp = 0.
    """
    high, low, _exact = extract(x)
    comp = tl.sum(low, axis=1)
    # a NaN or inf in the row shows in comp
    return tl.sum(high, axis=1), tl.where(tl.abs(comp) < INF, comp, 0.0)

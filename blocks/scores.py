"""What changes a score before the softmax: its units, capping, and a penalty on distance."""

import triton
import triton.language as tl

from .constants import INF, LARGEST, LN2, LN2_HIGH, LOG2E


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
def log2_pair(x):
    """Natural units to log2 units, as two numbers: rounded to one, a large x loses digits.

    Relative to a row maximum of its own size what is lost shows: at 1000 it is 9e-5 of a weight.

    Args:
        x: [...] fp32, natural units. Finite numbers beyond 2.3e38 in size count as that.

    Returns:
        (near, rest): [...] fp32, log2 units. near has 12 bits, near + rest is x to about 2**-33,
        relatively. rest is 0 where x is not finite.

    Source: Cody, Waite, Software Manual for the Elementary Functions (1980): a constant in two
    parts, whose product with a short number is exact.
    """
    product = to_log2(x)
    short = (product.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    # both products but the last are exact, and so is the first difference
    rest = ((x - short * LN2_HIGH) - short * (LN2 - LN2_HIGH)) * LOG2E
    finite = tl.abs(x) < LARGEST * LN2
    return tl.where(finite, short, product), tl.where(finite, rest, 0.0)


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

"""Products of fp32 tiles by way of 16-bit ones: an accuracy ladder where fp32 products are slow.

A number is split into two or three 16-bit parts, each holding what the ones before dropped, and the
products of parts that matter are added up, the small ones first. PRODUCT names the parts' dtype and
how many products that takes; the bounds are times |a| |b|, on top of what fp32 sums lose:

    "bf16x3"  two parts    3 * 2**-16   numbers from 2**-108 to 3.38e38 in size
    "bf16x6"  three parts  4 * 2**-24   numbers from 2**-108 to 3.38e38 in size
    "fp16x3"  two parts    3 * 2**-22   numbers from 2**-14 to 65504 in size
    "fp16x6"  three parts  2**-32       numbers from 2**-14 to 65504 in size

Smaller numbers lose digits, in fp16 an absolute 2**-36 each ("fp16x3"); larger ones round to
infinity, and products with it may be NaN.

Sources: Henry, Tang, Heinecke, IEEE ARITH 26 (2019), 69-76 (bf16x3, bf16x6); Ootomo, Yokota,
International Journal of High Performance Computing Applications 36 (2022), 475-491 (the scaling of
fp16 parts).
"""

import triton
import triton.language as tl

from .constants import INF

FP16_PART_SCALE = tl.constexpr(2.0**11)
"""By how much an fp16 part is raised above the one before it; low parts would be subnormal."""


@triton.jit
def split(x, DTYPE: tl.constexpr):
    """A tile as three 16-bit tiles: x ~ first + second / scale + third / scale**2.

    Args:
        x: [...] fp32.
        DTYPE: tl.bfloat16 (scale is 1) or tl.float16 (scale is FP16_PART_SCALE).

    Returns:
        (first, second, third): [...] DTYPE. The first two are off by at most 2**-16 (bf16) or
        2**-22 (fp16) of |x|, all three by 2**-24 or nothing, within the range of DTYPE.

    Source: Dekker, Numerische Mathematik 18 (1971), 224-242: each difference is exact.
    """
    tl.static_assert(
        DTYPE == tl.float16 or DTYPE == tl.bfloat16, "DTYPE is tl.float16 or tl.bfloat16"
    )
    SCALE: tl.constexpr = FP16_PART_SCALE if DTYPE == tl.float16 else 1.0
    first = x.to(DTYPE)
    rest = (x - first.to(tl.float32)) * SCALE
    second = rest.to(DTYPE)
    third = ((rest - second.to(tl.float32)) * SCALE).to(DTYPE)
    return first, second, third


@triton.jit
def split_left(x, DTYPE: tl.constexpr):
    """The parts of `split`, as often as `split_dot_add` multiplies them from the left.

    On Ascend a product may overwrite its left operand (reported for triton-ascend 3.2.0), so that
    each needs one of its own. That nothing is lost in a difference makes it: where
    rest = x - first, first = x - rest, exactly, and a compiler does not know.

    Args:
        x, DTYPE: see `split`.

    Returns:
        (first, first, first, second, second, third): [...] DTYPE. Only the first of each is right
        where x is not finite.
    """
    tl.static_assert(
        DTYPE == tl.float16 or DTYPE == tl.bfloat16, "DTYPE is tl.float16 or tl.bfloat16"
    )
    SCALE: tl.constexpr = FP16_PART_SCALE if DTYPE == tl.float16 else 1.0
    first = x.to(DTYPE)
    rest = x - first.to(tl.float32)
    second = (rest * SCALE).to(DTYPE)
    rounded = second.to(tl.float32) * (1.0 / SCALE)
    last = rest - rounded
    third = (last * (SCALE * SCALE)).to(DTYPE)
    first_again = (x - rest).to(DTYPE)
    first_once_more = (x - (rounded + last)).to(DTYPE)
    second_again = ((rest - last) * SCALE).to(DTYPE)
    return first, first_again, first_once_more, second, second_again, third


@triton.jit
def split_dot_add(a, b, start, PRODUCT: tl.constexpr):
    """start + a @ b through 16-bit parts.

    Args:
        a: [M, K] fp32.
        b: [K, N] fp32.
        start: [M, N] fp32.
        PRODUCT: "bf16x3", "bf16x6", "fp16x3" or "fp16x6", see the module's docstring.

    Returns:
        [M, N] fp32. Infinite factors and NaN give what a @ b gives.
    """
    tl.static_assert(
        (PRODUCT == "bf16x3" or PRODUCT == "bf16x6")
        or (PRODUCT == "fp16x3" or PRODUCT == "fp16x6"),
        "PRODUCT is 'bf16x3', 'bf16x6', 'fp16x3' or 'fp16x6'",
    )
    DTYPE: tl.constexpr = (
        tl.float16 if (PRODUCT == "fp16x3" or PRODUCT == "fp16x6") else tl.bfloat16
    )
    THREE: tl.constexpr = PRODUCT == "bf16x6" or PRODUCT == "fp16x6"
    DOWN: tl.constexpr = 1.0 / FP16_PART_SCALE if DTYPE == tl.float16 else 1.0
    a1, a1_again, a1_once_more, a2, a2_again, a3 = split_left(a, DTYPE)
    b1, b2, b3 = split(b, DTYPE)
    low = tl.dot(a1_again, b2)
    low = tl.dot(a2, b1, acc=low)
    if THREE:
        least = tl.dot(a2_again, b2)
        least = tl.dot(a1_once_more, b3, acc=least)
        least = tl.dot(a3, b1, acc=least)
        low += least * DOWN
    low = low * DOWN
    # beside an infinite first part the others are NaN: what a @ b is there, the first parts say
    low = tl.where(tl.abs(low) < INF, low, 0.0)
    return tl.dot(a1, b1, acc=start + low)

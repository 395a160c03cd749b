"""Products of tiles, and the one way to add a product to an accumulator."""

import triton
import triton.language as tl

from .compensated import fold


@triton.jit
def dot(a, b, DOT_PRECISION: tl.constexpr):
    """Product of two tiles, accumulated in fp32.

    Args:
        a: [M, K] fp16, bf16 or fp32.
        b: [K, N] of the same dtype.
        DOT_PRECISION: what a product of fp32 tiles may lose; 16-bit tiles always multiply exactly.
            "ieee" on every target, "hf32" on Ascend, "tf32", "tf32x3", "bf16x6" on NVIDIA (where
            the installed Triton has them).

    Returns:
        [M, N] fp32.
    """
    tl.static_assert(a.shape[1] == b.shape[0], "inner sizes of a product must agree")
    tl.static_assert(a.dtype == b.dtype, "both factors of a product must have one dtype")
    return tl.dot(a, b, input_precision=DOT_PRECISION)


@triton.jit
def dot_add(a, b, start, DOT_PRECISION: tl.constexpr):
    """start + a @ b, start being what the product's accumulator begins with.

    Args:
        a: [M, K] fp16, bf16 or fp32.
        b: [K, N] of the same dtype.
        start: [M, N] fp32.
        DOT_PRECISION: see `dot`.

    Returns:
        [M, N] fp32.
    """
    tl.static_assert(a.shape[1] == b.shape[0], "inner sizes of a product must agree")
    tl.static_assert(a.dtype == b.dtype, "both factors of a product must have one dtype")
    # both Tritons fold a sum written out into this form too
    return tl.dot(a, b, acc=start, input_precision=DOT_PRECISION)


@triton.jit
def rounded_away(x, rounded):
    """What a rounding to 16 bits dropped, itself rounded to 16 bits: x ~ rounded + the result.

    Args:
        x: [...] fp32.
        rounded: [...] fp16 or bf16, x rounded.

    Returns:
        [...] of rounded's dtype. rounded + result is off from x by at most 2**-22 (fp16, short of
        its subnormals) or 2**-16 (bf16) of |x|.

    Source: Dekker, Numerische Mathematik 18 (1971), 224-242.
    """
    return (x - rounded.to(tl.float32)).to(rounded.dtype)


@triton.jit
def accumulate_product(acc, comp, a, b, METHOD: tl.constexpr, DOT_PRECISION: tl.constexpr):
    """(acc, comp) + a @ b: the place that decides how a long sum of products is kept.

    Args:
        acc, comp: [M, N] fp32. The sum so far is acc + comp.
        a: [M, K] fp16, bf16 or fp32.
        b: [K, N] of the same dtype.
        METHOD: "plain", or "kahan": what adding the product rounds away is carried in comp.
        DOT_PRECISION: see `dot`.

    Returns:
        (acc, comp): [M, N] fp32. "plain" returns comp as it came and never reads it.

    Source: Kahan, Communications of the ACM 8 (1965), 40. Starting the product from comp saves the
    addition of Kahan's form; what the product loses by it is below ulp(acc) * 2**-24.
    """
    tl.static_assert(METHOD == "plain" or METHOD == "kahan", "METHOD is 'plain' or 'kahan'")
    if METHOD == "plain":
        acc = dot_add(a, b, acc, DOT_PRECISION)
    else:
        acc, comp = fold(acc, dot_add(a, b, comp, DOT_PRECISION))
    return acc, comp

"""Products of tiles, the one way to add a product to an accumulator, and the loop over K."""

import triton
import triton.language as tl

from .compensated import fold, kahan_add
from .constants import IEEE
from .layout import load_block
from .splits import split_dot_add


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
def round_pairs(x, DTYPE: tl.constexpr):
    """Round to 16 bits two numbers at a time, by an instruction of NVIDIA GPUs (sm_80 and later).

    Where a rounded number is also read back, Triton 3.6 rounds it alone, in the unit that computes
    exponentials, at a sixteenth of the rate. The same bits either way.

    Args:
        x: [...] fp32.
        DTYPE: tl.float16 or tl.bfloat16.

    Returns:
        (rounded, back): [...] of DTYPE, and the same numbers in fp32.
    """
    if DTYPE == tl.bfloat16:
        rounded, back = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $4, $3; shl.b32 $1, $0, 16; and.b32 $2, $0, 0xffff0000;",
            "=&r,=r,=r,r,r", [x], dtype=(tl.bfloat16, tl.float32), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        tl.static_assert(DTYPE == tl.float16, "DTYPE is tl.float16 or tl.bfloat16")
        rounded, back = tl.inline_asm_elementwise(
            "{.reg .b16 low, high; cvt.rn.f16x2.f32 $0, $4, $3; mov.b32 {low, high}, $0; "
            "cvt.f32.f16 $1, low; cvt.f32.f16 $2, high;}",
            "=&r,=r,=r,r,r", [x], dtype=(tl.float16, tl.float32), is_pure=True, pack=2,
        )  # fmt: skip
    return rounded, back


@triton.jit
def settled(x):
    """The same numbers, once they are all there; for NVIDIA GPUs, where products take their time.

    ptxas lets a product run on into the next step of a loop only if both have registers of their
    own, and otherwise waits for every single instruction of either (its advisory C7512). A result
    that is waited for where it is made leaves each product in one piece.

    Args:
        x: [...] fp32, a product.
    """
    return tl.inline_asm_elementwise(
        "// settled", "=f,0", [x], dtype=tl.float32, is_pure=True, pack=1
    )


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


@triton.jit
def product_add(a, b, start, PRODUCT: tl.constexpr):
    """start + a @ b, whichever way the product is computed.

    Args:
        a: [M, K] fp16, bf16 or fp32.
        b: [K, N] of the same dtype.
        start: [M, N] fp32.
        PRODUCT: for fp32 tiles a precision of `dot`, or a split of `blocks.splits`: "bf16x3",
            "bf16x6", "fp16x3", "fp16x6"; "ieee" for 16-bit ones.

    Returns:
        [M, N] fp32.
    """
    if (PRODUCT == "bf16x3" or PRODUCT == "bf16x6") or (PRODUCT == "fp16x3" or PRODUCT == "fp16x6"):
        tl.static_assert(a.dtype == tl.float32, "only fp32 factors are split")
        total = split_dot_add(a, b, start, PRODUCT)
    else:
        total = dot_add(a, b, start, PRODUCT)
    return total


@triton.jit
def gemm_tile(
    a_ptr,
    b_ptr,
    start_m,
    start_n,
    begin_k,
    end_k,
    M,
    N,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    METHOD: tl.constexpr,
    SEGMENT: tl.constexpr = 1,
    BRANCH: tl.constexpr = False,
    PRODUCT: tl.constexpr = IEEE,
    CHECK_M: tl.constexpr = True,
    CHECK_N: tl.constexpr = True,
    CHECK_K: tl.constexpr = True,
    WIDE: tl.constexpr = False,
    A_BY_COLUMNS: tl.constexpr = False,
    B_BY_COLUMNS: tl.constexpr = False,
):
    """One tile of a matrix product: the loop over K, plain or compensated.

    Args:
        a_ptr, b_ptr: pointers to the first elements of a [M, K] and b [K, N], fp16, bf16 or fp32.
        start_m, start_n: int32. First row and column of the tile.
        begin_k, end_k: int32. Which part of K is summed; at least one element.
        M, N: int32. Rows of a and columns of b; nothing beyond is read.
        stride_am ... stride_bn: int32 or int64, in elements; a transposed operand has them swapped.
        BLOCK_M, BLOCK_N, BLOCK_K: tile shape.
        METHOD: "plain", or "kahan": compensated once a segment, plain within.
        SEGMENT: tiles of K in a segment.
        BRANCH: one loop that ends a segment in a branch, each segment's sum starting from what the
            last one rounded away (GPU: the loads run on, and a tile of registers is saved), instead
            of a loop of loops (NPU: a segment stays within the cube).
        PRODUCT: see `product_add`.
        CHECK_M, CHECK_N, CHECK_K: False promises that the tile lies within M, N, or end_k.
        WIDE: see `blocks.layout.tile_offsets`.
        A_BY_COLUMNS, B_BY_COLUMNS: see `blocks.layout.load_block`.

    Returns:
        (acc, comp): [BLOCK_M, BLOCK_N] fp32; the sum is acc + comp. comp is 0 where METHOD is
        "plain". Pairs of several parts of K add up by `blocks.compensated.merge`.

    The bits of an element depend on BLOCK_K, SEGMENT and the part of K, not on M, N or the place of
    the tile.
    """
    tl.static_assert(METHOD == "plain" or METHOD == "kahan", "METHOD is 'plain' or 'kahan'")
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    comp = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    # every loop runs at least once, also for the eyes of a compiler: on Ascend A2 and A3 one that
    # does not leaves its accumulator uninitialised
    stop = tl.maximum(end_k, begin_k + 1)
    if METHOD == "kahan" and not BRANCH:
        for segment in range(begin_k, stop, SEGMENT * BLOCK_K):
            end = tl.maximum(tl.minimum(segment + SEGMENT * BLOCK_K, stop), segment + 1)
            part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for k in range(segment, end, BLOCK_K):
                part = _add_tile(
                    part, a_ptr, b_ptr, start_m, start_n, k, end_k, M, N,
                    stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, PRODUCT,
                    CHECK_M, CHECK_N, CHECK_K, WIDE, A_BY_COLUMNS, B_BY_COLUMNS,
                )  # fmt: skip
            acc, comp = kahan_add(acc, comp, part)
    else:
        part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(begin_k, stop, BLOCK_K):
            part = _add_tile(
                part, a_ptr, b_ptr, start_m, start_n, k, end_k, M, N,
                stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, PRODUCT,
                CHECK_M, CHECK_N, CHECK_K, WIDE, A_BY_COLUMNS, B_BY_COLUMNS,
            )  # fmt: skip
            if METHOD == "kahan":
                # the last segment is folded behind the loop, whether it is whole or not
                ends = (k - begin_k) // BLOCK_K % SEGMENT == SEGMENT - 1
                if ends & (k + BLOCK_K < stop):
                    acc, part = fold(acc, part)
        if METHOD == "kahan":
            acc, comp = fold(acc, part)
        else:
            acc = part
    return acc, comp


@triton.jit
def _add_tile(
    part, a_ptr, b_ptr, start_m, start_n, k, end_k, M, N,
    stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRODUCT: tl.constexpr,
    CHECK_M: tl.constexpr, CHECK_N: tl.constexpr, CHECK_K: tl.constexpr, WIDE: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr,
):  # fmt: skip
    """part + the product of the tiles of a and b that begin at k; arguments as in `gemm_tile`."""
    a = load_block(
        a_ptr, start_m, M, k, end_k, stride_am, stride_ak,
        BLOCK_M, BLOCK_K, CHECK_M, CHECK_K, WIDE, A_BY_COLUMNS,
    )  # [BLOCK_M, BLOCK_K]  # fmt: skip
    b = load_block(
        b_ptr, k, end_k, start_n, N, stride_bk, stride_bn,
        BLOCK_K, BLOCK_N, CHECK_K, CHECK_N, WIDE, B_BY_COLUMNS,
    )  # [BLOCK_K, BLOCK_N]  # fmt: skip
    return product_add(a, b, part, PRODUCT)


@triton.jit
def grouped_order(task, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Which tile of a product comes when: GROUP rows of tiles at a time, column by column.

    Programs that run together then share tiles of both factors in the cache.

    Args:
        task: int32. Number of the tile, 0 to tiles_m * tiles_n - 1.
        tiles_m, tiles_n: int32. Tiles along M and N.
        GROUP: rows of tiles in a group.

    Returns:
        (tile_m, tile_n): int32. Each tile comes once.
    """
    first_m = task // (GROUP * tiles_n) * GROUP
    rows = tl.minimum(tiles_m - first_m, GROUP)
    within = task % (GROUP * tiles_n)
    return first_m + within % rows, within // rows

"""Online softmax: attention over keys that arrive a tile at a time.

The state of a tile of query rows is seven tiles, in this order everywhere:

    pivot                    [M]     a score enters as the weight exponential(score - pivot); -inf
                                     before the first finite score
    row_sum, row_sum_comp    [M]     sum of the weights as they were multiplied: the divisor
    lse_sum, lse_sum_comp    [M]     sum of the weights before rounding: for the log-sum-exp. Kept
                                     only where it differs from row_sum and is asked for
    acc, acc_comp            [M, Dv] sum of weight * value

All fp32 but acc_comp, which may be kept in bf16: it carries only the bits below acc's last. Each
`x_comp` belongs to `x` as in `blocks.compensated` and is 0 throughout where METHOD is "plain".
Between the folds of METHOD "segment" acc_comp also holds the products of the segment so far, and
acc stays under the pivot of the last fold.

Scores and pivots are in log2 units, or in natural ones where NATURAL: the Ascend compiler makes an
exp2 out of an exp and a multiplication, so that there exp is the cheaper one. Scores to which
something was added come in natural units, whatever the pivots' (NATURAL_SCORES): to change them
would round large ones once more. Sinks are in natural units always.

Which pivot: where the weights keep their digits (fp32 values, and SPLIT) it is a whole number, so
that a rescale is an exact power of two and never rounds the accumulators; where they are rounded to
16 bits it is the row maximum, so that the top key's weight is exact. For fp16 values it is 14 log2
units lower, see FP16_PIVOT_DROP.
`blocks/README.md` derives the error bounds.

Source of the online normaliser: Milakov, Gimelshein, arXiv:1805.02867 (2018), algorithm 3.
"""

import triton
import triton.language as tl

from .compensated import fold, kahan_add, merge, power_of_two
from .constants import FP16_PIVOT_DROP, FP16_PIVOT_DROP_END, FP16_PIVOT_FACTOR, INF, LN2, NEG_INF
from .gemm import accumulate_product, dot_add, round_pairs, rounded_away, settled
from .scores import above, natural_base, to_log2


@triton.jit
def online_init(BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr, COMP_DTYPE: tl.constexpr):
    """State of query rows that have seen no key.

    Args:
        BLOCK_M, BLOCK_DV: rows and value columns of the tile.
        COMP_DTYPE: tl.float32 or tl.bfloat16, in which acc_comp is kept between tiles.

    Returns:
        The seven tiles of the state, see the module's docstring.
    """
    tl.static_assert(
        COMP_DTYPE == tl.float32 or COMP_DTYPE == tl.bfloat16,
        "COMP_DTYPE is tl.float32 or tl.bfloat16",
    )
    pivot = tl.full((BLOCK_M,), NEG_INF, tl.float32)
    zero_row = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    acc_comp = tl.zeros((BLOCK_M, BLOCK_DV), COMP_DTYPE)
    return pivot, zero_row, zero_row, zero_row, zero_row, acc, acc_comp


@triton.jit
def exponential(score, NATURAL: tl.constexpr):
    """e**score where NATURAL, 2**score otherwise.

    Args:
        score: [...] fp32.
        NATURAL: the units of the score.
    """
    if NATURAL:
        weight = tl.exp(score)
    else:
        weight = tl.exp2(score)
    return weight


@triton.jit
def pivot_of(top, WHOLE: tl.constexpr, LOWERED: tl.constexpr, NATURAL: tl.constexpr):
    """The pivot that suits scores up to `top`.

    Args:
        top: [M] fp32.
        WHOLE: a whole number, not below top.
        LOWERED: weights are kept in fp16: lower it by FP16_PIVOT_DROP.
        NATURAL: the units of top and pivot.

    Returns:
        [M] fp32.
    """
    pivot = top
    if WHOLE:
        pivot = tl.ceil(top)
    if LOWERED:
        # not from 2**24 on: there the difference is rounded, and weights may come out above 65504
        lowered = pivot - (FP16_PIVOT_DROP * LN2 if NATURAL else FP16_PIVOT_DROP)
        pivot = tl.where(tl.abs(pivot) < FP16_PIVOT_DROP_END, lowered, pivot)
    return pivot


@triton.jit
def raise_pivot(pivot, candidate, WHOLE: tl.constexpr, NATURAL: tl.constexpr):
    """The larger of two pivots, and what turns sums kept under the old one into sums under it.

    Args:
        pivot, candidate: [M] fp32, whole numbers (or -inf) where WHOLE.
        WHOLE: build the factor from exponent bits, exactly; log2 units only.
        NATURAL: the units of the pivots.

    Returns:
        (pivot, base, rescale): [M] fp32. base is the new pivot, or 0 where that is still -inf
        ((-inf) - (-inf) would be NaN in rows that have seen nothing);
        rescale = exponential(old - base).
    """
    tl.static_assert(not (WHOLE and NATURAL), "a whole pivot is one in log2 units")
    raised = tl.maximum(pivot, candidate)
    base = tl.where(raised == NEG_INF, 0.0, raised)
    if WHOLE:
        rescale = power_of_two(pivot - base)
    else:
        rescale = exponential(pivot - base, NATURAL)
    return raised, base, rescale


@triton.jit
def add_weights(total, comp, rescale, weights, METHOD: tl.constexpr):
    """Rescale a row sum and add a tile of weights to it.

    Args:
        total, comp, rescale: [M] fp32.
        weights: [M, N] fp32.
        METHOD: "plain", or compensated: "kahan" and "segment", which differ for products alone.

    Returns:
        (total, comp): [M] fp32. "plain" returns comp as it came and never reads it.
    """
    tl.static_assert(
        (METHOD == "plain" or METHOD == "kahan") or METHOD == "segment",
        "METHOD is 'plain', 'kahan' or 'segment'",
    )
    tile_sum = tl.sum(weights, axis=1)
    if METHOD == "plain":
        total = total * rescale + tile_sum
    else:
        total, comp = kahan_add(total * rescale, comp * rescale, tile_sum)
    return total, comp


@triton.jit
def online_update(
    pivot,
    row_sum,
    row_sum_comp,
    lse_sum,
    lse_sum_comp,
    acc,
    acc_comp,
    scores,
    values,
    METHOD: tl.constexpr,
    SPLIT: tl.constexpr,
    WITH_LSE: tl.constexpr,
    NATURAL: tl.constexpr,
    DOT_PRECISION: tl.constexpr,
    PAIRS: tl.constexpr = False,
    NATURAL_SCORES: tl.constexpr = False,
    SETTLE: tl.constexpr = False,
    REPAIR: tl.constexpr = False,
):
    """Fold one tile of keys into the running state of its query rows.

    Args:
        pivot ... acc_comp: the state, see the module's docstring.
        scores: [M, N] fp32, masked entries -inf.
        values: [N, Dv] fp16, bf16 or fp32; the weights are rounded to its dtype before the product.
        METHOD: "plain" sums, or "kahan": compensated ones, and 16-bit weights are summed as
            rounded, so that the rounding of a weight cancels in the division. "segment" is "kahan"
            but for the product, which is added to acc_comp, plainly: the caller folds that into acc
            every few tiles, and after the last, with `fold_segment`.
        SPLIT: multiply 16-bit values by each weight as two numbers, so that it keeps 16 (bf16) or
            22 bits (fp16), and sum it unrounded; two products instead of one.
        WITH_LSE: keep lse_sum where it differs from row_sum.
        NATURAL: the units of scores and pivots: natural or log2. fp32 values and SPLIT need log2.
        DOT_PRECISION: see `blocks.gemm.dot`.
        PAIRS: values have 16 bits, and the GPU is NVIDIA's: see `blocks.gemm.round_pairs`.
        NATURAL_SCORES: scores are in natural units, pivots whole ones in log2 units (fp32 values,
            and SPLIT).
        SETTLE: the GPU is NVIDIA's: see `blocks.gemm.settled`.
        REPAIR: with SPLIT, an infinite value may leave NaN or the wrong sign where it should leave
            an infinity: the caller puts that right after the last tile. A GPU then keeps one tile
            of sums less in registers.

    Returns:
        The new state. A row whose scores are all -inf so far has pivot -inf and sums 0, not NaN.
    """
    tl.static_assert(scores.shape[0] == pivot.shape[0], "one row of scores per row of the state")
    tl.static_assert(scores.shape[1] == values.shape[0], "one column of scores per value row")
    tl.static_assert(
        (METHOD == "plain" or METHOD == "kahan") or METHOD == "segment",
        "METHOD is 'plain', 'kahan' or 'segment'",
    )
    tl.static_assert(
        not SPLIT or (METHOD != "plain" and values.dtype != tl.float32),
        "only compensated sums of 16-bit values split their weights",
    )
    tl.static_assert(
        METHOD != "segment" or acc_comp.dtype == tl.float32,
        "a segment's products are summed in acc_comp: it must be kept in fp32",
    )
    WHOLE: tl.constexpr = SPLIT or values.dtype == tl.float32
    tl.static_assert(
        not NATURAL_SCORES or WHOLE, "natural scores have a natural pivot or a whole one"
    )

    top = tl.max(scores, axis=1)
    highest = top
    if NATURAL_SCORES:
        highest = to_log2(top)
    candidate = pivot_of(highest, WHOLE, values.dtype == tl.float16, NATURAL)
    pivot, base, rescale = raise_pivot(pivot, candidate, WHOLE, NATURAL)

    if NATURAL_SCORES:
        high, low = natural_base(base, candidate, top)
        weights = tl.exp((scores - high[:, None]) - low[:, None])  # [M, N]
    else:
        weights = exponential(scores - base[:, None], NATURAL)  # [M, N]
    if PAIRS:
        factors, rounded = round_pairs(weights, values.dtype)
    else:
        factors = weights.to(values.dtype)
        rounded = factors
    # all that is needed of the weights is read before the product: on Ascend it may overwrite its
    # left operand
    if METHOD == "plain" or WHOLE:
        row_sum, row_sum_comp = add_weights(row_sum, row_sum_comp, rescale, weights, METHOD)
    else:
        row_sum, row_sum_comp = add_weights(
            row_sum, row_sum_comp, rescale, rounded.to(tl.float32), METHOD
        )
        if WITH_LSE:
            lse_sum, lse_sum_comp = add_weights(lse_sum, lse_sum_comp, rescale, weights, METHOD)

    if METHOD == "plain":
        acc, acc_comp = accumulate_product(
            acc * rescale[:, None], acc_comp, factors, values, METHOD, DOT_PRECISION
        )
        if SETTLE:
            acc = settled(acc)
    else:
        comp = acc_comp * rescale[:, None]
        if SPLIT:
            low = rounded_away(weights, rounded).to(values.dtype)
            both = dot_add(low, values, comp, DOT_PRECISION)
            if REPAIR:
                comp = both
            else:
                # an infinite value is the other product's to add: times a low part of 0 it is NaN,
                # and times one below 0 it has the wrong sign
                comp = tl.where(tl.abs(both) < INF, both, comp)
        if METHOD == "segment":
            comp = dot_add(factors, values, comp, DOT_PRECISION)
            if SETTLE:
                comp = settled(comp)
        else:
            acc, comp = accumulate_product(
                acc * rescale[:, None], comp, factors, values, METHOD, DOT_PRECISION
            )
        acc_comp = comp.to(acc_comp.dtype)
    return pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp


@triton.jit
def fold_segment(acc, acc_comp, acc_pivot, pivot, WHOLE: tl.constexpr, NATURAL: tl.constexpr):
    """Add a finished segment to the output's accumulator, and keep what the addition rounds away.

    Args:
        acc: [M, Dv] fp32. Sum of the segments before, under acc_pivot.
        acc_comp: [M, Dv] fp32. Sum of this segment's products, and what earlier folds rounded away,
            under pivot.
        acc_pivot, pivot: [M] fp32; pivot is not below acc_pivot.
        WHOLE: both pivots are whole numbers (fp32 values, or SPLIT): the rescale is exact.
        NATURAL: the units of the pivots.

    Returns:
        (acc, acc_comp): the pair, under pivot.
    """
    _pivot, _base, rescale = raise_pivot(acc_pivot, pivot, WHOLE, NATURAL)
    return fold(acc * rescale[:, None], acc_comp)


@triton.jit
def online_merge(
    pivot_a,
    row_sum_a,
    row_sum_comp_a,
    lse_sum_a,
    lse_sum_comp_a,
    acc_a,
    acc_comp_a,
    pivot_b,
    row_sum_b,
    row_sum_comp_b,
    lse_sum_b,
    lse_sum_comp_b,
    acc_b,
    acc_comp_b,
    WHOLE: tl.constexpr,
    NATURAL: tl.constexpr,
):
    """Join the states of two disjoint sets of keys, seen by the same query rows.

    Raw states keep every digit; a merge of rounded (out, lse) pairs does not. Symmetric in a and b,
    bit for bit.

    Args:
        pivot_a ... acc_comp_b: the two states, see the module's docstring.
        WHOLE: both pivots are whole numbers (fp32 values, or SPLIT): the rescale is exact.
        NATURAL: the units of the pivots.

    Returns:
        One state.
    """
    pivot, _base, rescale_a = raise_pivot(pivot_a, pivot_b, WHOLE, NATURAL)
    _pivot, _base, rescale_b = raise_pivot(pivot_b, pivot_a, WHOLE, NATURAL)
    row_sum, row_sum_comp = merge(
        row_sum_a * rescale_a, row_sum_comp_a * rescale_a,
        row_sum_b * rescale_b, row_sum_comp_b * rescale_b,
    )  # fmt: skip
    lse_sum, lse_sum_comp = merge(
        lse_sum_a * rescale_a, lse_sum_comp_a * rescale_a,
        lse_sum_b * rescale_b, lse_sum_comp_b * rescale_b,
    )  # fmt: skip
    column_a = rescale_a[:, None]
    column_b = rescale_b[:, None]
    acc, comp = merge(
        acc_a * column_a, acc_comp_a * column_a, acc_b * column_b, acc_comp_b * column_b
    )
    return pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, comp.to(acc_comp_a.dtype)


@triton.jit
def add_sink(
    pivot,
    row_sum,
    row_sum_comp,
    lse_sum,
    lse_sum_comp,
    acc,
    acc_comp,
    sink,
    WHOLE: tl.constexpr,
    LOWERED: tl.constexpr,
    NATURAL: tl.constexpr,
):
    """Count one more score in the divisor and the log-sum-exp, with no value behind it.

    Once, in a finished state: a sink counted in each of several states would be merged as several.

    Args:
        pivot ... acc_comp: the state, see the module's docstring.
        sink: fp32, natural units. -inf changes nothing; +inf leaves nothing to the keys. Finite
            ones beyond 2.3e38 in size count as that where pivots are in log2 units.
        WHOLE: the state's pivots are whole numbers.
        LOWERED: they are lowered by FP16_PIVOT_DROP: the values are fp16.
        NATURAL: the units of the pivots.

    Returns:
        The new state. The pivot may be raised to the sink.
    """
    sinks = tl.zeros_like(pivot) + sink  # [M]
    top = sinks
    if not NATURAL:
        top = to_log2(sinks)
    pivot, base, rescale = raise_pivot(
        pivot, pivot_of(top, WHOLE, LOWERED, NATURAL), WHOLE, NATURAL
    )
    distance = sinks - base
    if not NATURAL:
        distance = above(sinks, base)
    # an infinite sink takes everything; inf - inf would make a NaN of it
    weight = tl.where(sinks == INF, 1.0, tl.exp(distance))
    row_sum, row_sum_comp = kahan_add(row_sum * rescale, row_sum_comp * rescale, weight)
    lse_sum, lse_sum_comp = kahan_add(lse_sum * rescale, lse_sum_comp * rescale, weight)
    acc = acc * rescale[:, None]
    acc_comp = (acc_comp * rescale[:, None]).to(acc_comp.dtype)
    return pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp


@triton.jit
def online_finalize(
    pivot,
    row_sum,
    row_sum_comp,
    lse_sum,
    lse_sum_comp,
    acc,
    acc_comp,
    SEPARATE_LSE: tl.constexpr,
    LOWERED: tl.constexpr,
    NATURAL: tl.constexpr,
):
    """Normalise a finished state.

    Args:
        pivot ... acc_comp: the state, see the module's docstring.
        SEPARATE_LSE: lse_sum was kept (compensated, 16-bit values, not SPLIT, LSE asked for);
            otherwise the log-sum-exp comes from row_sum.
        LOWERED: the pivots are lowered by FP16_PIVOT_DROP: the values are fp16.
        NATURAL: the units of the pivot.

    Returns:
        (out, lse): [M, Dv] and [M] fp32; lse in natural-log units. A row that saw nothing has
        out = 0 and lse = -inf.
    """
    divisor = row_sum + row_sum_comp
    empty = divisor == 0.0
    safe_divisor = tl.where(empty, 1.0, divisor)
    # div_rn: a plain division is off by up to 2 ulp on NVIDIA
    out = tl.div_rn(acc + acc_comp, tl.broadcast_to(safe_divisor[:, None], acc.shape))
    out = tl.where(empty[:, None], 0.0, out)

    if SEPARATE_LSE:
        total = lse_sum + lse_sum_comp
    else:
        total = divisor
    if LOWERED:
        # relative to what the pivot was lowered from, which is exact: otherwise two numbers of
        # about 14 * ln 2 would cancel
        total = total * FP16_PIVOT_FACTOR
        pivot = pivot + (FP16_PIVOT_DROP * LN2 if NATURAL else FP16_PIVOT_DROP)
    if not NATURAL:
        pivot = pivot * LN2
    lse = pivot + tl.log(tl.where(empty, 1.0, total))
    return out, tl.where(empty, NEG_INF, lse)

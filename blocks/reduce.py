"""Reductions of rows: within a tile, across the tiles of a row, and across programs.

Across tiles every lane of a tile, [M, N], keeps a sum of its own (`accumulate`), so that a loop
adds elementwise and nothing moves between lanes until its end (`row_total`). Across programs the
pairs that `row_total` returns are themselves summed, as numbers like any others.

METHOD is the accuracy of a sum: "plain", "kahan" or "sum2" (`blocks.compensated`,
`blocks.accurate`). What lies outside a row is 0 in the tile, or what the block says.
"""

import triton
import triton.language as tl

from .accurate import row_sum2, sum2_add
from .compensated import kahan_add, power_of_two, row_sum
from .constants import INF, NEG_INF


@triton.jit
def accumulate(acc, comp, x, METHOD: tl.constexpr):
    """Add a tile to the running sums of its lanes: the place that decides how a sum is kept.

    Args:
        acc, comp: [...] fp32. The sums so far are acc + comp.
        x: [...] fp32.
        METHOD: "plain", "kahan" or "sum2".

    Returns:
        (acc, comp): the new pairs. "plain" returns comp as it came and never reads it.
    """
    tl.static_assert(
        (METHOD == "plain" or METHOD == "kahan") or METHOD == "sum2",
        "METHOD is 'plain', 'kahan' or 'sum2'",
    )
    if METHOD == "plain":
        acc = acc + x
    elif METHOD == "kahan":
        acc, comp = kahan_add(acc, comp, x)
    else:
        acc, comp = sum2_add(acc, comp, x)
    return acc, comp


@triton.jit
def row_total(acc, comp, METHOD: tl.constexpr):
    """Sum over the columns of a tile of running sums.

    Args:
        acc, comp: [M, N] fp32, as `accumulate` leaves them. comp None: all 0.
        METHOD: as it was there.

    Returns:
        (total, comp): [M] fp32; what they stand for is total + comp. comp is 0 where METHOD is
        "plain", and where total is not finite.
    """
    tl.static_assert(
        (METHOD == "plain" or METHOD == "kahan") or METHOD == "sum2",
        "METHOD is 'plain', 'kahan' or 'sum2'",
    )
    if METHOD == "plain":
        total = tl.sum(acc, axis=1)
        error = tl.zeros_like(total)
    elif METHOD == "kahan":
        total, error = row_sum(acc)
        if comp is not None:
            error = error + tl.sum(comp, axis=1)
    else:
        total, error = row_sum2(acc, comp)
    return total, tl.where(tl.abs(total) < INF, error, 0.0)


@triton.jit
def tile_sum(x, METHOD: tl.constexpr):
    """Sum of each row that lies in one tile, rounded to fp32 once.

    Args:
        x: [M, N] fp32, 0 outside the row.
        METHOD: "plain", "kahan" or "sum2".

    Returns:
        [M] fp32.
    """
    total, comp = row_total(x, None, METHOD)
    return total + comp


@triton.jit
def row_max(x):
    """Largest number of each row of a tile; NaN where there is one, as torch has it.

    Args:
        x: [M, N] fp32, -inf outside the row.

    Returns:
        [M] fp32. Of a row without numbers: -inf.
    """
    # whether tl.max passes a NaN on differs between targets
    nans = tl.max(tl.where(x == x, 0.0, 1.0), axis=1)
    largest = tl.max(tl.where(x == x, x, NEG_INF), axis=1)
    return tl.where(nans > 0.0, float("nan"), largest)


@triton.jit
def deviations(x, mean, inside):
    """How far each number is from its row's mean.

    Args:
        x: [M, N] fp32.
        mean: fp32 that broadcasts to x.
        inside: bool that broadcasts to x. False: not a number of the row.

    Returns:
        [M, N] fp32, 0 outside.
    """
    return tl.where(inside, x - mean, 0.0)


@triton.jit
def corrected_spread(squares, deviation_sum, count):
    """Sum of squared deviations from the exact mean, out of those from a rounded one.

    Args:
        squares: [M] fp32. Sum of (x - mean)**2.
        deviation_sum: [M] fp32. Sum of x - mean, which is 0 but for the rounding of the mean.
        count: fp32. Numbers in a row.

    Returns:
        [M] fp32, not below 0.

    Source: Chan, Golub, LeVeque, The American Statistician 37 (1983), 242-247, equation 1.7 (the
    corrected two-pass algorithm).
    """
    spread = squares - deviation_sum * (deviation_sum / count)
    # a NaN stays one
    return tl.where(spread < 0.0, 0.0, spread)


@triton.jit
def row_moments(x, inside, count, METHOD: tl.constexpr):
    """Mean and sum of squared deviations of each row that lies in one tile, in two passes over it.

    Args:
        x: [M, N] fp32, 0 outside the row.
        inside: bool that broadcasts to x.
        count: fp32. Numbers in a row.
        METHOD: "plain", "kahan" or "sum2".

    Returns:
        (mean, lack, spread): [M] fp32. The mean is mean + lack: in one number it is off by half an
        ulp, which is much of a deviation where deviations are small. The variance is
        spread / count, or spread / (count - 1); it does not cancel, however large the mean.
    """
    mean = tl.div_rn(tile_sum(x, METHOD), tl.zeros((x.shape[0],), tl.float32) + count)
    apart = deviations(x, mean[:, None], inside)
    apart_sum = tile_sum(apart, METHOD)
    spread = corrected_spread(tile_sum(apart * apart, METHOD), apart_sum, count)
    return mean, apart_sum / count, spread


@triton.jit
def scale_of(largest):
    """Power of two that brings a row's numbers where their squares neither overflow nor vanish.

    Args:
        largest: [...] fp32. Largest magnitude of a row.

    Returns:
        (scale, unscale): [...] fp32, exact powers of two, scale * unscale == 1. scale * largest is
        in [1, 4) unless largest is 0, subnormal or not finite.
    """
    exponent = (largest.to(tl.int32, bitcast=True) >> 23).to(tl.float32) - 127.0
    exponent = tl.minimum(tl.maximum(exponent, -126.0), 126.0)
    return power_of_two(-exponent), power_of_two(exponent)


@triton.jit
def square_sum(x, METHOD: tl.constexpr):
    """Sum of squares of each row that lies in one tile.

    Args:
        x: [M, N] fp32, 0 outside the row.
        METHOD: "plain", "kahan" or "sum2".

    Returns:
        [M] fp32.
    """
    return tile_sum(x * x, METHOD)


@triton.jit
def row_norm(x, METHOD: tl.constexpr):
    """L2 norm of each row that lies in one tile; it overflows only where the result does.

    Args:
        x: [M, N] fp32, 0 outside the row.
        METHOD: "plain", "kahan" or "sum2".

    Returns:
        [M] fp32.
    """
    scale, unscale = scale_of(tl.max(tl.abs(x), axis=1))
    return tl.sqrt_rn(square_sum(x * scale[:, None], METHOD)) * unscale


@triton.jit
def pivot_of(largest):
    """What is taken off scores before they become weights, so that the largest weight is 1.

    Args:
        largest: [...] fp32. Largest score of a row, -inf where it has none.

    Returns:
        [...] fp32: largest, or 0 where that is not finite ((-inf) - (-inf) would be NaN).
    """
    return tl.where(tl.abs(largest) < INF, largest, 0.0)


@triton.jit
def row_logsumexp(x, METHOD: tl.constexpr):
    """log(sum(exp(x))) of each row that lies in one tile.

    Args:
        x: [M, N] fp32, natural-log units, -inf outside the row.
        METHOD: "plain", "kahan" or "sum2".

    Returns:
        [M] fp32, natural-log units; -inf for a row of nothing but -inf, as torch has it.
    """
    pivot = pivot_of(tl.max(x, axis=1))
    return pivot + tl.log(tile_sum(tl.exp(x - pivot[:, None]), METHOD))


@triton.jit
def row_softmax(x, METHOD: tl.constexpr):
    """exp(x) over its sum, for each row that lies in one tile.

    Args:
        x: [M, N] fp32, natural-log units, -inf outside the row.
        METHOD: "plain", "kahan" or "sum2".

    Returns:
        [M, N] fp32. NaN where a row holds nothing but -inf, a +inf or a NaN, as torch has it.
    """
    weights = tl.exp(x - tl.max(x, axis=1)[:, None])
    divisor = tile_sum(weights, METHOD)
    return tl.div_rn(weights, tl.broadcast_to(divisor[:, None], weights.shape))


@triton.jit
def weights_over(x, largest, divisor):
    """exp(x - largest) / divisor: softmax of a tile of rows whose reductions are known.

    Args:
        x: [M, N] fp32, natural-log units.
        largest, divisor: fp32 that broadcast to x. Largest score, and sum of the weights under it.

    Returns:
        [M, N] fp32.
    """
    return tl.div_rn(tl.exp(x - largest), tl.broadcast_to(divisor, x.shape))


@triton.jit
def normalised(x, mean, mean_square, eps, CENTRED: tl.constexpr):
    """(x - mean) / sqrt(mean_square + eps); without the mean unless CENTRED.

    Args:
        x: [M, N] fp32.
        mean, mean_square: [M, 1] fp32. Mean, and mean square of x - mean (of x unless CENTRED).
        eps: fp32.
        CENTRED: subtract the mean.

    Returns:
        [M, N] fp32.
    """
    # one division a row, not a number
    scale = tl.div_rn(tl.full(mean_square.shape, 1.0, tl.float32), tl.sqrt_rn(mean_square + eps))
    if CENTRED:
        x = x - mean
    return x * scale

"""Sums as if in twice the working precision: level "sum2" of the reductions.

Kahan's sum is off by up to 2u times the sum of magnitudes, whatever its length: where numbers
cancel down to a millionth of their magnitudes, that spoils 21 of 24 bits. Here the pair
`(acc, comp)`, as in `blocks.compensated`, is a number of twice fp32's precision, and what an
addition loses is u**2 of the magnitudes. `blocks/README.md` derives the bounds.
"""

import triton
import triton.language as tl

from .compensated import extract, fast_two_sum, row_sum, two_sum
from .constants import INF

EXTRACTIONS = tl.constexpr(3)
"""How often `row_sum2` takes high parts out of a tile before it adds up the rest plainly."""


@triton.jit
def sum2_add(acc, comp, x):
    """Add a tile to a sum that keeps twice the working precision.

    Args:
        acc, comp: [...] fp32. The sum so far is acc + comp, |comp| at most half an ulp of acc.
        x: [...] fp32.

    Returns:
        (acc, comp): the new pair. A call loses at most 2 * u**2 times the magnitudes it adds,
        u = 2**-24. comp is 0 where the sum is not finite.

    Source: Neumaier, ZAMM 54 (1974), 39-51, for the error of the addition; Ogita, Rump, Oishi, SIAM
    J. Sci. Comput. 26 (2005), 1955-1988, algorithm 4.4 (Sum2). Normalised after every addition, so
    that comp does not grow and its own roundings stay u**2 of the sum.
    """
    total, error = two_sum(acc, x)
    acc, comp = fast_two_sum(total, comp + error)
    # acc, not total: at the end of the range the compensation alone may carry it over
    finite = tl.abs(acc) < INF
    return tl.where(finite, acc, total), tl.where(finite, comp, 0.0)


@triton.jit
def row_sum2(acc, comp):
    """Sum over the columns of a tile of pairs, as if in twice the working precision.

    Args:
        acc, comp: [M, N] fp32, N <= 2**20. Element by element the number is acc + comp, |comp| at
            most half an ulp of acc. comp None: all 0.

    Returns:
        (total, comp): [M] fp32. A row with an inf or NaN gives the plain sum of acc and comp = 0;
        one so large that 2 * N * max(abs(acc)) reaches 2**127 adds acc up plainly.

    Source: Rump, Ogita, Oishi, SIAM J. Sci. Comput. 31 (2008), 189-224, as in `extract`.
    """
    high, rest, _exact = extract(acc)
    first = tl.sum(high, axis=1)
    total = first
    error = tl.zeros_like(total)
    for _ in tl.static_range(EXTRACTIONS - 1):
        # what is left is smaller, so that its grids are in range wherever the first is
        high, rest, _exact = extract(rest)
        total, error = sum2_add(total, error, tl.sum(high, axis=1))
    last = tl.sum(rest, axis=1)
    if comp is not None:
        carried, carried_error = row_sum(comp)
        total, error = sum2_add(total, error, carried)
        last = carried_error + last
    total, error = fast_two_sum(total, error + last)
    # a NaN or inf in the row shows in the error
    finite = tl.abs(error) < INF
    return tl.where(finite, total, first), tl.where(finite, error, 0.0)

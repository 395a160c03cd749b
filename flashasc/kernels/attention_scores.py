"""The score rule of attention: what becomes of q @ k^T before the softmax, and which keys count."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.constants import NEG_INF
from blocks.gemm import dot
from blocks.layout import load_spread
from blocks.masking import causal, not_before, within
from blocks.scores import distance, soft_cap


@triton.jit
def scores_of(
    q, k, bias_ptr, stride_bias_m, stride_bias_n, slope, scale, cap,
    start_m, start_n, Sq, end, offs_m, diagonal,
    BIAS: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, DOT_PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Scores [M, N] of a tile of queries and a tile of keys, before any key is hidden.

    Args:
        q, k: [M, D], [N, D].
        scale: fp32; what a product is multiplied by.
        DOT_PRECISION: see `blocks.gemm.dot`.
        the rest: see `adjusted`.

    Returns:
        [M, N] fp32; see `adjusted`.
    """
    scores = dot(q, tl.trans(k), DOT_PRECISION) * scale
    return adjusted(
        scores, bias_ptr, stride_bias_m, stride_bias_n, slope, cap,
        start_m, start_n, Sq, end, offs_m, diagonal, BIAS, ALIBI, SOFTCAP, WIDE,
    )  # fmt: skip


@triton.jit
def adjusted(
    scores, bias_ptr, stride_bias_m, stride_bias_n, slope, cap,
    start_m, start_n, Sq, end, offs_m, diagonal,
    BIAS: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scores [M, N] after the cap, the bias and the penalty on distance, in that order.

    Args:
        scores: [M, N] fp32, scaled; with SOFTCAP as a share of the cap.
        bias_ptr: to [Sq, Sk] of fp16, bf16 or fp32, natural units; see `load_spread` for BIAS.
        slope: fp32, natural units.
        cap: fp32, in the units that scores are to have: natural ones with BIAS or ALIBI.
        start_m, start_n: first row and key of the tile.
        Sq, end: rows and keys from which on nothing is read.
        diagonal: query i is aligned with key i + diagonal.

    Returns:
        [M, N] fp32, in the units of scores or cap.
    """
    if SOFTCAP:
        scores = soft_cap(scores, cap)
    if BIAS != "none":
        bias = load_spread(
            bias_ptr, start_m, Sq, start_n, end, stride_bias_m, stride_bias_n, BIAS,
            scores.shape[0], scores.shape[1], WIDE,
        ).to(tl.float32)  # fmt: skip
        scores = scores + bias
    if ALIBI:
        offs_n = start_n + tl.arange(0, scores.shape[1])
        scores = scores - distance(offs_m, offs_n, diagonal) * slope
    return scores


@triton.jit
def banded(
    scores, start_n, end, offs_m, first, last, BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr
):
    """Scores with -inf where the row does not reach the key.

    Args:
        scores: [M, N] fp32.
        start_n, end: first key of the tile; key from which on no row sees any.
        first, last: query i reaches the keys i + first to i + last.
        BOUND_LEFT, BOUND_RIGHT: whether first and last hold.
    """
    offs_n = start_n + tl.arange(0, scores.shape[1])
    visible = tl.broadcast_to(within(offs_n, end)[None, :], scores.shape)
    if BOUND_RIGHT:
        visible = causal(offs_m, offs_n, last) & visible
    if BOUND_LEFT:
        visible = not_before(offs_m, offs_n, first) & visible
    return tl.where(visible, scores, NEG_INF)


@triton.jit
def cut_left(scores, start_n, offs_m, first):
    """Scores with -inf where the key lies before a row's reach, see `banded`: a bound at a time."""
    offs_n = start_n + tl.arange(0, scores.shape[1])
    return tl.where(not_before(offs_m, offs_n, first), scores, NEG_INF)


@triton.jit
def cut_right(
    scores, start_n, end, offs_m, last, BOUND_RIGHT: tl.constexpr, CHECK_END: tl.constexpr
):
    """Scores with -inf where the key lies behind a row's reach, or is not before end; likewise.

    CHECK_END: False promises that all keys are before end.
    """
    offs_n = start_n + tl.arange(0, scores.shape[1])
    if not CHECK_END:
        visible = causal(offs_m, offs_n, last)
    elif BOUND_RIGHT:
        # one comparison: a row's last key, or the last that there is
        visible = causal(tl.minimum(offs_m + last, end - 1), offs_n, 0)
    else:
        visible = tl.broadcast_to(within(offs_n, end)[None, :], scores.shape)
    return tl.where(visible, scores, NEG_INF)


@triton.jit
def masked(
    scores, values, mask_ptr, stride_mask_m, stride_mask_n, start_m, start_n, Sq, end,
    MASK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scores with -inf where the mask is 0; values of keys that no row sees are 0.

    Such values would otherwise turn a NaN they hold and a weight of 0 into a NaN in every row.

    Args:
        scores: [M, N] fp32.
        values: [N, Dv].
        mask_ptr: to [Sq, Sk] uint8; see `load_spread` for MASK.
        start_m, start_n, Sq, end: as for `adjusted`.
    """
    mask = load_spread(
        mask_ptr, start_m, Sq, start_n, end, stride_mask_m, stride_mask_n, MASK,
        scores.shape[0], scores.shape[1], WIDE,
    )  # fmt: skip
    scores = tl.where(tl.broadcast_to(mask != 0, scores.shape), scores, NEG_INF)
    seen = tl.max(scores, axis=0) != NEG_INF  # [N]; NaN counts as seen
    values = tl.where(seen[:, None], values, 0.0)
    return scores, values.to(values.dtype)

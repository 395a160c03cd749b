"""The score rule of attention: what becomes of q @ k^T before the softmax, and which keys count."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.constants import INF, LARGEST, LN2, LOG2E, NEG_INF
from blocks.layout import load_rows, load_spread
from blocks.masking import causal, not_before, within
from blocks.scores import distance, soft_cap


@triton.jit
def adjusted(
    scores, bias_ptr, stride_bias_m, stride_bias_n, slope, cap,
    start_m, start_n, Sq, end, offs_m, diagonal,
    BIAS: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr, NATURAL: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Scores [M, N] after the cap, the bias and the penalty on distance, in that order.

    Args:
        scores: [M, N] fp32, scaled; with SOFTCAP as a share of the cap. With BIAS or ALIBI in
            natural units, otherwise in those that the softmax takes.
        bias_ptr: to [Sq, Sk] of fp16, bf16 or fp32, natural units; see `load_spread` for BIAS.
        slope: fp32, natural units.
        cap: fp32, in the units of scores.
        start_m, start_n: first row and key of the tile.
        Sq, end: rows and keys from which on nothing is read.
        diagonal: query i is aligned with key i + diagonal.
        NATURAL: the units that the softmax takes: natural or log2.

    Returns:
        [M, N] fp32, in the units that the softmax takes.
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
    # changed to log2 units last: a bias or a slope times log2(e) would be rounded once more
    if (BIAS != "none" or ALIBI) and not NATURAL:
        # finite stays finite: a bias of float32's lowest number hides nothing by itself
        bounded = tl.minimum(tl.maximum(scores, -LARGEST * LN2), LARGEST * LN2)
        scores = tl.where(tl.abs(scores) < INF, bounded, scores) * LOG2E
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


@triton.jit
def sink_logit(sink_ptr, stride, heads, HEADS: tl.constexpr, NATURAL: tl.constexpr):
    """The sinks of some heads, in the units that the softmax takes; what is finite stays so.

    Args:
        sink_ptr: to fp16, bf16 or fp32, natural units.
        stride: int32, from one head's to the next.
        heads: int32. How many there are, at most HEADS.
        NATURAL: the units that the softmax takes: natural or log2.

    Returns:
        [HEADS] fp32; the number itself where HEADS is 0.
    """
    if HEADS:
        sink = load_rows(sink_ptr, 0, heads, HEADS, stride).to(tl.float32)
    else:
        sink = tl.load(sink_ptr).to(tl.float32)
    if not NATURAL:
        bounded = tl.minimum(tl.maximum(sink, -LARGEST * LN2), LARGEST * LN2)
        sink = tl.where(tl.abs(sink) < INF, bounded, sink) * LOG2E
    return sink

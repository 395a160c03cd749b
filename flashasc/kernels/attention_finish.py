"""From a finished state to what is stored: the sinks counted once, the rows normalised."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.layout import load_rows
from blocks.softmax import add_sink, online_finalize


@triton.jit
def load_sinks(sink_ptr, stride, heads, HEADS: tl.constexpr):
    """The sinks of some heads: [HEADS] fp32, natural units; the number itself where HEADS is 0.

    Args:
        sink_ptr: to fp16, bf16 or fp32, natural units.
        stride: int32, from one head's to the next.
        heads: int32. How many there are, at most HEADS.
    """
    if HEADS:
        sinks = load_rows(sink_ptr, 0, heads, HEADS, stride).to(tl.float32)
    else:
        sinks = tl.load(sink_ptr).to(tl.float32)
    return sinks


@triton.jit
def finish(
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, sinks,
    SINKS: tl.constexpr, SEPARATE_LSE: tl.constexpr, WHOLE: tl.constexpr, LOWERED: tl.constexpr,
    NATURAL: tl.constexpr,
):  # fmt: skip
    """Output [M, Dv] and log-sum-exp [M], fp32, of rows that have seen all their keys.

    Args:
        pivot ... acc_comp: the state, see `blocks.softmax`.
        sinks: [M] fp32 or one number, natural units; not read unless SINKS.
        SEPARATE_LSE, WHOLE, LOWERED, NATURAL: see `blocks.softmax`.
    """
    unseen = row_sum == 0.0
    if SINKS:
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = add_sink(
            pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, sinks,
            WHOLE, LOWERED, NATURAL,
        )  # fmt: skip
    out, lse = online_finalize(
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
        SEPARATE_LSE, LOWERED, NATURAL,
    )  # fmt: skip
    if SINKS:
        # a sink that log2 units cannot hold is nevertheless the least that a log-sum-exp can be,
        # and all of it in a row that saw nothing else
        lse = tl.where(unseen | (lse < sinks), sinks, lse)
    return out, lse

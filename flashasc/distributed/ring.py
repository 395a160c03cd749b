"""The public call: keys and values go round the ranks."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from .._arguments import Arguments, Window
from .._dispatch import Impl
from .._problem import Layout, Precision
from ._groups import Group, group_of
from ._placement import Placement
from ._run import run_ring
from ._transport import Transport

__all__ = ["ring_attention"]


@overload
def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Group = ...,
    placement: Placement = ...,
    layout: Layout = ...,
    causal: bool = ...,
    causal_align: Literal["bottom_right", "top_left"] = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    sinks: Tensor | None = ...,
    cu_seqlens_q: Tensor | None = ...,
    cu_seqlens_k: Tensor | None = ...,
    precision: Precision = ...,
    out_dtype: torch.dtype | None = ...,
    return_lse: Literal[False] = ...,
    impl: Impl = ...,
    timeout: float | None = ...,
) -> Tensor: ...


@overload
def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Group = ...,
    placement: Placement = ...,
    layout: Layout = ...,
    causal: bool = ...,
    causal_align: Literal["bottom_right", "top_left"] = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    sinks: Tensor | None = ...,
    cu_seqlens_q: Tensor | None = ...,
    cu_seqlens_k: Tensor | None = ...,
    precision: Precision = ...,
    out_dtype: torch.dtype | None = ...,
    return_lse: Literal[True],
    impl: Impl = ...,
    timeout: float | None = ...,
) -> tuple[Tensor, Tensor]: ...


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Group = None,
    placement: Placement = "contiguous",
    layout: Layout = "BNSD",
    causal: bool = False,
    causal_align: Literal["bottom_right", "top_left"] = "bottom_right",
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    precision: Precision = "compensated",
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
    impl: Impl = "auto",
    timeout: float | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention whose keys and values go round the ranks while each attends to what it has.

    Args:
        q: [B, Hq, S, D] ([B, S, Hq, D], [tokens, Hq, D]: see `layout`): this rank's queries, any
            strides, float16, bfloat16, float32 or float64.
        k, v: likewise, this rank's keys and values. Ranks may hold different numbers of tokens.
        group: a process group, a DeviceMesh of one dimension, or None: all ranks.
        placement: which tokens this rank holds, see `shard_sequence`. "zigzag" makes causal
            attention the same work on every rank.
        layout, causal, causal_align, scale, window, softcap, sinks, precision, out_dtype,
            return_lse, impl: as for `flashasc.attention` of the whole sequence. Sinks are the same
            on all ranks.
        cu_seqlens_q, cu_seqlens_k: for layout "TND": of the whole packed sequences over all ranks,
            the same on each. Read by the host.
        timeout: seconds that a transfer may take before the call raises, naming rank, step and
            peer; None: what the group was made with. On an accelerator a deadline makes the host
            wait for each transfer.

    Returns:
        out, or (out, lse): as `flashasc.attention` gives for this rank's queries.

    Raises:
        TypeError, ValueError, NotImplementedError, ImportError: an argument is wrong on this rank,
            or ranks disagree; the message names it.
        PeerError: an argument is wrong on another rank; the message names both.
        CommunicationError: a transfer failed or took too long.

    Every rank of the group makes the call, with the same options. All of them compute or all raise:
    what they bring is compared first, in one small exchange. Results of blocks are joined unrounded
    and finished once, so the error does not grow with the number of ranks. Gradients of q, k, v and
    sinks are computed in plain PyTorch, blocks going round once more; weights then come from the
    rounded log-sum-exp. That of sinks counts this rank's queries alone: add it up over the ranks,
    as for every weight that ranks share. There is no `mask`, `bias`, `alibi_slopes` or `kv_lens`.
    """
    arguments = Arguments(
        q,
        k,
        v,
        layout=layout,
        causal=causal,
        causal_align=causal_align,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        precision=precision,
        out_dtype=out_dtype,
        return_lse=return_lse,
        impl=impl,
    )
    transport = Transport(group_of("group", group), timeout)
    return run_ring(arguments, placement, transport)

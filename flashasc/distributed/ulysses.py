"""The public call: heads are exchanged for sequence."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from .._arguments import Arguments, Window
from .._dispatch import Impl
from .._problem import Layout, Precision
from ._groups import Group, group_of
from ._placement import Placement
from ._run import run_ulysses
from ._symmetric import SymmetricBuffers
from ._transport import Transport

__all__ = ["ulysses_attention"]


@overload
def ulysses_attention(
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
    fused: bool = ...,
) -> Tensor: ...


@overload
def ulysses_attention(
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
    fused: bool = ...,
) -> tuple[Tensor, Tensor]: ...


def ulysses_attention(
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
    fused: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention that exchanges heads for sequence: each rank attends all of a few heads.

    Args:
        q, k, v, group, placement, layout, causal, causal_align, scale, window, softcap, sinks,
            cu_seqlens_q, cu_seqlens_k, precision, out_dtype, return_lse, impl, timeout: as for
            `ring_attention`. The query heads must be a multiple of the ranks; a key/value head that
            several ranks need goes to each of them.
        fused: the attention kernel stores each finished tile in the memory of the rank that owns
            its rows, instead of an exchange afterwards; the bits are the same. On NVIDIA GPUs of
            one host, without gradients and packed sequences.

    Returns:
        As `ring_attention`.

    Raises:
        As `ring_attention`. NotImplementedError also: there is no symmetric memory here, or the
            call is none for `fused`; nothing is exchanged the other way unasked.

    Each head is computed as `flashasc.attention` computes it alone, gradients too. Four exchanges
    (five with return_lse; three with fused), after the small one in which ranks agree.
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
    return run_ulysses(arguments, placement, transport, memory=SymmetricBuffers if fused else None)

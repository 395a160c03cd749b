"""Ask about a call of `flashasc.attention` instead of making it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ._arguments import Arguments, Window, prepare
from ._configs import TileConfig
from ._dispatch import Impl, Plan, plan_attention
from ._problem import Layout, Precision
from ._validate import check_values

__all__ = ["check", "explain"]


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: Layout = "BNSD",
    causal: bool = False,
    causal_align: Literal["bottom_right", "top_left"] = "bottom_right",
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    kv_lens: Tensor | None = None,
    precision: Precision = "compensated",
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
    impl: Impl = "auto",
) -> Plan[TileConfig]:
    """What `attention` would run for these arguments, and why. Computes nothing.

    Args:
        q, k, v, layout, ...: as for `attention`.

    Returns:
        The plan: route, reason, target, and the row of the tile table. `print` it.

    Raises:
        What `attention` would raise.
    """
    _, problem = prepare(
        Arguments(
            q,
            k,
            v,
            layout=layout,
            causal=causal,
            causal_align=causal_align,
            scale=scale,
            window=window,
            softcap=softcap,
            mask=mask,
            bias=bias,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            kv_lens=kv_lens,
            precision=precision,
            out_dtype=out_dtype,
            return_lse=return_lse,
            impl=impl,
        )
    )
    return plan_attention(problem, impl)


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: Layout = "BNSD",
    causal: bool = False,
    causal_align: Literal["bottom_right", "top_left"] = "bottom_right",
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    kv_lens: Tensor | None = None,
    precision: Precision = "compensated",
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
    impl: Impl = "auto",
) -> None:
    """Raise if `attention` would, or if a length on the device is wrong. Computes nothing.

    `attention` never reads what is on the device: where a length is wrong it stays within the
    tensors, and what it returns has no meaning. This function reads them, so it waits for the
    device; call it while you are looking for a mistake.

    Args:
        q, k, v, layout, ...: as for `attention`. Tensors on the meta device have no values to
            check.

    Raises:
        ValueError: an element of `kv_lens` is not between 0 and Sk; `cu_seqlens_q` or
            `cu_seqlens_k` does not start with 0, falls, or does not end with the number of tokens;
            `max_seqlen_q` or `max_seqlen_k` is less than the longest sequence.
        What `attention` would raise.
    """
    call, problem = prepare(
        Arguments(
            q,
            k,
            v,
            layout=layout,
            causal=causal,
            causal_align=causal_align,
            scale=scale,
            window=window,
            softcap=softcap,
            mask=mask,
            bias=bias,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            kv_lens=kv_lens,
            precision=precision,
            out_dtype=out_dtype,
            return_lse=return_lse,
            impl=impl,
        )
    )
    plan_attention(problem, impl)
    check_values(call, problem)

"""The bare module: options held, tensors passed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .._arguments import Window
from .._dispatch import Impl
from .._problem import Layout, Precision
from ..attention import attention
from ..inspection import explain
from .sharded import check_context, reject

if TYPE_CHECKING:
    from ..distributed import ContextParallel

__all__ = ["Attention"]


class Attention(torch.nn.Module):
    """softmax(scale * q @ k^T) @ v as a module without parameters.

    Args:
        layout, causal, causal_align, scale, window, softcap, precision, out_dtype, impl: as for
            `flashasc.attention`; checked here, kept as attributes, read at every call.
        cp: a `flashasc.distributed.ContextParallel`: q, k and v are this rank's tokens, and queries
            see the keys of all ranks. None: one process has all of them.

    Raises:
        TypeError, ValueError, NotImplementedError: an option is wrong, as by `flashasc.attention`.

    With `cp` every rank calls the module; a wrong argument on one raises on all. A deep copy has
    the same ranks. To pickle a module, take a group out (`module.cp = None`); `state_dict` never
    has it.
    """

    def __init__(
        self,
        *,
        layout: Layout = "BNSD",
        causal: bool = False,
        causal_align: Literal["bottom_right", "top_left"] = "bottom_right",
        scale: float | None = None,
        window: Window | None = None,
        softcap: float | None = None,
        precision: Precision = "compensated",
        out_dtype: torch.dtype | None = None,
        impl: Impl = "auto",
        cp: ContextParallel | None = None,
    ) -> None:
        super().__init__()
        self.layout: Layout = layout
        self.causal = causal
        self.causal_align = causal_align
        self.scale = scale
        self.window = window
        self.softcap = softcap
        self.precision: Precision = precision
        self.out_dtype = out_dtype
        self.impl: Impl = impl
        self.cp = cp
        _check(self.options)
        check_context(cp)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `flashasc.attention`, by name."""
        return {
            "layout": self.layout,
            "causal": self.causal,
            "causal_align": self.causal_align,
            "scale": self.scale,
            "window": self.window,
            "softcap": self.softcap,
            "precision": self.precision,
            "out_dtype": self.out_dtype,
            "impl": self.impl,
        }

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        kv_lens: Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        """Attention of these tensors with the module's options.

        Args:
            q, k, v, mask, ...: as for `flashasc.attention`; with `cp` as for
                `flashasc.distributed.ring_attention`.

        Returns:
            As `flashasc.attention`: out, or (out, lse); with `cp` of this rank's queries.

        Raises:
            As `flashasc.attention`, or as `ring_attention`.
            NotImplementedError: mask, bias, alibi_slopes, kv_lens or max_seqlen_* with `cp`.
        """
        if self.cp is not None:
            check_context(self.cp)
            with self.cp.all_raise():
                reject(
                    self,
                    mask=mask,
                    bias=bias,
                    alibi_slopes=alibi_slopes,
                    kv_lens=kv_lens,
                    max_seqlen_q=max_seqlen_q,
                    max_seqlen_k=max_seqlen_k,
                )
            over_ranks: Callable[..., Any] = self.cp.attention
            return over_ranks(
                q,
                k,
                v,
                sinks=sinks,
                cu_seqlens_q=cu_seqlens_q,
                cu_seqlens_k=cu_seqlens_k,
                return_lse=return_lse,
                **self.options,
            )
        # the overloads of attention take literals
        compute: Callable[..., Any] = attention
        return compute(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            kv_lens=kv_lens,
            return_lse=return_lse,
            **self.options,
        )

    def extra_repr(self) -> str:
        """The options that are not the defaults."""
        defaults = {"layout": "BNSD", "causal": False, "causal_align": "bottom_right"}
        defaults |= {"precision": "compensated", "impl": "auto"}
        options = self.options | {"cp": self.cp}
        chosen = {name: x for name, x in options.items() if x != defaults.get(name)}
        return ", ".join(f"{name}={x!r}" for name, x in chosen.items())


def _check(options: dict[str, Any]) -> None:
    """Raise for a wrong option now rather than at the first call."""
    # 16 bits: every precision serves them
    q = torch.empty(1, 1, 1, 64, dtype=torch.bfloat16, device="meta")
    if options["layout"] == "TND":
        ends = torch.empty(2, dtype=torch.int32, device="meta")
        explain(q[0], q[0], q[0], cu_seqlens_q=ends, cu_seqlens_k=ends, **options)
    else:
        explain(q, q, q, **options)

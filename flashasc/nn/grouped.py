"""Self-attention of today's decoders: grouped heads, rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._arguments import Window
from .._dispatch import Impl
from .._problem import Precision
from ..attention import attention
from .attention import Attention
from .rotary import RotaryEmbedding
from .sharded import check_context, reject

if TYPE_CHECKING:
    from ..distributed import ContextParallel

__all__ = ["GroupedQueryAttention"]


class GroupedQueryAttention(torch.nn.Module):
    """Projections, rotary positions, causal attention with grouped heads, projection.

    The parameters are named as in Llama and Qwen3 of Transformers (`q_proj`, `k_proj`, `v_proj`,
    `o_proj`, `q_norm`, `k_norm`, `sinks`), so a layer's weights load.

    Args:
        embed_dim: features of a token.
        num_heads: query heads.
        num_kv_heads: key/value heads, of which num_heads is a multiple; None: num_heads.
        head_dim: features of a head; None: embed_dim / num_heads.
        rope_base: base of the rotary embedding; None: no positions.
        bias: of the projections of q, k and v.
        out_bias: of the projection of the output.
        qk_norm: normalise q and k by their root mean square, with weights, before they are turned.
        norm_eps: of that.
        sinks: a learnt sink a query head, 0 at first.
        causal, scale, window, softcap, precision, impl: as for `flashasc.attention`.
        cp: a `flashasc.distributed.ContextParallel`: x is this rank's tokens, see `Attention`.

    Raises:
        TypeError, ValueError: sizes that do not go together; a wrong option.

    With `cp` the gradients of the parameters count this rank's tokens alone: add them up over the
    ranks, as for any weight that ranks share.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        rope_base: float | None = 10000.0,
        bias: bool = False,
        out_bias: bool = False,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        sinks: bool = False,
        causal: bool = True,
        scale: float | None = None,
        window: Window | None = None,
        softcap: float | None = None,
        precision: Precision = "compensated",
        impl: Impl = "auto",
        cp: ContextParallel | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if min(embed_dim, num_heads, num_kv_heads) < 1 or num_heads % num_kv_heads:
            raise ValueError(
                "embed_dim, num_heads and num_kv_heads must be at least 1, and num_heads a "
                f"multiple of num_kv_heads; got {embed_dim}, {num_heads}, {num_kv_heads}"
            )
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(
                f"embed_dim must be a multiple of num_heads, or head_dim given; got "
                f"embed_dim={embed_dim}, num_heads={num_heads}"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        D = self.head_dim
        self.q_proj = torch.nn.Linear(embed_dim, num_heads * D, bias, device, dtype)
        self.k_proj = torch.nn.Linear(embed_dim, num_kv_heads * D, bias, device, dtype)
        self.v_proj = torch.nn.Linear(embed_dim, num_kv_heads * D, bias, device, dtype)
        self.o_proj = torch.nn.Linear(num_heads * D, embed_dim, out_bias, device, dtype)
        norms = [
            torch.nn.RMSNorm(D, norm_eps, device=device, dtype=dtype) if qk_norm else None
            for _ in "qk"
        ]
        self.q_norm, self.k_norm = norms
        sink = torch.zeros(num_heads, device=device, dtype=dtype) if sinks else None
        self.sinks = None if sink is None else torch.nn.Parameter(sink)
        self.rotary = (
            None if rope_base is None else RotaryEmbedding(D, base=rope_base, device=device)
        )
        self.attention = Attention(
            layout="BSND",
            causal=causal,
            scale=scale,
            window=window,
            softcap=softcap,
            precision=precision,
            impl=impl,
            cp=cp,
        )

    @property
    def cp(self) -> ContextParallel | None:
        """The ranks that sequences lie on."""
        return self.attention.cp

    @cp.setter
    def cp(self, cp: ContextParallel | None) -> None:
        check_context(cp)
        self.attention.cp = cp

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of tokens, normalised and turned: what a key-value cache is fed.

        Args:
            x: [..., S, embed_dim].
            positions: integers that broadcast to [..., S].

        Returns:
            q [..., S, num_heads, head_dim]; k and v [..., S, num_kv_heads, head_dim].
        """
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary is not None:
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        return q, k, v

    def forward(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        kv_lens: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Tensor:
        """Self-attention over a batch, or over packed sequences.

        Args:
            x: [B, S, embed_dim], or packed [tokens, embed_dim] with `cu_seqlens`.
            positions: [S] or [B, S] ([tokens]) integers; None: 0, 1, ... in each sequence. With
                `cp` they must be given, those of this rank's tokens: `cp.positions(length)`.
            mask: bool, broadcasts to [B, num_heads, S, S]; True where a token may be seen.
            kv_lens: [B] integers. Valid tokens of each right-padded sequence.
            cu_seqlens: [sequences + 1] integers. Where packed sequences start and end; with `cp`
                of the whole sequences, over all ranks.
            max_seqlen: the longest of them, or more; None reads it from the device.

        Returns:
            As x.

        Raises:
            TypeError, ValueError: x has the wrong number of dimensions or features; positions that
                are no integers, or not one for each token; none with `cp`.
            NotImplementedError: mask, kv_lens or max_seqlen with `cp`.
            What `flashasc.attention` raises, or `ring_attention`.
        """
        packed = cu_seqlens is not None
        options = self.attention.options | {"layout": "TND" if packed else "BSND"}
        options |= {"sinks": self.sinks, "cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
        if self.cp is not None:
            with self.cp.all_raise():
                self._check(x, packed=packed)
                reject(self, mask=mask, kv_lens=kv_lens, max_seqlen=max_seqlen)
                q, k, v = self.project(x, self._given(positions, x))
            out = self.cp.attention(q, k, v, **options)
        else:
            self._check(x, packed=packed)
            q, k, v = self.project(x, _positions(x, cu_seqlens) if positions is None else positions)
            options |= {"max_seqlen_q": max_seqlen, "max_seqlen_k": max_seqlen}
            out = attention(q, k, v, mask=mask, kv_lens=kv_lens, **options)
        y: Tensor = self.o_proj(out.flatten(-2))
        return y

    def _check(self, x: Tensor, *, packed: bool) -> None:
        if x.dim() != (2 if packed else 3) or x.shape[-1] != self.embed_dim:
            shape = (
                "[tokens, embed_dim], as cu_seqlens is given," if packed else "[B, S, embed_dim]"
            )
            raise ValueError(
                f"x must be {shape} with embed_dim = {self.embed_dim}; got {tuple(x.shape)}"
            )

    def _given(self, positions: Tensor | None, x: Tensor) -> Tensor:
        """The positions of this rank's tokens, which it cannot tell by itself."""
        if positions is not None and not isinstance(positions, Tensor):
            raise TypeError(f"positions must be a torch.Tensor; got {type(positions).__name__}")
        if positions is not None and positions.shape[-1:] == x.shape[-2:-1]:
            return positions.to(x.device)
        if positions is None and self.rotary is None:
            return torch.empty(0, dtype=torch.int64)
        given = "none" if positions is None else str(tuple(positions.shape))
        raise ValueError(
            f"positions must be given with cp=, one for each of this rank's {x.shape[-2]} tokens: "
            "cp.positions(length) of the whole sequence, or cp.positions(length, cu_seqlens) of "
            f"packed ones; got {given}"
        )


def _positions(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """0, 1, ... in each sequence."""
    positions = torch.arange(x.shape[-2], device=x.device)
    if cu_seqlens is None:
        return positions
    starts = cu_seqlens.to(positions.dtype)
    # tokens of no sequence count on from the last end
    sequence = torch.searchsorted(starts, positions, right=True) - 1
    return positions - starts[sequence.clamp(min=0)]

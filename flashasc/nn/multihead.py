"""In place of `torch.nn.MultiheadAttention`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from .._dispatch import Impl
from .._problem import Precision
from .._validate import validate_multihead
from .._validate.scalars import choices
from ..attention import attention
from .masks import Masks, merge_masks
from .sharded import check_context, reject
from .weights import attention_weights

if TYPE_CHECKING:
    from ..distributed import ContextParallel

__all__ = ["MultiheadAttention"]


class MultiheadAttention(torch.nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention`, its attention computed by `flashasc.attention`.

    Constructor, parameters, `state_dict` and arguments of a call are PyTorch's, so a checkpoint of
    one loads into the other. PyTorch's fused layers, which would read the parameters and never call
    this module, leave it alone.

    Args:
        embed_dim, num_heads, ...: as there.
        dropout: kept; above 0 a call in training raises.
        precision, impl: as for `flashasc.attention`.
        cp: a `flashasc.distributed.ContextParallel`: query, key and value are this rank's tokens,
            see `Attention`. Then there are no masks and no weights, and `is_causal=True`, without a
            mask, means causal attention over the whole sequence.

    Three differences, all where PyTorch has no one answer: a row that may see no key is 0 (before
    the output's projection), with weights 0, where PyTorch gives NaN or 0. With `add_bias_kv` or
    `add_zero_attn` the added key is seen under the hint `is_causal` too, whatever `need_weights`
    is. And both masks may be given in two types, bool and float.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        precision: Precision = "compensated",
        impl: Impl = "auto",
        cp: ContextParallel | None = None,
    ) -> None:
        choices(precision, impl)
        if embed_dim > 0 and num_heads > 0 and embed_dim % num_heads:
            raise ValueError(
                f"embed_dim must be a multiple of num_heads; got embed_dim={embed_dim}, "
                f"num_heads={num_heads}"
            )
        super().__init__(
            embed_dim,
            num_heads,
            dropout=dropout,
            bias=bias,
            add_bias_kv=add_bias_kv,
            add_zero_attn=add_zero_attn,
            kdim=kdim,
            vdim=vdim,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        check_context(cp)
        self.precision: Precision = precision
        self.impl: Impl = impl
        self.cp = cp

    # PyTorch's fused layers ask this before they read the weights, and the base class's constructor
    # asks it about what it has just set. Which parameters there are, `in_proj_weight` tells.
    @property
    def _qkv_same_embed_dim(self) -> bool:
        return bool(self.__dict__.get("_constructing", False))

    @_qkv_same_embed_dim.setter
    def _qkv_same_embed_dim(self, value: bool) -> None:
        self.__dict__["_constructing"] = value

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self._parameters["in_proj_weight"] is not None
        super()._reset_parameters()
        del self.__dict__["_constructing"]

    @classmethod
    def from_torch(
        cls,
        module: torch.nn.MultiheadAttention,
        *,
        precision: Precision = "compensated",
        impl: Impl = "auto",
        cp: ContextParallel | None = None,
    ) -> MultiheadAttention:
        """A module that stands in another one's place and shares its parameters.

        Args:
            module: what PyTorch's constructor made.
            precision, impl, cp: as for the constructor.

        Returns:
            The new module, in the same mode, training or not. Hooks are not taken along.
        """
        new = cls(
            module.embed_dim,
            module.num_heads,
            dropout=module.dropout,
            bias=module.in_proj_bias is not None,
            add_bias_kv=module.bias_k is not None,
            add_zero_attn=module.add_zero_attn,
            kdim=module.kdim,
            vdim=module.vdim,
            batch_first=module.batch_first,
            device="meta",
            precision=precision,
            impl=impl,
            cp=cp,
        )
        for name, parameter in module.named_parameters(recurse=False):
            setattr(new, name, parameter)
        new.out_proj = module.out_proj
        return new.train(module.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `torch.nn.MultiheadAttention.forward`.

        Args:
            query: [L, E], [L, N, E], or [N, L, E] with `batch_first`.
            key, value: [S, kdim] and [S, vdim], and so on.
            key_padding_mask: [N, S], or [S] without a batch; bool, True where a key is padding, or
                float, added to the scores.
            need_weights: also return the weights, which costs memory for [L, S] of every head; pass
                False where they are not used.
            attn_mask: [L, S] or [N * num_heads, L, S]; bool, True where a query may not see a key,
                or float, added to the scores.
            average_attn_weights: weights averaged over the heads.
            is_causal: a promise that attn_mask is the causal mask, which must be given (see `cp`).

        Returns:
            (out, weights): out as query; weights [N, L, S] or [N, num_heads, L, S] (without N where
            there is no batch), or None.

        Raises:
            TypeError, ValueError: a shape or a dtype is wrong; is_causal without attn_mask.
            NotImplementedError: dropout above 0 in training; nested tensors; masks, weights and
                added keys with `cp`.
        """
        if self.cp is not None:
            return self._over_ranks(
                query, key, value, key_padding_mask, need_weights, attn_mask, is_causal
            ), None
        self._check_call(query, key, value)
        batched = query.dim() == 3
        q, k, v = (self._batch_first(x) for x in (query, key, value))
        masks = merge_masks(
            attn_mask,
            key_padding_mask,
            is_causal=is_causal,
            as_hint=not need_weights and self.bias_k is None and not self.add_zero_attn,
            N=q.shape[0],
            heads=self.num_heads,
            L=q.shape[1],
            S=k.shape[1],
            batched=batched,
        )
        q, k, v = self._project(q, k, v)
        k, v, masks = self._add_keys(k, v, masks)
        out = attention(
            q,
            k,
            v,
            layout="BSND",
            causal=masks.causal,
            causal_align="top_left",
            mask=masks.mask,
            bias=masks.bias,
            precision=self.precision,
            impl=self.impl,
        )
        out = self._output(out, batched=batched)
        if not need_weights:
            return out, None
        weights = attention_weights(q, k, masks.mask, masks.bias, average=average_attn_weights)
        return out, weights if batched else weights[0]

    def _check_call(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        if self.training and self.dropout:
            raise NotImplementedError(
                f"dropout={self.dropout} of attention weights is not supported in training; set "
                "module.dropout = 0.0 (dropout elsewhere in the model stays), or call .eval()"
            )
        validate_multihead(self, query, key, value)

    def _over_ranks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> Tensor:
        """This rank's queries over the keys of all ranks."""
        assert self.cp is not None
        with self.cp.all_raise():
            self._check_call(query, key, value)
            reject(
                self,
                attn_mask=attn_mask,
                key_padding_mask=key_padding_mask,
                add_bias_kv=self.bias_k,
                add_zero_attn=self.add_zero_attn or None,
            )
            if need_weights:
                raise NotImplementedError(
                    "need_weights=True with cp=: no rank has all keys; pass need_weights=False"
                )
            q, k, v = self._project(*(self._batch_first(x) for x in (query, key, value)))
        out = self.cp.attention(
            q,
            k,
            v,
            layout="BSND",
            causal=is_causal,
            causal_align="top_left",
            precision=self.precision,
            impl=self.impl,
        )
        return self._output(out, batched=query.dim() == 3)

    def _output(self, out: Tensor, *, batched: bool) -> Tensor:
        """What [N, L, heads, head_dim] are projected to, in the order of the query."""
        out = out.flatten(2)
        if not batched:
            out = out[0]
        elif not self.batch_first:
            # projected in this order, the result is contiguous in it
            out = out.transpose(0, 1)
        projected: Tensor = self.out_proj(out)
        return projected

    def _batch_first(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, [N, length, heads, head_dim] each."""
        if self._parameters["in_proj_weight"] is None:
            weights: list[Tensor] = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        else:
            weights = [*self.in_proj_weight.chunk(3)]
        bias = self.in_proj_bias
        biases = (None, None, None) if bias is None else bias.chunk(3)
        projected = [
            F.linear(x, weight, b)
            for x, weight, b in zip((query, key, value), weights, biases, strict=True)
        ]
        q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)) for x in projected)
        return q, k, v

    def _add_keys(self, k: Tensor, v: Tensor, masks: Masks) -> tuple[Tensor, Tensor, Masks]:
        """Keys and values with those of `add_bias_kv` and `add_zero_attn` behind them."""
        shape = (k.shape[0], 1, self.num_heads, self.head_dim)
        more: list[tuple[Tensor, Tensor]] = []
        if self.bias_k is not None and self.bias_v is not None:
            one = (1, 1, self.num_heads, self.head_dim)
            more.append((self.bias_k.view(one).expand(shape), self.bias_v.view(one).expand(shape)))
        if self.add_zero_attn:
            more.append((k.new_zeros(shape), v.new_zeros(shape)))
        for key, value in more:
            k = torch.cat([k, key.to(k.dtype)], 1)
            v = torch.cat([v, value.to(v.dtype)], 1)
        return k, v, masks.with_visible_keys(len(more))

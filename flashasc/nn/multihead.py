"""In place of `torch.nn.MultiheadAttention`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._dispatch import Impl
from .._problem import Precision
from ..attention import attention
from .masks import Masks, merge_masks
from .weights import attention_weights

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
    ) -> None:
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
        self.precision: Precision = precision
        self.impl: Impl = impl

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
    ) -> MultiheadAttention:
        """A module that stands in another one's place and shares its parameters.

        Args:
            module: what PyTorch's constructor made.
            precision, impl: as for `flashasc.attention`.

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
            is_causal: a promise that attn_mask is the causal mask, which must be given.

        Returns:
            (out, weights): out as query; weights [N, L, S] or [N, num_heads, L, S] (without N where
            there is no batch), or None.

        Raises:
            TypeError, ValueError: a shape or a dtype is wrong; is_causal without attn_mask.
            NotImplementedError: dropout above 0 in training; nested tensors.
        """
        if self.training and self.dropout:
            raise NotImplementedError(
                f"dropout={self.dropout} of attention weights is not supported in training; set "
                "module.dropout = 0.0 (dropout elsewhere in the model stays), or call .eval()"
            )
        _check_shapes(self, query, key, value)
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
        ).flatten(2)
        if not batched:
            out = out[0]
        elif not self.batch_first:
            # projected in this order, the result is contiguous in it
            out = out.transpose(0, 1)
        out = self.out_proj(out)
        if not need_weights:
            return out, None
        weights = attention_weights(q, k, masks.mask, masks.bias, average=average_attn_weights)
        return out, weights if batched else weights[0]

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


def _check_shapes(self: MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> None:
    widths = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
    tensors = {"query": query, "key": key, "value": value}
    order = "[N, length, features]" if self.batch_first else "[length, N, features]"
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor; got {type(x).__name__}")
        if x.is_nested:
            raise NotImplementedError(
                f"{name} is a nested tensor, which is not supported; pad it with "
                "torch.nested.to_padded_tensor and pass key_padding_mask"
            )
        if x.dim() != query.dim() or x.dim() not in (2, 3):
            raise ValueError(
                f"query, key and value must all be {order} or all [length, features]; got "
                f"{name} {tuple(x.shape)} with query {tuple(query.shape)}"
            )
        if x.shape[-1] != widths[name]:
            raise ValueError(
                f"{name} must have {widths[name]} features, {order}; got {tuple(x.shape)}"
            )
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            "key and value must have the same length and batch; got "
            f"{tuple(key.shape)} and {tuple(value.shape)}"
        )
    axis = 0 if self.batch_first else 1
    if query.dim() == 3 and query.shape[axis] != key.shape[axis]:
        raise ValueError(
            f"query and key must have one batch size, {order}; got {tuple(query.shape)} and "
            f"{tuple(key.shape)}. The module has batch_first={self.batch_first}"
        )

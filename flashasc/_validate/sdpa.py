"""The check of a call of `flashasc.scaled_dot_product_attention`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def validate_sdpa(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool
) -> None:
    """Check all but whether the shapes fit one another.

    Raises:
        TypeError, ValueError: an argument is wrong.
        NotImplementedError: dropout; a nested tensor.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}")
        if tensor.is_nested:
            raise NotImplementedError(
                f"{name} is a nested tensor, which is not supported; pad it with "
                "torch.nested.to_padded_tensor, or pack it: flashasc.attention(layout='TND')"
            )
        if tensor.dim() < 2:
            raise ValueError(
                f"{name} must have at least 2 dimensions, [..., H, S, D]; got "
                f"{tuple(tensor.shape)}. Add the missing ones with unsqueeze"
            )
    if dropout_p:
        _no_dropout(dropout_p)
    if attn_mask is None:
        return
    _mask(attn_mask, query)
    if is_causal:
        raise ValueError(
            "attn_mask and is_causal exclude each other, as in PyTorch; got both. Put the causal "
            "mask into attn_mask, or call flashasc.attention, where mask= and causal= combine"
        )


def _no_dropout(dropout_p: float) -> None:
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p must be between 0 and 1; got {dropout_p}")
    raise NotImplementedError(
        f"dropout_p={dropout_p}: attention dropout is not supported; pass dropout_p=0.0 (in eval "
        "PyTorch's own modules do), or use F.scaled_dot_product_attention for these layers"
    )


def _mask(attn_mask: Any, query: Tensor) -> None:
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask must be a torch.Tensor; got {type(attn_mask).__name__}")
    right = attn_mask.dtype in (torch.bool, torch.float32, query.dtype) or (
        attn_mask.is_floating_point() and torch.is_autocast_enabled(query.device.type)
    )
    if not right:
        raise TypeError(
            f"attn_mask must be bool, float32 or of query's dtype, {query.dtype}; got "
            f"{attn_mask.dtype}: cast it, with .bool() if non-zero means that a key may be seen"
        )

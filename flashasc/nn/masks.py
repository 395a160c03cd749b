"""The masks of `torch.nn.MultiheadAttention`, as `flashasc.attention` takes them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Masks", "merge_masks"]


class Masks(NamedTuple):
    """What a query may see."""

    mask: Tensor | None = None
    """bool, broadcasts to [N, heads, L, S]; True where a query may see a key."""
    bias: Tensor | None = None
    """Float, broadcasts to [N, heads, L, S]; added to the scores."""
    causal: bool = False
    """Query i sees the keys 0 to i."""

    def with_visible_keys(self, number: int) -> Masks:
        """For keys that follow the others and that every query sees."""
        mask = None if self.mask is None else F.pad(self.mask, (0, number), value=True)
        bias = None if self.bias is None else F.pad(self.bias, (0, number))
        return self._replace(mask=mask, bias=bias) if number else self


def merge_masks(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    *,
    is_causal: bool,
    as_hint: bool,
    N: int,
    heads: int,
    L: int,
    S: int,
    batched: bool,
) -> Masks:
    """Both masks in one.

    Args:
        attn_mask: [L, S] or [N * heads, L, S], bool (True = hidden) or float.
        key_padding_mask: [N, S], [S] where not batched, bool (True = hidden) or float.
        is_causal: the caller says that attn_mask is the causal mask.
        as_hint: that may be relied on.
        N, heads, L, S: batch, heads, queries, keys.
        batched: there is a batch dimension.

    Raises:
        TypeError, ValueError: a dtype or a shape is wrong; is_causal without attn_mask.
    """
    _mask_dtype("attn_mask", attn_mask)
    _mask_dtype("key_padding_mask", key_padding_mask)
    if attn_mask is not None:
        shapes = ((L, S), (N * heads, L, S))
        if tuple(attn_mask.shape) not in shapes:
            raise ValueError(
                f"attn_mask must be [L, S] = {shapes[0]} or [N * num_heads, L, S] = {shapes[1]}; "
                f"got {tuple(attn_mask.shape)}"
            )
    elif is_causal:
        raise ValueError(
            "is_causal=True says that attn_mask is the causal mask, which must be given: "
            "attn_mask=torch.nn.Transformer.generate_square_subsequent_mask(L)"
        )
    if key_padding_mask is not None:
        shape = (N, S) if batched else (S,)
        if tuple(key_padding_mask.shape) != shape:
            raise ValueError(
                f"key_padding_mask must be {'[N, S]' if batched else '[S]'} = {shape}; got "
                f"{tuple(key_padding_mask.shape)}"
            )
    if is_causal and as_hint and key_padding_mask is None:
        return Masks(causal=True)
    if attn_mask is not None:
        attn_mask = attn_mask if attn_mask.dim() == 2 else attn_mask.view(N, heads, L, S)
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask.view(N, 1, 1, S)
    given = [x for x in (attn_mask, key_padding_mask) if x is not None]
    hidden = [x for x in given if x.dtype == torch.bool]
    added = [x for x in given if x.dtype != torch.bool]
    mask = None if not hidden else ~(hidden[0] if len(hidden) == 1 else hidden[0] | hidden[1])
    bias = None if not added else added[0] if len(added) == 1 else added[0] + added[1]
    return Masks(mask, bias)


def _mask_dtype(name: str, mask: Tensor | None) -> None:
    if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{name} must be bool, True = hidden, or float, added to the scores; got {mask.dtype}: "
            "if non-zero means hidden, pass .bool()"
        )

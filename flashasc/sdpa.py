"""`torch.nn.functional.scaled_dot_product_attention`, computed by `flashasc.attention`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._dispatch import Impl
from ._problem import Precision
from ._validate import validate_sdpa
from .attention import attention

__all__ = ["scaled_dot_product_attention", "sdpa"]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention`: the same arguments, the same meaning.

    Args:
        query: [..., Hq, Sq, D] float16, bfloat16, float32 or float64; two dimensions or more.
        key: [..., Hk, Sk, D]. Leading sizes broadcast with those of query and value.
        value: [..., Hk, Sk, Dv].
        attn_mask: broadcasts to [..., Hq, Sq, Sk]. bool, True where a query may see a key; or of
            float32 or query's dtype, added to the scores.
        dropout_p: must be 0.
        is_causal: query i sees the keys 0 to i, whatever Sq and Sk are (top-left). Not together
            with attn_mask.
        scale: factor of the scores; None means 1 / sqrt(D).
        enable_gqa: key and value may have fewer heads than query, by a whole factor.

    Returns:
        [..., Hq, Sq, Dv], contiguous, in query's dtype.

    Raises:
        TypeError, ValueError: an argument is wrong; both attn_mask and is_causal are given.
        NotImplementedError: dropout_p is not 0, or flashasc.attention does not serve the dtype,
            head size or device.
        What else `flashasc.attention` raises.

    A row that sees no key is 0, as in PyTorch. What runs is the default of `flashasc.attention`:
    sums over keys are compensated.
    """
    return sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    precision: Precision = "compensated",
    impl: Impl = "auto",
) -> Tensor:
    """`scaled_dot_product_attention` with a choice of precision and implementation.

    Args:
        query, key, ...: as there.
        precision, impl: as for `flashasc.attention`.

    Returns:
        As there.

    Raises:
        As there.
    """
    validate_sdpa(query, key, value, attn_mask, dropout_p, is_causal)
    mask, bias = _split(attn_mask)
    shape: tuple[int, ...] | None = None
    if not _plain(query, key, value, enable_gqa):
        query, key, value, shape = _four_dimensions(query, key, value, enable_gqa)
        mask, bias = (_mask_of_four(x, shape) for x in (mask, bias))
    out = attention(
        query,
        key,
        value,
        causal=is_causal,
        causal_align="top_left",
        scale=scale,
        mask=mask,
        bias=bias,
        precision=precision,
        impl=impl,
    )
    return out if shape is None else out.reshape(*shape, out.shape[-1])


def _split(attn_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """(mask, bias): the mask as the one that `flashasc.attention` takes it for."""
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return attn_mask, None
    return None, attn_mask


def _plain(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    """Whether the tensors are what `flashasc.attention` takes, or wrong in a way it explains."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return False
    heads, key_heads = query.shape[1], key.shape[1]
    return key_heads == value.shape[1] and (enable_gqa or heads == key_heads)


def _four_dimensions(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """The tensors as [B, H, S, D], and the shape [..., Hq, Sq] that the output is to have."""
    Sq = query.shape[-2]
    rank = max(query.dim(), key.dim(), value.dim())
    tensors = [x[(None,) * (max(rank, 3) - x.dim())] for x in (query, key, value)]
    if enable_gqa:
        tensors[1:] = _same_heads(tensors, rank)
    heads = [x.shape[-3] for x in tensors]
    batches = [x.shape[:-3] for x in tensors]
    try:
        if not enable_gqa:
            heads = [torch.broadcast_shapes(*((size,) for size in heads))[0]] * 3
        batch = torch.broadcast_shapes(*batches)
    except RuntimeError:
        hint = "" if enable_gqa else "; fewer heads of key and value are enable_gqa=True"
        raise ValueError(
            f"the sizes before [S, D] must broadcast: query {tuple(query.shape)}, key "
            f"{tuple(key.shape)}, value {tuple(value.shape)}{hint}"
        ) from None
    B = math.prod(batch)
    expanded = [
        x.expand(*batch, size, *x.shape[-2:]).reshape(B, size, *x.shape[-2:])
        for x, size in zip(tensors, heads, strict=True)
    ]
    shape = (Sq,) if rank == 2 else (*batch, heads[0], Sq)
    return expanded[0], expanded[1], expanded[2], shape


def _same_heads(tensors: list[Tensor], rank: int) -> list[Tensor]:
    """Key and value with equally many heads, where both divide query's."""
    heads, *others = (x.shape[-3] for x in tensors)
    if rank == 2 or any(other == 0 or heads % other for other in others):
        raise ValueError(
            f"enable_gqa=True: query's heads, {heads}, must be a multiple of key's and value's; "
            f"got {others[0]} and {others[1]}"
        )
    if others[0] == others[1]:
        return tensors[1:]
    return [x.repeat_interleave(heads // x.shape[-3], -3) for x in tensors[1:]]


def _mask_of_four(mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """A mask for outputs [..., Hq, Sq] as one for [B, Hq, Sq]."""
    batch = shape[:-2]
    if mask is None or mask.dim() <= 3 or len(batch) == 1:
        return mask
    try:
        spread = mask.expand(*batch, *mask.shape[-3:])
    except RuntimeError:
        raise ValueError(
            f"attn_mask must broadcast to [..., Hq, Sq, Sk], where [..., Hq, Sq] is {shape}; got "
            f"{tuple(mask.shape)}"
        ) from None
    # -1 is no size that could be told of an empty mask
    return spread.reshape(math.prod(batch), *mask.shape[-3:])

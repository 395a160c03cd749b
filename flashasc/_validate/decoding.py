"""The checks of new tokens for a cache, and of a call of `flashasc.decode`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from .._problem import Precision, heads_first
from . import tensors as check
from .caches import apart, may_write, still_a_cache
from .derivatives import no_transforms
from .scalars import flag, length_of, one_of, out_dtype_of, scale_of, softcap_of, window_of

_AXES = {"BNSD": "[B, H, S, D]", "BSND": "[B, S, H, D]"}


def validate_append(
    cache: Any, k: Any, v: Any, layout: Any, impl: Any, batch: int | None = None
) -> tuple[Tensor, Tensor]:
    """Check a call of a cache's `append`; returns and raises as `new_tokens`."""
    one_of("impl", impl, ("auto", "triton", "reference"))
    still_a_cache(cache)
    may_write(cache)
    return new_tokens(cache, k, v, layout, batch)


def new_tokens(
    cache: Any, k: Any, v: Any, layout: Any, batch: int | None = None
) -> tuple[Tensor, Tensor]:
    """Keys and values that are to be appended, as [B, Hk, S, D] and [B, Hk, S, Dv].

    Args:
        cache: a `KVCache` or `PagedKVCache`.
        k, v, layout: what was given.
        batch: how many sequences they are for; None: the cache's.

    Raises:
        TypeError, ValueError: they do not fit the cache, or it cannot be written.
        NotImplementedError: they ask for gradients.
    """
    one_of("layout", layout, tuple(_AXES))
    for name in ("k", "v", "lens"):
        apart(name, getattr(cache, name))
    B = cache.lens.shape[0] if batch is None else batch
    for name, tensor, held in (("k", k, cache.k), ("v", v, cache.v)):
        check.strided(name, tensor)
        if tensor.dtype != held.dtype:
            raise TypeError(
                f"{name} must have the cache's dtype, {held.dtype}; got {tensor.dtype}: cast it"
            )
        check.on_device_of(name, tensor, held)
        if tensor.dim() != 4:
            raise ValueError(
                f"{name} must have 4 dimensions, {_AXES[layout]}; got {tuple(tensor.shape)}"
            )
        shape = heads_first(tensor, layout).shape
        if (shape[0], shape[1], shape[3]) != (B, held.shape[1], held.shape[3]):
            raise ValueError(
                f"{name} must be {_AXES[layout]} with B = {B}, H = {held.shape[1]}, "
                f"D = {held.shape[3]} for this cache; got {tuple(tensor.shape)} in layout {layout}"
            )
    if heads_first(k, layout).shape[2] != heads_first(v, layout).shape[2]:
        raise ValueError(
            f"k and v must have the same number of new tokens; got {tuple(k.shape)} and "
            f"{tuple(v.shape)}"
        )
    _no_gradients("append", k, v, cache.k, cache.v)
    return heads_first(k, layout), heads_first(v, layout)


def _no_gradients(name: str, *tensors: Any) -> None:
    """Nothing that autograd, or a transform, would have to remember."""
    no_transforms(f"flashasc.{name}", "flashasc.attention, which has gradients", *tensors)
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tensors):
        raise NotImplementedError(
            f"{name} has no gradients; call it under torch.no_grad(), or use flashasc.attention"
        )


@dataclass(frozen=True)
class DecodeFacts:
    """What `validate_decode` makes of a call's plain arguments; see `_decode_ops.DecodeCall`."""

    scale: float
    softcap: float | None
    causal: bool
    window_left: int | None
    window_right: int | None
    out_dtype: torch.dtype
    most_keys: int


def validate_decode(
    q: Any,
    cache: Any,
    k: Any,
    v: Any,
    *,
    layout: Any,
    causal: Any,
    scale: Any,
    window: Any,
    softcap: Any,
    alibi_slopes: Any,
    sinks: Any,
    precision: Any,
    out_dtype: Any,
    return_lse: Any,
    max_kv_len: Any,
    impl: Any,
) -> DecodeFacts:
    """Check the arguments of `flashasc.decode`.

    Raises:
        TypeError, ValueError: an argument is wrong.
        NotImplementedError: an argument is right but not supported.
    """
    one_of("impl", impl, ("auto", "triton", "reference"))
    one_of("layout", layout, tuple(_AXES))
    one_of("precision", precision, get_args(Precision))
    flag("causal", causal)
    flag("return_lse", return_lse)
    left, right = window_of(window)
    most = length_of("max_kv_len", max_kv_len)
    still_a_cache(cache)
    check.strided("q", q)
    check.floating("q", q)
    if q.dim() != 4:
        raise ValueError(
            f"q must have 4 dimensions, {_AXES[layout]}; got {q.dim()}: {tuple(q.shape)}. Packed "
            "queries are attention's, layout='TND'"
        )
    if q.dtype != cache.k.dtype:
        raise TypeError(f"q must have the cache's dtype, {cache.k.dtype}; got {q.dtype}: cast it")
    check.on_device_of("kv_cache", cache.k, q)
    B, Hq, _, D = heads_first(q, layout).shape
    Hk = cache.k.shape[1]
    if cache.lens.shape[0] != B:
        raise ValueError(
            f"q must have one batch row for each of the cache's {cache.lens.shape[0]} sequences; "
            f"got {tuple(q.shape)} in layout {layout}"
        )
    if cache.k.shape[3] != D:
        raise ValueError(
            f"q must have the cache's head size, D = {cache.k.shape[3]}; got {tuple(q.shape)}"
        )
    if (Hk == 0 and Hq > 0) or (Hk > 0 and Hq % Hk):
        raise ValueError(
            f"the query heads must be a multiple of the cache's {Hk}; got {tuple(q.shape)} in "
            f"layout {layout}"
        )
    if precision == "high" and q.dtype not in (torch.float16, torch.bfloat16):
        raise NotImplementedError(
            f'precision="high" is for float16 and bfloat16 inputs; got {q.dtype}. Use '
            'precision="compensated"'
        )
    if alibi_slopes is not None:
        check.slopes_tensor(alibi_slopes, q, B, Hq)
    if sinks is not None:
        check.sinks_tensor(sinks, q, Hq)
    _no_gradients("decode", q, cache.k, cache.v, alibi_slopes, sinks, k, v)
    if (k is None) != (v is None):
        raise ValueError("k and v must be given together, or neither; got one of them")
    if k is not None:
        new_tokens(cache, k, v, layout)
    factor = scale_of(scale, D, q.dtype)
    return DecodeFacts(
        scale=factor,
        softcap=softcap_of(softcap, factor, q.dtype),
        causal=causal or right == 0,
        window_left=left,
        window_right=None if causal or right == 0 else right,
        out_dtype=out_dtype_of(out_dtype, q.dtype),
        most_keys=cache.capacity if most is None else min(most, cache.capacity),
    )

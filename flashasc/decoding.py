"""Attention of the newest tokens to all that a cache holds."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from . import _decode_ops
from ._arguments import Window
from ._dispatch import Impl
from ._problem import Layout, Precision, heads_first
from ._repeat import Memo, Repeat, alike_unobserved
from ._validate import DecodeFacts, may_write, not_a_cache, validate_decode
from .caches import KVCache, PagedKVCache

__all__ = ["decode"]

_repeats: Memo[Repeat] = Memo()
"""How calls without new tokens are made again."""
_right: Memo[DecodeFacts] = Memo()
"""The facts of calls that were checked before."""


@overload
def decode(
    q: Tensor,
    kv_cache: KVCache | PagedKVCache,
    *,
    k: Tensor | None = ...,
    v: Tensor | None = ...,
    layout: Layout = ...,
    causal: bool = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Tensor | None = ...,
    sinks: Tensor | None = ...,
    precision: Precision = ...,
    out_dtype: torch.dtype | None = ...,
    return_lse: Literal[False] = ...,
    max_kv_len: int | None = ...,
    impl: Impl = ...,
) -> Tensor: ...


@overload
def decode(
    q: Tensor,
    kv_cache: KVCache | PagedKVCache,
    *,
    k: Tensor | None = ...,
    v: Tensor | None = ...,
    layout: Layout = ...,
    causal: bool = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Tensor | None = ...,
    sinks: Tensor | None = ...,
    precision: Precision = ...,
    out_dtype: torch.dtype | None = ...,
    return_lse: Literal[True],
    max_kv_len: int | None = ...,
    impl: Impl = ...,
) -> tuple[Tensor, Tensor]: ...


def decode(
    q: Tensor,
    kv_cache: KVCache | PagedKVCache,
    *,
    k: Tensor | None = None,
    v: Tensor | None = None,
    layout: Layout = "BNSD",
    causal: bool = True,
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    precision: Precision = "compensated",
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
    max_kv_len: int | None = None,
    impl: Impl = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of the newest tokens of each sequence to all that a cache holds of it.

    The last query is aligned with the sequence's last valid key: query i of Sq with key
    len - Sq + i. The keys are read in chunks whose partial states are merged as they are, so a long
    cache costs no accuracy.

    Args:
        q: [B, Hq, Sq, D] ([B, Sq, Hq, D] in layout "BSND") of the cache's dtype and device. Sq is 1
            for plain decoding; more for several tokens at once (speculation).
        kv_cache: what is attended to; see `KVCache` and `PagedKVCache`.
        k, v: [B, Hk, S, D] and [B, Hk, S, Dv], in q's layout: new tokens, which are appended to the
            cache first and then attended to. Mostly S = Sq. None: the cache has them already.
        layout: "BNSD" or "BSND", of q, k, v and the output.
        causal: hide the keys after each query; it matters from two queries on.
        scale, window, softcap, alibi_slopes, sinks, precision, out_dtype, return_lse: as for
            `flashasc.attention`.
        max_kv_len: no sequence has more keys, new ones included. Given, the work is laid out for
            so many instead of the cache's capacity; longer sequences lose the keys beyond.
        impl: as for `flashasc.attention`.

    Returns:
        out: [B, Hq, Sq, Dv] ([B, Sq, Hq, Dv]), contiguous; or (out, lse) with lse [B, Hq, Sq]
        float32, natural logarithm.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it and the way out.
        NotImplementedError: an option, dtype, head size or device that the kernel does not serve;
            gradients.
        ImportError, RuntimeError: as `flashasc.attention`.

    A call that raises leaves the cache as it was. What is on the device is not checked: a length
    beyond the cache counts as its capacity, a page out of range as the nearest one when read, and
    what would be written there is dropped; `kv_cache.check()` reads them and raises. A row with no
    key to see has output 0 and log-sum-exp -inf, or its sink. The same call gives the same bits,
    whatever the other sequences, the room that the cache has, or `max_kv_len`; a cache in pages
    gives those of one in one piece, on Ascend from pages of 256 keys on (a tile there lies
    in one page, so smaller pages add up in another order).
    """
    if not isinstance(kv_cache, (KVCache, PagedKVCache)):
        not_a_cache(kv_cache)
    lens, table = kv_cache.lens, kv_cache.block_table
    key = alike_unobserved(
        (q, kv_cache.k, kv_cache.v, lens, table, alibi_slopes, sinks, k, v),
        (
            layout,
            causal,
            scale,
            window,
            softcap,
            precision,
            out_dtype,
            return_lse,
            max_kv_len,
            impl,
        ),
    )
    if k is None and v is None and key is not None and (repeat := _repeats.get(key)):
        made = repeat(
            _decode_ops.pointers(q, kv_cache.k, kv_cache.v, lens, table, alibi_slopes, sinks)
        )
        return (made["out_ptr"], made["lse_ptr"]) if return_lse else made["out_ptr"]
    facts = None if key is None else _right.get(key)
    if facts is None:
        facts = validate_decode(
            q,
            kv_cache,
            k,
            v,
            layout=layout,
            causal=causal,
            scale=scale,
            window=window,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            precision=precision,
            out_dtype=out_dtype,
            return_lse=return_lse,
            max_kv_len=max_kv_len,
            impl=impl,
        )
        if key is not None:
            _right.keep(key, facts)

    def call(lens: Tensor) -> _decode_ops.DecodeCall:
        return _decode_ops.DecodeCall(
            heads_first(q, layout),
            kv_cache.k,
            kv_cache.v,
            lens,
            table,
            alibi_slopes,
            sinks,
            facts.scale,
            facts.softcap,
            facts.causal,
            facts.window_left,
            facts.window_right,
            layout,
            precision,
            facts.out_dtype,
            return_lse,
            facts.most_keys,
            impl,
        )

    attend = _decode_ops.decode_op if key is None else _decode_ops.attend
    append = _decode_ops.append_op if key is None else _decode_ops.append
    if k is None or v is None:
        out, lse = attend(*call(lens))
        if key is not None:
            _repeats.keep(key, _decode_ops.known(call(lens)))
        return (out, lse) if return_lse else out
    # everything that can raise comes before the first write: what no kernel serves, and pages
    may_write(kv_cache)
    _decode_ops.plan(call(lens))
    fresh = (heads_first(k, layout), heads_first(v, layout))
    tokens = fresh[0].shape[2]
    taken = kv_cache.promise(tokens)
    try:
        append(kv_cache.k, kv_cache.v, *fresh, lens, table, impl)
        if key is not None:
            # as the operator would have: autograd sees what was written over
            increment_version([x for x in (kv_cache.k, kv_cache.v) if not x.is_inference()])
        out, lse = attend(*call(lens + tokens))
    except BaseException:
        kv_cache.withdraw(taken)
        raise
    # counted once the call has come through: until then what was written is nobody's
    lens.add_(tokens)
    kv_cache.keep(tokens)
    return (out, lse) if return_lse else out

"""The checks of a cache, and of a call of `flashasc.decode`. Only `check_cache` reads values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, get_args

import torch
from torch import Tensor

from .._problem import Precision, heads_first
from . import tensors as check
from .derivatives import no_transforms
from .scalars import _is_int, flag, length_of, one_of, out_dtype_of, scale_of, softcap_of, window_of

_AXES = {"BNSD": "[B, H, S, D]", "BSND": "[B, S, H, D]"}


def cache_tensors(k: Any, v: Any, lens: Any) -> None:
    """The tensors of a cache in one piece.

    Raises:
        TypeError, ValueError: one is wrong.
    """
    _keys_and_values(k, v, "[B, Hk, capacity, D]")
    check.lengths_tensor("lens", lens, k, k.shape[0], "[B] lengths, one a sequence")


def paged_tensors(k: Any, v: Any, block_table: Any, lens: Any) -> None:
    """The tensors of a cache in pages.

    Raises:
        TypeError, ValueError: one is wrong.
    """
    _keys_and_values(k, v, "[pages, Hk, page size, D]")
    size = k.shape[2]
    if size < 16 or size & (size - 1):
        raise ValueError(
            f"k must have pages of a power of two of keys, at least 16, in its third dimension; "
            f"got {size}: {tuple(k.shape)}. A cache [pages, page size, Hk, D] is passed as "
            ".transpose(1, 2)"
        )
    if k.shape[0] == 0:
        raise ValueError(f"k must have at least one page; got none: {tuple(k.shape)}")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(
                f"{name} must have last stride 1 in a paged cache; got {tensor.stride()}. Keep "
                "each key's numbers together"
            )
    check.strided("block_table", block_table)
    if block_table.dtype != torch.int32:
        raise TypeError(
            f"block_table must be int32; got {block_table.dtype}: convert it with .to(torch.int32)"
        )
    if block_table.dim() != 2 or block_table.shape[1] == 0:
        raise ValueError(
            "block_table must be [B, pages of a sequence], with at least one page each; got "
            f"{tuple(block_table.shape)}"
        )
    if block_table.stride(1) != 1 and block_table.shape[1] > 1:
        raise ValueError(
            f"block_table must have last stride 1; got {block_table.stride()}: .contiguous() helps"
        )
    check.on_device_of("block_table", block_table, k)
    check.lengths_tensor("lens", lens, k, block_table.shape[0], "[B] lengths, one a sequence")


def _keys_and_values(k: Any, v: Any, axes: str) -> None:
    for name, tensor in (("k", k), ("v", v)):
        check.strided(name, tensor)
        check.floating(name, tensor)
        if tensor.dim() != 4:
            raise ValueError(
                f"{name} must have 4 dimensions, {axes}; got {tensor.dim()}: {tuple(tensor.shape)}"
            )
    if v.dtype != k.dtype:
        raise TypeError(f"v must have k's dtype, {k.dtype}; got {v.dtype}: cast it")
    if v.device != k.device:
        raise ValueError(f"v must be on k's device, {k.device}; got {v.device}: move it there")
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"k and v must agree in all but the last of {axes}; got {tuple(k.shape)} and "
            f"{tuple(v.shape)}"
        )


def not_a_cache(cache: Any) -> NoReturn:
    """Refuse what was given for one."""
    raise TypeError(
        f"kv_cache must be a KVCache or a PagedKVCache; got {type(cache).__name__}. Tensors of "
        "your own become one by flashasc.KVCache(k, v, lens)"
    )


def still_a_cache(cache: Any) -> None:
    """The tensors of a cache as they are now: attributes may have been set, tensors resized.

    Raises:
        TypeError, ValueError: they are none of a cache any more.
    """
    table = cache.block_table
    try:
        if table is None:
            cache_tensors(cache.k, cache.v, cache.lens)
        else:
            paged_tensors(cache.k, cache.v, table, cache.lens)
    except (TypeError, ValueError) as error:
        raise type(error)(f"kv_cache was changed, and is no cache any more: {error}") from None
    if table is not None and cache._pool is not None:
        pages_fit(cache)


def pages_fit(cache: Any) -> None:
    """A cache that hands out its pages, and the books of them.

    Raises:
        ValueError: they do not.
    """
    pool, table = cache._pool, cache.block_table
    handed_out = (pool.free.shape[0] - 1, pool.page_size, *pool.owned.shape)
    found = (cache.k.shape[0], cache.k.shape[2], *table.shape)
    if found != handed_out:
        raise ValueError(
            "kv_cache was changed: pages, page size and table were (pages, page size, B, pages "
            f"of a sequence) = {handed_out} when `allocate` made it; got {found}. Make a "
            "PagedKVCache of your own tensors, whose pages are yours to hand out"
        )


def may_write(cache: Any) -> None:
    """A cache whose tensors can be written where the call is made. Asked each time: it is cheap.

    Raises:
        ValueError: they are inference tensors, and this is not inference mode.

    Not under torch.compile, which cannot ask: there PyTorch refuses the first write.
    """
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return
    for name in ("k", "v", "lens", "block_table"):
        tensor = getattr(cache, name)
        if tensor is not None and tensor.is_inference():
            raise ValueError(
                f"kv_cache.{name} was made under torch.inference_mode(), and PyTorch writes such "
                "tensors nowhere else: make the call under torch.inference_mode() too, or the "
                "cache outside of it"
            )


def _apart(name: str, tensor: Tensor) -> None:
    """Memory that can be written: each element in a place of its own."""
    if not torch.compiler.is_compiling() and tensor._is_zerotensor():
        raise ValueError(f"kv_cache.{name} must have memory to be written; got torch's zero tensor")
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < reach:
            raise ValueError(
                f"kv_cache.{name} must have a place in memory for each element, as new tokens are "
                f"written there; got shape {tuple(tensor.shape)} with strides {tensor.stride()}, "
                "an expanded or overlapping view. .contiguous() makes a copy that can be written"
            )
        reach = max(reach, stride * size)


def count_of(name: str, value: Any) -> int:
    """A number of tokens, pages or the like."""
    count = length_of(name, value)
    if count is None:
        raise TypeError(f"{name} must be an int, 0 or more; got None")
    return count


def counts_of(**sizes: Any) -> None:
    """The sizes of a cache that is to be allocated, by name."""
    for name, value in sizes.items():
        count_of(name, value)


def sequence_of(cache: Any, sequence: Any) -> int:
    """The number of one of a cache's sequences."""
    if not _is_int(sequence):
        raise TypeError(f"sequence must be an int; got {type(sequence).__name__} {sequence!r}")
    count = cache.lens.shape[0]
    if not 0 <= sequence < count:
        raise ValueError(f"sequence must be between 0 and {count - 1}; got {sequence}")
    return int(sequence)


def pages_are_handed_out(cache: Any) -> None:
    """A cache that can take pages back."""
    if cache._pool is None:
        raise ValueError(
            "free: this cache was made of tensors of your own, and its pages are yours to "
            "hand out; set lens and block_table"
        )


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
        _apart(name, getattr(cache, name))
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


def check_cache(cache: Any) -> None:
    """Check the lengths and the table of a cache; waits for the device.

    Raises:
        ValueError: a length or a page is out of range.
        TypeError: what was set as a tensor of the cache is none.
    """
    still_a_cache(cache)
    lens: list[int] = cache.lens.tolist()
    for b, length in enumerate(lens):
        if not 0 <= length <= cache.capacity:
            raise ValueError(
                f"lens must be between 0 and the cache's capacity, {cache.capacity}; got {length} "
                f"for sequence {b}. What was appended beyond it is lost"
            )
    if cache.block_table is None:
        return
    pages, size = cache.k.shape[0], cache.k.shape[2]
    seen: dict[int, tuple[int, int]] = {}
    for b, row in enumerate(cache.block_table.tolist()):
        for place, page in enumerate(row[: -(-lens[b] // size)]):
            if not 0 <= page < pages:
                raise ValueError(
                    f"block_table must hold pages from 0 to {pages - 1}; got {page} for sequence "
                    f"{b}, place {place}, which holds keys"
                )
            # tables of your own may share pages, of a common beginning say
            if page in seen and cache._pool is not None:
                raise ValueError(
                    f"block_table must hold each page once; page {page} is at {seen[page]} and "
                    f"at {(b, place)}"
                )
            seen[page] = (b, place)

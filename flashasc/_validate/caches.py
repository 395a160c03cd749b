"""The checks of a cache. Only `check_cache` reads values."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from . import tensors as check
from .scalars import _is_int, length_of


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


def apart(name: str, tensor: Tensor) -> None:
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

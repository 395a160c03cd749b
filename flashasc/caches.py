"""Keys and values of what was read and written so far, for `flashasc.decode`.

Both kinds hold `lens` [B] int32 on the device: how many keys each sequence has. Nothing here reads
it on the host but `check`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _decode_ops
from ._dispatch import Impl
from ._pages import ALL, PagePool, Taken
from ._problem import Layout
from ._validate import (
    cache_tensors,
    check_cache,
    count_of,
    counts_of,
    may_write,
    paged_tensors,
    pages_are_handed_out,
    pages_fit,
    sequence_of,
    still_a_cache,
    validate_append,
)

__all__ = ["KVCache", "PagedKVCache"]


class KVCache:
    """A cache whose sequences have room of one size each, in one piece.

    Attributes:
        k: [B, Hk, capacity, D]. Keys.
        v: [B, Hk, capacity, Dv]. Values.
        lens: [B] int32. How many of them are valid.
    """

    block_table: Tensor | None = None

    def __init__(self, k: Tensor, v: Tensor, lens: Tensor) -> None:
        """Take tensors as they are; they are written in place.

        Args:
            k: [B, Hk, capacity, D] float16, bfloat16, float32 or float64, any strides.
            v: [B, Hk, capacity, Dv] of the same dtype and device.
            lens: [B] int32 or int64, on the same device.

        Raises:
            TypeError, ValueError: a tensor is wrong; the message names it.
        """
        cache_tensors(k, v, lens)
        self.k, self.v, self.lens = k, v, lens

    @classmethod
    def allocate(
        cls,
        batch: int,
        heads: int,
        capacity: int,
        head_dim: int,
        *,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> KVCache:
        """An empty cache.

        Args:
            batch, heads: sequences, and key/value heads of each.
            capacity: keys that a sequence has room for.
            head_dim, value_dim: D and Dv; None: the same.
            dtype, device: of keys and values.
        """
        counts_of(batch=batch, heads=heads, capacity=capacity, head_dim=head_dim)
        k = torch.zeros(batch, heads, capacity, head_dim, dtype=dtype, device=device)
        size = head_dim if value_dim is None else count_of("value_dim", value_dim)
        v = torch.zeros(batch, heads, capacity, size, dtype=dtype, device=device)
        return cls(k, v, torch.zeros(batch, dtype=torch.int32, device=device))

    @property
    def capacity(self) -> int:
        """Keys that a sequence has room for."""
        return self.k.shape[2]

    def append(self, k: Tensor, v: Tensor, *, layout: Layout = "BNSD", impl: Impl = "auto") -> None:
        """Write new keys and values behind those of each sequence.

        Args:
            k, v: [B, Hk, S, D] and [B, Hk, S, Dv] ([B, S, Hk, D], ... in layout "BSND").
            layout: "BNSD" or "BSND".
            impl: as for `flashasc.attention`.

        What goes beyond the capacity because of what is there already is dropped, as only the
        device knows that, and `lens` counts on: `check` finds it.

        Raises:
            TypeError, ValueError: k or v does not fit the cache, or is longer than its capacity.
                The cache is left as it was.
        """
        k, v = validate_append(self, k, v, layout, impl)
        self.promise(k.shape[2])
        _decode_ops.append_op(self.k, self.v, k, v, self.lens, None, impl)
        self.lens.add_(k.shape[2])

    def rewind(self, tokens: int) -> None:
        """Forget the newest tokens of each sequence: those that a speculation got wrong.

        Args:
            tokens: how many; a sequence that has fewer is empty then.

        Raises:
            TypeError, ValueError: that is no number of tokens, or the cache cannot be written.
        """
        tokens = count_of("tokens", tokens)
        still_a_cache(self)
        may_write(self)
        self.lens.sub_(tokens).clamp_(min=0)

    def reset(self) -> None:
        """Forget everything."""
        still_a_cache(self)
        may_write(self)
        self.lens.zero_()

    def check(self) -> None:
        """Raise ValueError if a length is negative or beyond the capacity. Waits for the device."""
        check_cache(self)

    def promise(self, tokens: int) -> list[Taken]:
        """Make sure that an empty sequence has a place for so many tokens.

        Returns:
            Nothing: no pages are taken here.

        Raises:
            ValueError: they are more than the capacity.
        """
        if tokens > self.capacity:
            raise ValueError(
                f"the cache: {tokens} new tokens are more than a sequence has room for, "
                f"{self.capacity}. Allocate with a larger `capacity`"
            )
        return []

    def withdraw(self, taken: list[Taken]) -> None:
        """Give back what `promise` took: nothing."""

    def keep(self, tokens: int) -> None:
        """Count new tokens that were written: `lens` does."""


class PagedKVCache:
    """A cache whose sequences take pages of memory as they grow.

    Attributes:
        k: [pages, Hk, page size, D]. Keys: a page of one head lies in one piece.
        v: [pages, Hk, page size, Dv]. Values.
        block_table: [B, pages of a sequence] int32. Which page holds each part of a sequence; -1
            where none does.
        lens: [B] int32. How many keys each sequence has.

    A cache made by `allocate` hands pages out itself, on the host: `append` and `decode` take what
    they need. One made of your own tensors writes where your table says.
    """

    def __init__(self, k: Tensor, v: Tensor, block_table: Tensor, lens: Tensor) -> None:
        """Take tensors as they are; pages are handed out by whoever owns the table.

        Args:
            k: [pages, Hk, page size, D] float16, bfloat16, float32 or float64; the last stride 1,
                the others any: a cache [pages, page size, Hk, D] is passed as `.transpose(1, 2)`.
                The page size is a power of two, 16 or more.
            v: [pages, Hk, page size, Dv] of the same dtype and device.
            block_table: [B, pages of a sequence] int32, last stride 1.
            lens: [B] int32 or int64.

        Raises:
            TypeError, ValueError: a tensor is wrong; the message names it.
        """
        paged_tensors(k, v, block_table, lens)
        self.k, self.v, self.block_table, self.lens = k, v, block_table, lens
        self._pool: PagePool | None = None

    @classmethod
    def allocate(
        cls,
        batch: int,
        heads: int,
        pages: int,
        head_dim: int,
        *,
        page_size: int = 128,
        longest: int | None = None,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> PagedKVCache:
        """An empty cache that hands out its pages itself.

        Args:
            batch, heads: sequences, and key/value heads of each.
            pages: pages of memory, for all sequences together.
            head_dim, value_dim: D and Dv; None: the same.
            page_size: keys of a page, a power of two, 16 or more. 128 and above are read in one
                piece on every target.
            longest: keys that one sequence may have; None: as many as all pages hold.
            dtype, device: of keys and values.
        """
        counts_of(batch=batch, heads=heads, pages=pages, head_dim=head_dim, page_size=page_size)
        k = torch.zeros(pages, heads, page_size, head_dim, dtype=dtype, device=device)
        size = head_dim if value_dim is None else count_of("value_dim", value_dim)
        v = torch.zeros(pages, heads, page_size, size, dtype=dtype, device=device)
        width = pages if longest is None else -(-count_of("longest", longest) // max(page_size, 1))
        table = torch.full((batch, width), -1, dtype=torch.int32, device=device)
        cache = cls(k, v, table, torch.zeros(batch, dtype=torch.int32, device=device))
        cache._pool = PagePool(batch, pages, width, page_size)
        return cache

    @property
    def page_size(self) -> int:
        """Keys of a page."""
        return self.k.shape[2]

    @property
    def capacity(self) -> int:
        """Keys that one sequence may have."""
        return self.block_table.shape[1] * self.page_size

    def append(
        self,
        k: Tensor,
        v: Tensor,
        *,
        sequence: int | None = None,
        layout: Layout = "BNSD",
        impl: Impl = "auto",
    ) -> None:
        """Write new keys and values behind those of each sequence, or of one.

        Args:
            k, v: [B, Hk, S, D] and [B, Hk, S, Dv] ([B, S, Hk, D], ... in layout "BSND"); with
                `sequence` B is 1.
            sequence: the one to write to; None: all.
            layout: "BNSD" or "BSND".
            impl: as for `flashasc.attention`.

        Raises:
            TypeError, ValueError: k or v does not fit the cache, or there are not enough free
                pages. The cache is left as it was.
        """
        rows = slice(None) if sequence is None else self._rows(sequence)
        k, v = validate_append(self, k, v, layout, impl, batch=None if sequence is None else 1)
        taken = self.promise(k.shape[2], sequence)
        table, lens = self.block_table[rows], self.lens[rows]
        try:
            _decode_ops.append_op(self.k, self.v, k, v, lens, table, impl)
        except BaseException:
            self.withdraw(taken)
            raise
        lens.add_(k.shape[2])
        self.keep(k.shape[2], sequence)

    def promise(self, tokens: int, sequence: int | None = None) -> list[Taken]:
        """Take the pages that so many more tokens of each sequence, or of one, will need.

        `append` and `decode` do this themselves; do it ahead of a captured graph.

        Returns:
            (sequence, place in it, page) of each page that was taken.

        Raises:
            ValueError: there are not enough free pages, or a sequence outgrows its row of the
                table. Nothing is taken then.
        """
        tokens = count_of("tokens", tokens)
        one = ALL if sequence is None else sequence_of(self, sequence)
        if self._pool is None:
            return []
        pages_fit(self)
        may_write(self)
        return self._pool.take(self.block_table, self.lens, tokens, one)

    def withdraw(self, taken: list[Taken]) -> None:
        """Give back the pages that one call of `promise` took, the last one made."""
        if self._pool is not None:
            self._pool.give_back(self.block_table, taken)

    def keep(self, tokens: int, sequence: int | None = None) -> None:
        """Count new tokens that were written."""
        tokens = count_of("tokens", tokens)
        one = ALL if sequence is None else sequence_of(self, sequence)
        if self._pool is not None:
            self._pool.keep(tokens, one, self.lens)

    def rewind(self, tokens: int, sequence: int | None = None) -> None:
        """Forget the newest tokens of each sequence, or of one; their pages stay with it.

        Args:
            tokens: how many; a sequence that has fewer is empty then.
            sequence: the one that forgets; None: all.

        Raises:
            TypeError, ValueError: there are no such tokens or sequence, or the cache cannot be
                written.
        """
        tokens = count_of("tokens", tokens)
        rows = slice(None) if sequence is None else self._rows(sequence)
        still_a_cache(self)
        may_write(self)
        self.lens[rows].sub_(tokens).clamp_(min=0)
        if self._pool is not None:
            one = ALL if sequence is None else sequence_of(self, sequence)
            self._pool.keep(-tokens, one, self.lens)

    def free(self, sequence: int) -> None:
        """Forget a sequence, and give its pages back.

        Raises:
            ValueError: there is no such sequence, or the cache does not hand out its pages.
        """
        rows = self._rows(sequence)
        pages_are_handed_out(self)
        still_a_cache(self)
        may_write(self)
        assert self._pool is not None
        self._pool.release(sequence)
        self.block_table[rows] = -1
        self.lens[rows] = 0

    def reset(self) -> None:
        """Forget everything; pages that the cache handed out are free again."""
        still_a_cache(self)
        may_write(self)
        self.lens.zero_()
        if self._pool is not None:
            for sequence in range(self.lens.shape[0]):
                self._pool.release(sequence)
            self.block_table.fill_(-1)

    def check(self) -> None:
        """Raise if the lengths or the table are wrong. Waits for the device.

        Raises:
            ValueError: a length is negative or beyond the capacity; a page that holds keys is out
                of range, or belongs to two places.
        """
        check_cache(self)

    def _rows(self, sequence: Any) -> slice:
        first = sequence_of(self, sequence)
        return slice(first, first + 1)

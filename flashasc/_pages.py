"""Which pages of a cache are free, and which sequence has the others. All on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Taken: TypeAlias = tuple[int, int, int]
"""(sequence, place in it, page)."""


class PagePool:
    """The pages of a cache, handed out one at a time, lowest number first."""

    def __init__(self, batch: int, pages: int, width: int, page_size: int) -> None:
        """All pages are free.

        Args:
            batch: sequences.
            pages: pages of memory.
            width: pages that a sequence may have.
            page_size: tokens of a page.
        """
        self._free = list(reversed(range(pages)))
        self._owned: list[list[int]] = [[] for _ in range(batch)]
        self._tokens = [0] * batch
        self._width = width
        self._page_size = page_size

    def take(self, tokens: int, sequences: Sequence[int] | None) -> list[Taken]:
        """Give sequences the pages that so many more tokens of each need.

        Args:
            tokens: how many more tokens.
            sequences: which ones; None: all.

        Returns:
            (sequence, place in it, page) of each new page.

        Raises:
            ValueError: not enough pages are free, or a sequence would have too many. Nothing is
                taken then.
        """
        chosen = range(len(self._owned)) if sequences is None else sequences
        missing: list[int] = []
        for sequence in chosen:
            total = self._tokens[sequence] + tokens
            pages = -(-total // self._page_size)
            if pages > self._width:
                raise ValueError(
                    f"the cache: sequence {sequence} would have {total} keys, and a row of the "
                    f"table has pages for {self._width * self._page_size}. Allocate with a larger "
                    "`longest`, or free(...) the sequence"
                )
            missing += [sequence] * max(0, pages - len(self._owned[sequence]))
        if len(missing) > len(self._free):
            raise ValueError(
                f"the cache: {len(missing)} more pages are needed, and {len(self._free)} are free. "
                "free(...) a sequence, or allocate more pages"
            )
        taken = []
        for sequence in missing:
            owned = self._owned[sequence]
            owned.append(self._free.pop())
            taken.append((sequence, len(owned) - 1, owned[-1]))
        return taken

    def give_back(self, taken: Sequence[Taken]) -> None:
        """Undo the last `take`."""
        for sequence, _, page in reversed(taken):
            last = self._owned[sequence].pop()
            assert last == page, "only what was taken last can be given back"
            self._free.append(page)

    def keep(self, tokens: int, sequences: Sequence[int] | None) -> None:
        """Count tokens that were written."""
        for sequence in range(len(self._owned)) if sequences is None else sequences:
            self._tokens[sequence] += tokens

    def free(self, sequence: int) -> None:
        """Take a sequence's pages back."""
        self._free += reversed(self._owned[sequence])
        self._owned[sequence] = []
        self._tokens[sequence] = 0

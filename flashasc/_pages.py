"""Which pages of a cache are free, and which sequence has the others. All on the host.

The books are tensors on the CPU, and what changes them are operators: a compiled call then reads
them when it runs, where numbers of Python would be compiled into it, and it anew for each token.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Taken: TypeAlias = tuple[int, int, int]
"""(sequence, place in it, page)."""
ALL = -1
"""In place of a sequence's number: all of them."""


class PagePool:
    """The pages of a cache, handed out one at a time, lowest number first.

    Attributes:
        free: [1 + pages] int64. How many are free, and then which, the next one last.
        held: [B, 2] int64. Tokens of each sequence, and its pages.
        owned: [B, width] int32. Those pages, -1 where there are no more.
        page_size: tokens of a page.
    """

    def __init__(self, batch: int, pages: int, width: int, page_size: int) -> None:
        """All pages are free.

        Args:
            batch: sequences.
            pages: pages of memory.
            width: pages that a sequence may have.
            page_size: tokens of a page.
        """
        self.free = torch.tensor([pages, *reversed(range(pages))], device="cpu")
        self.held = torch.zeros(batch, 2, dtype=torch.int64, device="cpu")
        self.owned = torch.full((batch, width), -1, dtype=torch.int32, device="cpu")
        self.page_size = page_size

    def take(self, table: Tensor, lens: Tensor, tokens: int, sequence: int) -> list[Taken]:
        """Give sequences the pages that so many more tokens of each need, in a table too.

        Args:
            table: [B, width] int32, on any device.
            lens: [B], which is left as it is: see `take_pages_op`.
            tokens: how many more tokens.
            sequence: of which one; ALL.

        Returns:
            (sequence, place in it, page) of each new page; under torch.compile nothing, as what
            is taken is known when the compiled code runs.

        Raises:
            ValueError: not enough pages are free, or a sequence would have too many. Nothing is
                taken then.
        """
        books = (table, lens, self.free, self.held, self.owned)
        if torch.compiler.is_compiling():
            take_pages_op(*books, tokens, self.page_size, sequence)
            return []
        return _take(*books, tokens, self.page_size, sequence)

    def give_back(self, table: Tensor, taken: list[Taken]) -> None:
        """Undo the last `take`."""
        if not taken:
            return
        for sequence, place, page in reversed(taken):
            assert self.held[sequence, 1] == place + 1, "only what was taken last is given back"
            self.held[sequence, 1] -= 1
            self.owned[sequence, place] = -1
            self._put(page)
        _enter(table, [x[:2] for x in taken], [-1] * len(taken))

    def keep(self, tokens: int, sequence: int, after: Tensor) -> None:
        """Count tokens that were written, or forgotten if negative, once `after` is there."""
        count = count_tokens_op if torch.compiler.is_compiling() else _count
        count(self.held, after, tokens, sequence)

    def release(self, sequence: int) -> None:
        """Take a sequence's pages back."""
        for page in reversed(self.owned[sequence, : int(self.held[sequence, 1])].tolist()):
            self._put(page)
        self.owned[sequence] = -1
        self.held[sequence] = 0

    def _put(self, page: int) -> None:
        self.free[0] += 1
        self.free[self.free[0]] = page


def _take(
    table: Tensor,
    lens: Tensor,
    free: Tensor,
    held: Tensor,
    owned: Tensor,
    tokens: int,
    page_size: int,
    sequence: int,
) -> list[Taken]:
    counts: list[list[int]] = held.tolist()
    width = owned.shape[1]
    missing: list[tuple[int, int]] = []
    for one in range(len(counts)) if sequence == ALL else (sequence,):
        has_tokens, has_pages = counts[one]
        total = has_tokens + tokens
        pages = -(-total // page_size)
        if pages > width:
            raise ValueError(
                f"the cache: sequence {one} would have {total} keys, and a row of the table has "
                f"pages for {width * page_size}. Allocate with a larger `longest`, or free(...) "
                "the sequence"
            )
        missing += [(one, place) for place in range(has_pages, pages)]
    if not missing:
        return []
    left = int(free[0])
    if len(missing) > left:
        raise ValueError(
            f"the cache: {len(missing)} more pages are needed, and {left} are free. "
            "free(...) a sequence, or allocate more pages"
        )
    found: list[int] = free[left + 1 - len(missing) : left + 1].flip(0).tolist()
    # the table first: where it cannot be written, nothing has been taken
    _enter(table, missing, found)
    _enter(owned, missing, found)
    free[0] -= len(missing)
    for one, place in missing:
        held[one, 1] = place + 1
    return [(*at, page) for at, page in zip(missing, found, strict=True)]


def _enter(table: Tensor, places: list[tuple[int, int]], pages: list[int]) -> None:
    device = table.device
    at = (torch.tensor([x[n] for x in places], device=device) for n in (0, 1))
    table[tuple(at)] = torch.tensor(pages, dtype=torch.int32, device=device)


def _count(held: Tensor, after: Tensor, tokens: int, sequence: int) -> None:
    rows = slice(None) if sequence == ALL else sequence
    held[rows, 0] = (held[rows, 0] + tokens).clamp(min=0)


def _take_for_good(*arguments: object) -> None:
    _take(*arguments)  # type: ignore[arg-type]


_ON_THE_HOST = (torch.Tag.cudagraph_unsafe,)
# `lens` is said to be written: what counts tokens then waits until there are pages for them
take_pages_op = torch.library.custom_op(
    "flashasc::take_pages",
    _take_for_good,
    mutates_args=("table", "lens", "free", "held", "owned"),
    schema="(Tensor(a!) table, Tensor(b!) lens, Tensor(c!) free, Tensor(d!) held, "
    "Tensor(e!) owned, SymInt tokens, SymInt page_size, SymInt sequence) -> ()",
    tags=_ON_THE_HOST,
)
count_tokens_op = torch.library.custom_op(
    "flashasc::count_tokens",
    _count,
    mutates_args=("held",),
    schema="(Tensor(a!) held, Tensor after, SymInt tokens, SymInt sequence) -> ()",
    tags=_ON_THE_HOST,
)


@take_pages_op.register_fake
def _(*arguments: object) -> None:
    return None


@count_tokens_op.register_fake
def _(*arguments: object) -> None:
    return None

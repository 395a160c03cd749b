"""Values that tell where they belong: rank, block, and position in the block.

With computation replaced by identity, what arrives somewhere says where it came from:

    tags = Tags(ranks=4, blocks=2, positions=512, dtype=torch.bfloat16)
    mine = tags.block(rank, block=0)              # [512]
    tags.describe(received, expect=(3, 0))  # "all: rank 1, block 1 where rank 3, block 0 belongs"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from .tolerances import name_of

Place = tuple[int, int, int]
"""Rank, block, position in the block."""


@dataclass(frozen=True)
class Tags:
    """A distinct, exactly representable value for every position of every block of every rank.

    The values are 1, 2, 3, ... while the dtype has these exactly, and otherwise its normal numbers
    in the order of their bits. None is 0, which memory never written often is, and none NaN or
    infinite. They are for moving and comparing, not for adding up.

    Attributes:
        ranks, blocks, positions: how many there are; of blocks on a rank, of positions in a block.
        dtype: float16, bfloat16, float32, or an integer dtype.

    Raises:
        ValueError: the dtype has too few values; the message says how many it has.
    """

    ranks: int
    blocks: int
    positions: int
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        for name in ("ranks", "blocks", "positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        if self.dtype.is_complex or self.dtype == torch.bool:
            raise ValueError(f"dtype: expected floats or integers, got {name_of(self.dtype)}")
        if self._total > max(self._whole_numbers, self._patterns):
            raise ValueError(
                f"dtype: {name_of(self.dtype)} has {max(self._whole_numbers, self._patterns)} "
                f"values for tags, {self._total} are needed; take a wider dtype, or fewer "
                "positions (one for each row: see `block`)"
            )

    def block(self, rank: int, block: int = 0, shape: Sequence[int] | None = None, axis: int = 0
              ) -> Tensor:  # fmt: skip
        """The values of one block.

        Args:
            rank, block: whose.
            shape: of the block; None: [positions]. Of `positions` elements, a position each; or of
                `positions` along `axis`, where all elements of a row share one.
            axis: the one that positions run along, when they don't run along all.

        Returns:
            [...] on the CPU.

        Raises:
            ValueError: no such rank or block, or a shape that does not fit.
        """
        for name, value, most in (("rank", rank, self.ranks), ("block", block, self.blocks)):
            if not 0 <= value < most:
                raise ValueError(f"{name}: expected 0 to {most - 1}, got {value}")
        start = (rank * self.blocks + block) * self.positions
        values = self._encode(torch.arange(start, start + self.positions))
        if shape is None:
            return values
        if torch.Size(shape).numel() == self.positions:
            return values.view(*shape)
        if shape and shape[axis] == self.positions:
            ones = [1] * len(shape)
            ones[axis] = self.positions
            return values.view(ones).expand(*shape).contiguous()
        raise ValueError(
            f"shape: {tuple(shape)} has neither {self.positions} elements nor so many along axis "
            f"{axis}; positions must be one of both"
        )

    def places(self, values: Tensor) -> list[Place | None]:
        """Where each value belongs, in flat order; None for one that is no tag."""
        found: list[Place | None] = []
        for code in self._decode(values.detach().cpu().reshape(-1)).tolist():
            if not 0 <= code < self._total:
                found.append(None)
                continue
            block, position = divmod(code, self.positions)
            found.append((block // self.blocks, block % self.blocks, position))
        return found

    def describe(self, values: Tensor, expect: tuple[int, int]) -> str:
        """What a received block holds instead of what it should; "" when all is in place.

        Args:
            values: [...] what was received, made by `block` in this shape.
            expect: (rank, block) that should be here.

        Returns:
            A phrase for each stretch that came from elsewhere.
        """
        wanted = self.block(*expect, shape=values.shape, axis=self._axis(values))
        if values.dtype == self.dtype and torch.equal(values.cpu(), wanted):
            return ""
        held, right = self.places(values), self.places(wanted)
        words = [*self._stretches(held, right)]
        return "; ".join(words[:6]) + ("; ..." if len(words) > 6 else "")

    def _axis(self, values: Tensor) -> int:
        """The axis that positions run along in a block of this shape."""
        if values.numel() == self.positions:
            return 0
        axes = [d for d, size in enumerate(values.shape) if size == self.positions]
        if len(axes) != 1:
            raise ValueError(
                f"values: {tuple(values.shape)} does not tell which axis has the "
                f"{self.positions} positions"
            )
        return axes[0]

    def _stretches(self, held: list[Place | None], right: list[Place | None]) -> Iterator[str]:
        def key(pair: tuple[int, tuple[Place | None, Place | None]]) -> object:
            _, (here, wanted) = pair
            if here is None or wanted is None or here == wanted:
                return here == wanted
            return here[:2], here[2] - wanted[2]

        for _, group in groupby(enumerate(zip(held, right)), key):
            stretch = list(group)
            first, (here, wanted) = stretch[0]
            if here == wanted or wanted is None:
                continue
            where = f"elements {first} to {stretch[-1][0]}" if len(stretch) < len(held) else "all"
            belongs = f"where rank {wanted[0]}, block {wanted[1]} belongs"
            if here is None:
                yield f"{where}: no tag at all {belongs}"
                continue
            step = here[2] - wanted[2]
            shifted = (
                f", {abs(step)} positions too {'far' if step > 0 else 'early'}" if step else ""
            )
            yield f"{where}: rank {here[0]}, block {here[1]}{shifted} {belongs}"

    @property
    def _total(self) -> int:
        return self.ranks * self.blocks * self.positions

    @property
    def _whole_numbers(self) -> int:
        """How many positive integers the dtype has in a row."""
        if not self.dtype.is_floating_point:
            return int(torch.iinfo(self.dtype).max)
        return int(min(2 / torch.finfo(self.dtype).eps, torch.finfo(self.dtype).max))

    @property
    def _patterns(self) -> int:
        """How many normal numbers it has."""
        return 2 * self._positive if self.dtype in _PATTERNS else 0

    @property
    def _positive(self) -> int:
        _, first, end = _PATTERNS[self.dtype]
        return end - first

    def _encode(self, codes: Tensor) -> Tensor:
        if self._total <= self._whole_numbers:
            return (codes + 1).to(self.dtype)
        raw, first, _ = _PATTERNS[self.dtype]
        size = codes % self._positive + first
        # the sign is the highest bit: of a negative number the lowest integer, plus its size
        lowest = torch.iinfo(raw).min
        return torch.where(codes < self._positive, size, size + lowest).to(raw).view(self.dtype)

    def _decode(self, values: Tensor) -> Tensor:
        if values.dtype != self.dtype:
            raise ValueError(
                f"values: expected {name_of(self.dtype)}, got {name_of(values.dtype)}: tags are "
                "read in the dtype that they were made in"
            )
        if self._total <= self._whole_numbers:
            if not values.is_floating_point():
                return values.long() - 1
            whole = values.double()
            whole = torch.where(whole == whole.trunc(), whole, 0.0).nan_to_num(0.0, 0.0, 0.0)
            return whole.clamp(-1, 2.0**53).long() - 1
        raw, first, end = _PATTERNS[self.dtype]
        number = values.contiguous().view(raw).long()
        size = torch.where(number < 0, number - torch.iinfo(raw).min, number)
        code = size - first + torch.where(number < 0, self._positive, 0)
        return torch.where((size >= first) & (size < end), code, -1)


# dtype -> integers of its width, bits of its smallest normal number, bits of infinity
_PATTERNS = {
    torch.float32: (torch.int32, 0x0080_0000, 0x7F80_0000),
    torch.bfloat16: (torch.int16, 0x0080, 0x7F80),
    torch.float16: (torch.int16, 0x0400, 0x7C00),
}

"""Rotary position embedding (Su et al., 2021), accurate at any position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["RotaryEmbedding"]

# positions are split in two: as many low ones, as many high ones
_LOW = 1024
_HIGH = 4096


class RotaryEmbedding(torch.nn.Module):
    """Turns pairs of features by angles that grow with the position.

    Args:
        dim: features of a head that are turned, the first ones; even.
        base: feature pair i turns by position * base ** (-2 * i / dim) radians.
        interleaved: a pair is two neighbours (GPT-J), not one feature of each half (Llama).

    Raises:
        ValueError: dim is odd or less than 2.

    A product position * frequency in float32 is off by 6e-8 of the angle, some 0.01 radians at
    position 131 072. Here sines and cosines of high and low parts of the position are tabled in
    float64 and rounded once, and the angle sum formula puts them together: the error stays below
    2e-7 up to position 4 194 303, the last one. The tables, 5 120 rows, are float32 whatever the
    module is cast to, and no part of its `state_dict`.
    """

    tables: Tensor

    def __init__(
        self,
        dim: int,
        *,
        base: float = 10000.0,
        interleaved: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"dim must be even and at least 2; got {dim}")
        self.dim = dim
        self.base = base
        self.interleaved = interleaved
        self.register_buffer("tables", self._made().to(device), persistent=False)

    def _made(self) -> Tensor:
        """[2, _LOW + _HIGH, dim / 2] float32: cosines and sines of low and high positions."""
        frequencies = self.base ** -(torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)
        positions = torch.cat([torch.arange(_LOW), torch.arange(_HIGH) * _LOW])
        angles = positions[:, None].double() * frequencies
        return torch.stack([angles.cos(), angles.sin()]).float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # half() and the like must not round the tables
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.tables.dtype != torch.float32:
            self.tables = self._made().to(self.tables.device)
        return self

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn the first `dim` features.

        Args:
            x: [..., S, heads, D] of any float dtype; computed in float32.
            positions: integers that broadcast to [..., S], 0 to 4 194 303.

        Returns:
            As x.

        Raises:
            TypeError, ValueError: x has too few features; positions are none, or do not fit x.
        """
        if x.shape[-1] < self.dim:
            raise ValueError(
                f"x must have at least {self.dim} features a head, [..., S, heads, D]; got "
                f"{tuple(x.shape)}"
            )
        _check_positions(positions, x)
        cos, sin = self._turn(positions)
        turned = x[..., : self.dim].to(torch.promote_types(x.dtype, torch.float32))
        a, b = turned.unflatten(-1, (-1, 2)).unbind(-1) if self.interleaved else turned.chunk(2, -1)
        pairs = (a * cos - b * sin, b * cos + a * sin)
        out = torch.stack(pairs, -1).flatten(-2) if self.interleaved else torch.cat(pairs, -1)
        return torch.cat([out.to(x.dtype), x[..., self.dim :]], -1)

    def _turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [..., S, 1, dim / 2]."""
        low = torch.remainder(positions, _LOW)
        high = torch.div(positions, _LOW, rounding_mode="floor") + _LOW
        cos_low, sin_low = self.tables[:, low].unbind()
        cos_high, sin_high = self.tables[:, high].unbind()
        cos = cos_high * cos_low - sin_high * sin_low
        sin = sin_high * cos_low + cos_high * sin_low
        return cos.unsqueeze(-2), sin.unsqueeze(-2)

    def extra_repr(self) -> str:
        """The options."""
        return f"dim={self.dim}, base={self.base}, interleaved={self.interleaved}"


def _check_positions(positions: Any, x: Tensor) -> None:
    if not isinstance(positions, Tensor):
        raise TypeError(
            f"positions must be a torch.Tensor of integers; got {type(positions).__name__}"
        )
    if positions.dtype.is_floating_point or positions.dtype in (torch.bool, torch.complex64):
        raise TypeError(f"positions must be integers; got {positions.dtype}: cast with .long()")
    # [..., S]; from the end on, as broadcasting does
    tokens, given = x.shape[:-2], positions.shape
    pairs = zip(reversed(given), reversed(tokens))
    if len(given) > len(tokens) or any(size not in (1, wanted) for size, wanted in pairs):
        raise ValueError(
            f"positions must be one for each token, a shape that broadcasts to {tuple(tokens)}; "
            f"got {tuple(given)}"
        )

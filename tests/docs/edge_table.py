"""What the checks of docs/edge-cases.md share: their table, and small inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.attention.routes import Route

Check = Callable[[Route], None]
CHECKS: dict[str, Check] = {}
RAISES: set[str] = set()
"""The rows whose result is an error."""

INF, NAN = math.inf, math.nan
SINKS = torch.tensor([1.5, -INF])


def row(text: str, *, raises: bool = False) -> Callable[[Check], Check]:
    """Note what checks the row that begins with this text."""

    def note(check: Check) -> Check:
        assert text not in CHECKS
        CHECKS[text] = check
        if raises:
            RAISES.add(text)
        return check

    return note


def draw(B: int = 1, H: int = 2, Sq: int = 4, Sk: int = 5, **options: Any) -> tuple[Tensor, ...]:
    """q, k and v from a standard normal distribution, D = 16."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((B, H, Sq, 16), (B, H, Sk, 16), (B, H, Sk, 16))
    return tuple(torch.randn(size, generator=generator).to(**options) for size in sizes)

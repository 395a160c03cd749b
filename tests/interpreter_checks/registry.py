"""The checks by name, and what they compare with."""

from __future__ import annotations

from collections.abc import Callable

import torch

N = 256

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def same(found: torch.Tensor, exact: torch.Tensor) -> None:
    """Equal as bits, any NaN for any NaN."""
    assert found.dtype == exact.dtype
    wrong = (bits(found) != bits(exact)) & ~(found.isnan() & exact.isnan())
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} differ, first at {where}: "
            f"{found[tuple(where)].item()!r}, exact {exact[tuple(where)].item()!r}"
        )


def hostile(dtype: torch.dtype, count: int = 65536) -> torch.Tensor:
    """Random bit patterns: every magnitude, subnormals, infinities and NaNs among them."""
    size = dtype.itemsize
    raw = torch.randint(-(2**63), 2**63 - 1, (count * size // 8,), generator=SEED)
    return raw.view(dtype)


SEED = torch.Generator().manual_seed(0)


def normals(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=SEED).to(dtype)

"""Seeded inputs for any operator, each to expose one kind of fault.

The same seed gives the same numbers on every device. Tags that say where each value belongs are in
`flashasc.precision.tags`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Device = str | torch.device


def normal(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: Device = "cpu",
) -> Tensor:
    """Standard normal: values of both signs cancel in sums, as activations do."""
    return torch.randn(*shape, generator=_generator(seed)).to(dtype).to(device)


def uniform_positive(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: Device = "cpu",
) -> Tensor:
    """Uniform in [0, 1): nothing cancels, so a sum that truncates or stagnates drifts."""
    # not rounded up to 1
    drawn = torch.rand(*shape, generator=_generator(seed))
    return drawn.to(dtype).clamp(max=1 - torch.finfo(dtype).eps / 2).to(device)


def outliers(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: Device = "cpu",
    *,
    share: float = 0.001,
    factor: float = 100.0,
) -> Tensor:
    """Normal, a few elements (`share`, one at least) `factor` times as large.

    What is scaled by a tensor's maximum loses the rest; what is 16 bits inside overflows.
    """
    _within("share", share, 0.0, 1.0)
    generator = _generator(seed)
    drawn = torch.randn(*shape, generator=generator)
    count = min(drawn.numel(), max(1, round(share * drawn.numel())))
    large = torch.randperm(drawn.numel(), generator=generator)[:count]
    drawn.view(-1)[large] *= factor
    return drawn.to(dtype).to(device)


def sharp(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: Device = "cpu",
    *,
    nats: float = 20.0,
) -> Tensor:
    """Scores whose softmax along the last axis takes one place, `nats` above all others.

    Which place that is differs from row to row.

    Raises:
        ValueError: the shape has no axis.
    """
    if not shape:
        raise ValueError("shape: expected one axis or more, the last one of scores; got ()")
    generator = _generator(seed)
    drawn = torch.randn(*shape, generator=generator)
    if drawn.numel():
        place = torch.randint(drawn.shape[-1], (*drawn.shape[:-1], 1), generator=generator)
        drawn.scatter_(-1, place, drawn.amax(-1, keepdim=True) + nats)
    return drawn.to(dtype).to(device)


def flat(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: Device = "cpu",
    *,
    nats: float = 0.01,
) -> Tensor:
    """Scores whose softmax along the last axis is even: uniform within `nats` around 0.

    Every term counts alike, so the sum is as long as the row.
    """
    drawn = torch.rand(*shape, generator=_generator(seed))
    return ((drawn - 0.5) * nats).to(dtype).to(device)


def ill_conditioned(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: Device = "cpu",
    *,
    condition: float = 1e5,
) -> Tensor:
    """Rows along the last axis that nearly cancel: sum(|x|) is `condition` times |sum(x)|.

    Each value has its exact opposite in its row, in random order, but for one or two which make up
    the sum; a plain sum loses about log10(condition) digits.

    Raises:
        ValueError: rows shorter than 3, or a sum so small that the dtype cannot hold it.
    """
    if not shape or shape[-1] < 3:
        raise ValueError(f"shape: expected rows of 3 or more, got {tuple(shape)}")
    if not (condition > 2.0 and math.isfinite(condition)):
        raise ValueError(f"condition: expected a finite number above 2, got {condition!r}")
    generator = _generator(seed)
    rest = 1 if shape[-1] % 2 else 2
    pairs = (shape[-1] - rest) // 2
    # away from 0, so that no pair is lost beside another
    half = (0.5 + torch.rand(*shape[:-1], pairs, generator=generator)).to(dtype).double()
    total = 2 * half.sum(-1, keepdim=True) / (condition - 1)
    left = (total / rest).to(dtype).double().expand(*shape[:-1], rest)
    if left.numel() and bool((left < torch.finfo(dtype).smallest_normal).any()):
        raise ValueError(
            f"condition: {condition:g} leaves a sum of {left.min().item():.3g}, too small for "
            f"{dtype}; ask for less"
        )
    row = torch.cat([half, -half, left], dim=-1)
    order = torch.rand(row.shape, generator=generator).argsort(-1)
    return row.gather(-1, order).to(dtype).to(device)


def exactly_representable(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: Device = "cpu",
    *,
    terms: int,
    product: bool = False,
    accumulate: torch.dtype | None = None,
) -> Tensor:
    """Small integers of both signs: sums of `terms` of them are exact, whatever the order.

    So two right operators agree bit for bit, and `strict` tells a wrong one.

    Args:
        shape, dtype, seed, device: of the result.
        terms: how many are added up, e.g. the length of the reduced axis times the ranks.
        product: whether products of two such values are added up, as in a matrix product.
        accumulate: dtype of the sums; None: `dtype`. The result is exact in this dtype; rounded
            once to `dtype` it is the same for all who round to nearest.

    Raises:
        ValueError: not even +-1 would do: too many terms for the dtype of the sums.
    """
    if terms < 1:
        raise ValueError(f"terms: expected 1 or more, got {terms}")
    wide = accumulate or dtype
    # integers up to 2**digits are exact
    most = int(min(2 / torch.finfo(wide).eps, torch.finfo(dtype).max)) // terms
    largest = min(math.isqrt(most) if product else most, int(2 / torch.finfo(dtype).eps))
    if largest < 1:
        raise ValueError(
            f"terms: sums of {terms} ones in {wide} are not exact, or too large for {dtype}; "
            "take fewer terms, or wider dtypes"
        )
    drawn = torch.randint(-largest, largest + 1, tuple(shape), generator=_generator(seed))
    return drawn.to(dtype).to(device)


INPUTS: dict[str, Callable[..., Tensor]] = {
    "normal": normal,
    "uniform_positive": uniform_positive,
    "outliers": outliers,
    "sharp": sharp,
    "flat": flat,
    "ill_conditioned": ill_conditioned,
    "exactly_representable": exactly_representable,
}
"""The generators by name; `exactly_representable` needs `terms`."""


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name}: expected {least:g} to {most:g}, got {value!r}")

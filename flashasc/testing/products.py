"""Factors of matrix products on which sums go wrong, in ways that are known."""

from __future__ import annotations

import torch
from torch import Tensor


def positive_factors(M: int, N: int, K: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """[M, K] and [K, N] float32 in [0, 1): every rounding of a plain sum may go one way."""
    a, b = (torch.rand(size, K, generator=_generator(seed + i)) for i, size in enumerate((M, N)))
    return a, b.T


def normal_factors(M: int, N: int, K: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """[M, K] and [K, N] float32, standard normal."""
    a, b = (torch.randn(size, K, generator=_generator(seed + i)) for i, size in enumerate((M, N)))
    return a, b.T


def ill_conditioned_factors(
    M: int, N: int, K: int, condition: float, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """[M, K] and [K, N] float32 whose products' sums nearly cancel.

    All but a tenth of the products come in pairs of opposite sign, shuffled; the others are
    positive, and so large that the sum of magnitudes is about `condition` times the sum.
    """
    g = _generator(seed)
    pairs = K * 9 // 20
    x, y = torch.randn(M, pairs, generator=g), torch.randn(N, pairs, generator=g)
    rest_a, rest_b = (torch.rand(size, K - 2 * pairs, generator=g) + 0.5 for size in (M, N))
    # magnitudes: 2 / pi a pair and factor, against about 1 for each of the rest
    share = (2 * pairs * 2 / torch.pi) / (K - 2 * pairs)
    rest_a *= share / condition
    order = torch.randperm(K, generator=g)
    a, b = torch.cat([x, -x, rest_a], 1), torch.cat([y, y, rest_b], 1)
    return a[:, order], b[:, order].T


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

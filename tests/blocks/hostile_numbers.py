"""Numbers that sums get wrong, and exact answers to compare with."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

U = 2.0**-24
"""Unit roundoff of fp32."""

TINY = 2.0**-126
"""Smallest normal fp32 number."""


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=rng(seed))


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=rng(seed))


def finite_bits(count: int, seed: int = 0, largest: float = 2.0**125) -> Tensor:
    """Random bit patterns below `largest`: every magnitude alike, subnormals among them."""
    raw = torch.randint(-(2**31), 2**31, (4 * count,), generator=rng(seed)).to(torch.int32)
    numbers = raw.view(torch.float32)
    return numbers[numbers.abs() < largest][:count]


def subnormals(count: int, seed: int = 0) -> Tensor:
    """[count] fp32 below the smallest normal number, 0 perhaps among them."""
    digits = torch.randint(-(2**23), 2**23, (count,), generator=rng(seed))
    return torch.ldexp(digits.double(), torch.tensor(-149)).float()


def pairs(seed: int = 0) -> tuple[Tensor, Tensor]:
    """[2048] fp32 each: pairs whose sum loses something, cancels, ties, or hardly exists."""
    a, near, far = (finite_bits(256, seed + i) for i in range(3))
    a = a[:256]
    steps = torch.randint(-3, 4, (256,), generator=rng(seed))
    sixteen = normals(256, seed=seed)
    groups = [
        (a, near),
        # unrelated magnitudes
        (normals(256, seed=seed) * 1e30, normals(256, seed=seed + 1) * 1e-30),
        # 0 to 3 ulp of cancellation
        (a, -(a.view(torch.int32) + steps.to(torch.int32)).view(torch.float32)),
        # halves of an ulp: ties
        (a, torch.ldexp(torch.sign(far), torch.frexp(a).exponent - 25)),
        # within 24 bits of each other, where every bit of the error counts
        (normals(256, seed=seed), normals(256, seed=seed + 2) * 2.0 ** -steps.float().mul(6).abs()),
        # subnormals
        (subnormals(256, seed), subnormals(256, seed + 1) * 3),
        # numbers of 16 bits
        (sixteen.half().float(), far.bfloat16().float()),
        (torch.tensor([0.0, -0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-149), 3.0]).repeat(32),
         torch.tensor([0.0, 0.0, -0.0, -0.0, 1.0, -(2.0**-149), 2.0**-149, -0.0]).repeat(32)),
    ]  # fmt: skip
    return torch.cat([x for x, _ in groups]), torch.cat([y for _, y in groups])


def below_last_bit(x: Tensor, seed: int = 0) -> Tensor:
    """Random numbers of at most half an ulp of x: what a compensation of x may be."""
    ulp = torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent - 24)
    return ulp * (uniforms(*x.shape, seed=seed) - 0.5)


def ill_conditioned(count: int, condition: float, seed: int = 0) -> Tensor:
    """[count] fp32 whose sum of magnitudes is `condition` times the magnitude of its sum.

    The first half has random exponents; the second cancels what there is so far down to a falling
    magnitude, and the last numbers set the sum. Shuffled.

    Source: Ogita, Rump, Oishi, SIAM J. Sci. Comput. 26 (2005), 1955-1988, algorithm 6.1, for sums.
    """
    bits = math.log2(condition)
    half = count // 2
    exponents = (uniforms(half, seed=seed) * bits).round()
    exponents[0], exponents[-1] = bits, 0
    numbers = torch.ldexp(normals(half, seed=seed + 1), exponents).tolist()
    total = sum(map(Fraction, numbers), Fraction(0))
    for i, wanted in enumerate(normals(count - half, seed=seed + 2).tolist()):
        wanted *= 2.0 ** (bits * (1 - (i + 1) / (count - half)))
        if i >= count - half - 3:
            wanted = math.fsum(map(abs, numbers)) / condition
        number = torch.tensor(wanted - float(total), dtype=torch.float32).item()
        numbers.append(number)
        total += Fraction(number)
    order = torch.randperm(count, generator=rng(seed))
    return torch.tensor(numbers, dtype=torch.float32)[order]


def condition(x: Tensor) -> float:
    """Sum of magnitudes over magnitude of the sum of all elements, exactly enough."""
    return math.fsum(x.abs().tolist()) / abs(math.fsum(x.tolist()))


def exact_sums(x: Tensor) -> Tensor:
    """[M, N] fp32 -> [M] float64: sum over the columns, rounded once."""
    return torch.tensor([math.fsum(row) for row in x.tolist()], dtype=torch.float64)


def fractions(x: Tensor) -> list[Fraction]:
    return [Fraction(number) for number in x.tolist()]

"""Whole rows of attention: hostile scores, exact answers, the error bounds of blocks/README.md."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from block_device import Device
from hostile_numbers import U, normals, rng, subnormals, uniforms
from softmax_kernels import attend_kernel
from torch import Tensor

M = N = Dv = 16
NEG_INF = -math.inf
LN2 = math.log(2.0)

ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Unit roundoff of the dtypes that weights are rounded to."""


@dataclass(frozen=True)
class Variant:
    """One choice of the constexpr arguments of `online_update`, and of how often it is folded."""

    dtype: torch.dtype
    METHOD: str
    SEGMENT: int = 1
    SPLIT: bool = False
    NATURAL: bool = False
    WITH_LSE: bool = True
    comp_dtype: torch.dtype = torch.float32
    NATURAL_SCORES: bool = False

    def __str__(self) -> str:
        names = [str(self.dtype).removeprefix("torch."), self.METHOD]
        names += [f"of {self.SEGMENT}"] * (self.METHOD == "segment")
        names += ["split"] * self.SPLIT
        names += ["natural"] * self.NATURAL
        names += ["natural scores"] * self.NATURAL_SCORES
        names += ["no LSE"] * (not self.WITH_LSE)
        names += ["bf16 comp"] * (self.comp_dtype == torch.bfloat16)
        return " ".join(names)

    @property
    def sums_rounded_weights(self) -> bool:
        """Whether the divisor is the sum of the weights as rounded to 16 bits."""
        return self.dtype != torch.float32 and self.METHOD != "plain" and not self.SPLIT

    @property
    def unit(self) -> float:
        """A log2 unit in those of the scores that this variant takes."""
        return LN2 if self.NATURAL or self.NATURAL_SCORES else 1.0

    def scores(self, scores: Tensor) -> Tensor:
        """Scores in log2 units (of any dtype) as this variant takes them, fp32."""
        return (scores * self.unit).float()

    def run(
        self, device: Device, scores: Tensor, values: Tensor, parts: int = 0
    ) -> tuple[Tensor, Tensor]:
        """(out, lse) of scores [rows, Sk], log2 units, and values [Sk, columns], both in fp32.

        parts: 0 is one pass; otherwise so many states, merged in order.
        """
        import triton.language as tl

        (rows, Sk), (_, columns) = scores.shape, values.shape
        args = {
            "scores_ptr": self.scores(scores), "values_ptr": values.to(self.dtype),
            "parts": max(parts, 1), "keys": Sk // max(parts, 1),
        }  # fmt: skip
        out, lse = device.run(
            attend_kernel, args, {"out_ptr": (rows, columns), "lse_ptr": (rows,)},
            M=rows, N=N, Dv=columns, METHOD=self.METHOD, SEGMENT=self.SEGMENT, SPLIT=self.SPLIT,
            WITH_LSE=self.WITH_LSE, NATURAL=self.NATURAL, NATURAL_SCORES=self.NATURAL_SCORES,
            COMP_DTYPE=tl.bfloat16 if self.comp_dtype == torch.bfloat16 else tl.float32,
            MERGE=parts > 0,
        )  # fmt: skip
        return out, lse


@dataclass(frozen=True)
class Exact:
    """Softmax over the scores that a variant takes, and what its bounds are made of, in float64."""

    weights: Tensor
    """[M, Sk], 1 for the row's largest score."""
    values: Tensor
    top: Tensor
    """[M, 1] largest score, 0 where a row sees nothing."""
    depth: Tensor
    """[M, Sk] log2 units below the row's largest score, 0 where hidden."""

    @classmethod
    def of(cls, scores: Tensor, values: Tensor, variant: Variant) -> Exact:
        """The answer to what `variant.run` is asked with the same scores and values."""
        exact = variant.scores(scores).double() / variant.unit
        top = exact.amax(1, keepdim=True)
        top = torch.where(top == NEG_INF, 0.0, top)
        depth = top - exact
        weights = torch.exp2(-depth)
        depth = torch.where(weights > 0, depth, 0.0)
        return cls(weights, values.to(variant.dtype).double(), top, depth)

    @property
    def total(self) -> Tensor:
        """[M, 1] sum of weights, 1 where a row sees nothing."""
        total = self.weights.sum(1, keepdim=True)
        return torch.where(total == 0, 1.0, total)

    @property
    def out(self) -> Tensor:
        return self.weights @ self.values / self.total

    @property
    def lse(self) -> Tensor:
        lse = self.top * LN2 + self.total.log()
        return torch.where(self.weights.sum(1, keepdim=True) == 0, NEG_INF, lse)[:, 0]

    def mean(self, x: Tensor) -> Tensor:
        """Weighted mean of x [Sk, Dv] or [M, Sk, Dv]."""
        x = x.expand(len(self.weights), -1, -1)
        return torch.einsum("mn,mnd->md", self.weights, x) / self.total


def weight_error(exact: Exact) -> Tensor:
    """[M, Sk] relative error of a weight: exp2 or exp itself, and the roundings of its argument.

    The argument may be as much as 15 below what it is relative to the top: pivots are rounded up,
    and lowered for fp16. HFusion's exp2 multiplies it by ln 2 first, a GPU's exp by log2(e).
    """
    return U * (4 + 2 * (exact.depth + 15))


def out_bound(variant: Variant, exact: Exact, tiles: int) -> Tensor:
    """[M, Dv]: how far `out` may be from the exact answer."""
    deviation = (exact.values - exact.out[:, None, :]).abs()  # [M, Sk, Dv]
    size = exact.mean(exact.values.abs())
    per_weight = weight_error(exact)[:, :, None].expand_as(deviation)
    bound = exact.mean(per_weight * deviation)
    within = 2 * U * (N + 1)
    if variant.METHOD == "plain":
        bound += tiles * within * size + (N + tiles) * U * exact.out.abs()
    else:
        bf16 = variant.comp_dtype == torch.bfloat16
        # SPLIT: a second product of each tile, also on top of what comp holds
        products = 2 if variant.SPLIT else 1
        if variant.METHOD == "segment":
            within *= variant.SEGMENT * products
        elif variant.SPLIT:
            within *= 1 + ROUNDOFF[variant.dtype]
        across = 2 * U + 2 * (N + 2) * products * tiles * U**2
        across += tiles * 2.0**-33 if bf16 else 0.0
        bound += (within + across) * size + (N + 2 + 2 * tiles * U) * U * exact.out.abs()
    if variant.dtype != torch.float32:
        roundoff = ROUNDOFF[variant.dtype] ** (2 if variant.SPLIT else 1)
        spread = deviation if variant.sums_rounded_weights else exact.values.abs()
        bound += exact.mean(torch.as_tensor(spread)) * roundoff / (1 - roundoff)
        if variant.dtype == torch.float16:
            # fp16 subnormals, 14 below the top, or 13 where pivots are whole numbers
            lost = 2.0**-38 if variant.SPLIT else 2.0**-39
            bound += (lost * torch.as_tensor(spread).sum(-2)) / exact.total
        if not variant.SPLIT:
            # every new maximum rounds both sums once more
            bound += 2 * tiles * U * (size + exact.out.abs())
    return bound + 3 * U * exact.out.abs() + 2.0**-120


def lse_bound(variant: Variant, exact: Exact, tiles: int) -> Tensor:
    """[M]: how far `lse` may be from the exact answer."""
    relative = (exact.weights * weight_error(exact)).sum(1) / exact.total[:, 0]
    relative += (N + (tiles if variant.METHOD == "plain" else 4)) * U
    if variant.dtype != torch.float32 and not variant.SPLIT:
        relative += tiles * 40 * U
        if not variant.WITH_LSE and variant.sums_rounded_weights:
            relative += ROUNDOFF[variant.dtype]
    pivot = (exact.top[:, 0].abs() + 15) * LN2
    return relative + 3 * U * pivot + 3 * U * exact.total[:, 0].log() + 4 * U


def hostile_scores(Sk: int) -> dict[str, Tensor]:
    """16 named rows of scores, log2 units, that some softmax gets wrong."""
    keys = torch.arange(Sk)
    noise = normals(M, Sk, seed=1)
    ramp = torch.linspace(0, 1, Sk)
    first = keys < N
    scores = {
        "normal": noise[0],
        "wide": noise[1] * 8,
        "rising by 1": ramp + 0.3,
        "rising by 50": ramp * 50 - 20,
        "falling by 50": noise[2] - ramp * 50,
        "nothing visible": torch.full((Sk,), NEG_INF),
        "first tile hidden": noise[3].masked_fill(first, NEG_INF),
        "every other tile hidden": noise[4].masked_fill(keys // N % 2 == 0, NEG_INF),
        "half the keys hidden": noise[5].masked_fill(keys % 2 == 0, NEG_INF),
        "only the last key": torch.where(keys == Sk - 1, noise[6], NEG_INF),
        "one key, score -0": torch.where(keys == 3, -0.0, NEG_INF),
        "1e30 beside -1e30": torch.where(keys % 5 == 0, 1e30, -1e30),
        "close to 2**26": 2.0**26 + 8 * (noise[7] * 2).round(),
        "lowest numbers": torch.full((Sk,), torch.finfo(torch.float32).min),
        "subnormal": subnormals(Sk, seed=2),
        # a key far above the rest, whose weights together still count
        "a sink": torch.where(keys == 20, 6.0, noise[8] * 0.001 - 16.7),
    }
    assert len(scores) == M
    return scores


def hostile_values(Sk: int) -> Tensor:
    """[Sk, Dv]: signs, positive, constant, zero, wide range; key 20, the sink's, is 0."""
    values = normals(Sk, Dv, seed=3)
    values[:, :4] = uniforms(Sk, 4, seed=4)
    values[:, 4], values[:, 5] = 0.0, 0.71
    values[:, 6] *= 2.0 ** torch.randint(-8, 9, (Sk,), generator=rng(5))
    values[20, :12] = 0.0
    return values

"""The accuracy gate: a result is held against float64 on a sample of its rows before it is timed.

The budget is that of the tests, `flashasc.testing.error_budget`: twice the error of plain PyTorch
in the inputs' own dtype on the same rows, plus one rounding of the output. In float32 plain PyTorch
adds in two orders, the library's and one by one, of which the worse counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from flashasc.testing import (
    eager_attention,
    error_budget,
    exact_attention,
    relative_error,
    share_correctly_rounded,
)

from .cases import AttentionCase, GemmCase, ReductionCase

SAMPLED = 32
"""Rows of a head, or of a matrix, that are looked at, and no more heads or sequences than 3."""
EPS = 1e-6
"""Of the norms."""


class WrongResult(AssertionError):
    """A result is over its error budget, or not finite: it has no time."""


class Quality(NamedTuple):
    """How right a result is, on the sample."""

    relative_error: float
    correctly_rounded: float
    """Share of the outputs that are the exact ones, rounded once."""
    error_of_budget: float
    """Largest error as a share of what is allowed."""


@dataclass(frozen=True)
class Expected:
    """What a result must be, on a sample."""

    exact: Tensor
    """float64."""
    eager: tuple[Tensor, ...]
    """The same by plain PyTorch in the dtype of the inputs, in one order of addition or more."""
    sample: Callable[[Tensor], Tensor]
    """Cuts the sample from a whole result."""

    def check(self, out: Tensor) -> Quality:
        """How right a result is.

        Raises:
            WrongResult: the largest error is over the budget, or something is not finite.
        """
        if not bool(torch.isfinite(out).all()):
            raise WrongResult("something in the result is not finite")
        found = self.sample(out)
        budget = max(error_budget(self.exact, eager, out.dtype) for eager in self.eager)
        largest = float((found.double() - self.exact).abs().max())
        if not largest <= budget:
            raise WrongResult(f"error {largest:.3g} is over the budget {budget:.3g}")
        rounded = share_correctly_rounded(found, self.exact)
        return Quality(relative_error(found, self.exact), rounded, largest / budget)


class AttentionInputs(NamedTuple):
    """Tensors of one call: [B, H, S, D], packed [tokens, H, D]."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens: Tensor | None
    """[sequences + 1] int32, of packed sequences."""


def attention_inputs(case: AttentionCase, device: str, seed: int = 0) -> AttentionInputs:
    """Standard normal q, k and v, drawn on the device."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(H: int, S: int) -> Tensor:
        shape = (sum(case.lengths), H) if case.lengths else (case.B, H, S)
        return torch.randn(
            *shape, case.D, generator=generator, device=device, dtype=torch.float32
        ).to(case.dtype)

    q, k, v = draw(case.Hq, case.Sq), draw(case.Hk, case.Sk), draw(case.Hk, case.Sk)
    cu_seqlens = None
    if case.lengths:
        ends = torch.tensor([0, *case.lengths]).cumsum(0)
        cu_seqlens = ends.to(device, torch.int32)
    return AttentionInputs(q, k, v, cu_seqlens)


def expected_attention(case: AttentionCase, inputs: AttentionInputs) -> Expected:
    """Exact rows of the first, the last and the longest sequence, each of another head."""
    sequences = case.sequences
    longest = max(range(len(sequences)), key=lambda b: sequences[b])
    starts = [sum(n for n, _ in sequences[:b]) for b in range(len(sequences))]
    draw = random.Random(0)
    places: list[tuple[int, int, list[int]]] = []
    orders = (False, True) if case.dtype == torch.float32 else (False,)
    exact: list[Tensor] = []
    eager: list[list[Tensor]] = [[] for _ in orders]
    for b in sorted({0, longest, len(sequences) - 1}):
        Sq, Sk = sequences[b]
        h = draw.randrange(case.Hq)
        rows = sorted({0, Sq - 1, *draw.sample(range(Sq), min(Sq, SAMPLED - 2))})
        places.append((b, h, rows))
        q, k, v = (
            _sequence(x, b, starts[b], n, case)[None, head : head + 1]
            for x, n, head in (
                (inputs.q, Sq, h),
                (inputs.k, Sk, h * case.Hk // case.Hq),
                (inputs.v, Sk, h * case.Hk // case.Hq),
            )
        )
        mask = torch.zeros(len(rows), Sk, dtype=torch.bool)
        for r, i in enumerate(rows):
            keys = case.seen(i, Sq, Sk)
            mask[r, keys.start : keys.stop] = True
        visible = mask.to(q.device)
        q = q[:, :, rows]
        exact.append(exact_attention(q, k, v, mask=visible).out[0, 0])
        for parts, in_order in zip(eager, orders):
            result = eager_attention(q, k, v, in_order=in_order, mask=visible)
            parts.append(result.out[0, 0])

    def sample(out: Tensor) -> Tensor:
        parts = (
            _sequence(out, b, starts[b], sequences[b][0], case)[h][rows] for b, h, rows in places
        )
        return torch.cat(list(parts))

    return Expected(torch.cat(exact), tuple(torch.cat(parts) for parts in eager), sample)


def _sequence(x: Tensor, b: int, start: int, n: int, case: AttentionCase) -> Tensor:
    """[H, S, D] of one sequence."""
    return x[start : start + n].transpose(0, 1) if case.lengths else x[b]


def gemm_inputs(case: GemmCase, device: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Factors in [0, 1): every rounding of a plain sum may go one way."""
    generator = torch.Generator(device).manual_seed(seed)
    a, b = (
        torch.rand(n, case.K, generator=generator, device=device).to(case.dtype)
        for n in (case.M, case.N)
    )
    return a, b.mT.contiguous()


def expected_gemm(a: Tensor, b: Tensor) -> Expected:
    """Some rows of a @ b."""
    rows = _rows(a.shape[0])
    some = a[rows]
    eager = [some @ b]
    if a.dtype == torch.float32:
        total = torch.zeros_like(eager[0])
        for i in range(a.shape[1]):
            total += some[:, i, None] * b[i]
        eager.append(total)
    return Expected(some.double() @ b.double(), tuple(eager), lambda out: out[rows])


def reduction_inputs(case: ReductionCase, device: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """x [rows, columns], positive where it is summed and normal elsewhere; weight [columns]."""
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.empty(case.rows, case.columns, device=device, dtype=case.dtype)
    if case.op == "sum":
        x.uniform_(generator=generator)
    else:
        x.normal_(generator=generator)
    weight = torch.rand(case.columns, generator=generator, device=device).to(case.dtype)
    return x, weight


def torch_reduction(case: ReductionCase, x: Tensor, weight: Tensor) -> Tensor:
    """The reduction as PyTorch has it, in the dtype of x."""
    match case.op:
        case "sum":
            return x.sum(-1)
        case "var":
            return x.var(-1)
        case "logsumexp":
            return x.logsumexp(-1)
        case "softmax":
            return x.softmax(-1)
        case "rms_norm":
            return F.rms_norm(x, (case.columns,), weight, EPS)
        case "layer_norm":
            return F.layer_norm(x, (case.columns,), weight, eps=EPS)


def expected_reduction(case: ReductionCase, x: Tensor, weight: Tensor) -> Expected:
    """Some rows of the reduction."""
    rows = _rows(case.rows)
    exact = torch_reduction(case, x[rows].double(), weight.double())
    return Expected(exact, (torch_reduction(case, x[rows], weight),), lambda out: out[rows])


def _rows(count: int) -> list[int]:
    draw = random.Random(0)
    return sorted({0, count - 1, *draw.sample(range(count), min(count, SAMPLED - 2))})

"""States of the online softmax in memory, and one update of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton.language as tl
from block_device import Device
from hostile_numbers import below_last_bit, normals, rng, uniforms
from softmax_kernels import update_kernel
from torch import Tensor

M = N = Dv = 16
NEG_INF = -math.inf
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@dataclass(frozen=True)
class State:
    """Rows [..., 5, M] (pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp), acc and comp."""

    rows: Tensor
    acc: Tensor
    comp: Tensor

    @property
    def pivot(self) -> Tensor:
        return self.rows[..., 0, :]

    @property
    def row_sum(self) -> Tensor:
        return self.rows[..., 1, :].double() + self.rows[..., 2, :].double()

    @property
    def lse_sum(self) -> Tensor:
        return self.rows[..., 3, :].double() + self.rows[..., 4, :].double()

    @property
    def total(self) -> Tensor:
        return self.acc.double() + self.comp.double()

    def arguments(self) -> dict[str, Tensor]:
        return {"rows_ptr": self.rows, "acc_ptr": self.acc, "comp_ptr": self.comp}


def outputs(prefix: str = "out_", lead: tuple[int, ...] = ()) -> dict[str, tuple[int, ...]]:
    shapes = {"rows_ptr": (*lead, 5, M), "acc_ptr": (*lead, M, Dv), "comp_ptr": (*lead, M, Dv)}
    return {prefix + name: shape for name, shape in shapes.items()}


def random_state(pivot: Tensor, seed: int = 0) -> State:
    """Sums of about 2**14, whose compensations weigh more than the rounding of a tile."""
    sums = 2.0**14 * (1 + uniforms(2, M, seed=seed))
    comps = below_last_bit(sums, seed=seed + 1)
    rows = torch.stack([pivot, sums[0], comps[0], sums[1], comps[1]])
    acc = 2.0**14 * normals(M, Dv, seed=seed + 2)
    # numbers of bf16, in which it may be kept
    comp = below_last_bit(acc, seed=seed + 3).bfloat16().float()
    return State(rows, acc, comp)


def drop(dtype: torch.dtype) -> float:
    """log2 units by which the pivot lies below the row's maximum."""
    return 14.0 if dtype == torch.float16 else 0.0


def step(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(top, scores, values): old pivots 0; visible keys score exactly top; values whole numbers."""
    top = torch.tensor([0.0, 1, 3, 20, 100, 140, 0, 1, 2, 5, 7, 11, 1, 1, 2, NEG_INF])
    visible = torch.randint(0, 2, (M, N), generator=rng(seed)).bool()
    visible[:, 3] = True
    visible[4] = False
    scores = torch.where(visible, top[:, None], NEG_INF)
    values = torch.randint(-8, 9, (N, Dv), generator=rng(seed + 1)).float()
    return top, scores, values


def run_update(
    device: Device,
    state: State,
    scores: Tensor,
    values: Tensor,
    METHOD: str,
    COMP_DTYPE: str,
    SPLIT: bool = False,
    NATURAL: bool = False,
) -> State:
    args = {**state.arguments(), "scores_ptr": scores, "values_ptr": values}
    return State(
        *device.run(
            update_kernel, args, outputs(), M=M, N=N, Dv=Dv, METHOD=METHOD, SPLIT=SPLIT,
            NATURAL=NATURAL, COMP_DTYPE=getattr(tl, COMP_DTYPE),
        )
    )  # fmt: skip

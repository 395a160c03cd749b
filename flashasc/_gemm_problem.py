"""The facts of one matrix product, as validated: what every later layer reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Product = Literal["ieee", "hf32", "tf32", "tf32x3", "bf16x3", "bf16x6", "fp16x3", "fp16x6"]
"""How float32 factors are multiplied; 16-bit ones always multiply exactly."""

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


@dataclass(frozen=True)
class GemmProblem:
    """One validated product activation(a @ b + bias) + residual.

    a is [*batch, M, K], b is [*batch, K, N], the batches broadcast.
    """

    batch: tuple[int, ...]
    """Of the result."""
    M: int
    N: int
    K: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    device: torch.device
    compensated: bool
    product: Product = "ieee"
    activation: Activation | None = None
    has_bias: bool = False
    has_residual: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (*self.batch, self.M, self.N)

    @property
    def finished(self) -> bool:
        """Whether anything is done to the finished sums."""
        return self.has_bias or self.has_residual or self.activation is not None

    @property
    def empty(self) -> bool:
        """Whether nothing is multiplied: no element of the result, or none to sum."""
        return 0 in (*self.shape, self.K)


def gemm_problem(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: Activation | None,
    compensated: bool,
    product: Product,
    out_dtype: torch.dtype,
) -> GemmProblem:
    """Gather the facts of operands that fit together: [*batch, M, K] and [*batch, K, N]."""
    return GemmProblem(
        batch=tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])),
        M=a.shape[-2],
        N=b.shape[-1],
        K=a.shape[-1],
        dtype=a.dtype,
        out_dtype=out_dtype,
        device=a.device,
        compensated=compensated,
        product=product,
        activation=activation,
        has_bias=bias is not None,
        has_residual=residual is not None,
    )

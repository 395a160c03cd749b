"""Matrix products in plain PyTorch, by the same algorithm; the kernels' is `blocks.gemm`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .._gemm_problem import GemmProblem
from .products import full_precision_products, working_dtype

_TILE_K = 256
"""Products that PyTorch adds up by itself, in an order of its own."""

_PARTS: dict[str, tuple[torch.dtype, int, float]] = {
    "bf16x3": (torch.bfloat16, 2, 1.0),
    "bf16x6": (torch.bfloat16, 3, 1.0),
    "fp16x3": (torch.float16, 2, 2.0**11),
    "fp16x6": (torch.float16, 3, 2.0**11),
}
"""dtype and number of the parts that a factor is split in, and by how much each is scaled."""

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def gemm(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, problem: GemmProblem
) -> Tensor:
    """activation(a @ b + bias) + residual.

    Args:
        a: [*batch, M, K]; its batch broadcasts, like those of b and residual.
        b: [*batch, K, N].
        bias: [N], or None.
        residual: broadcasts to [*batch, M, N], or None.
        problem: the facts of the call. Its product is "ieee" or a split one.

    Returns:
        [*batch, M, N] of the problem's out_dtype, rounded once.
    """
    dtype = working_dtype(problem.dtype)
    multiply = _split_product if problem.product in _PARTS else _product
    acc = a.new_zeros(problem.shape, dtype=dtype)
    comp = torch.zeros_like(acc)
    with full_precision_products(problem.device):
        for k in range(0, problem.K, _TILE_K):
            a_tile = a[..., k : k + _TILE_K].to(dtype)
            b_tile = b[..., k : k + _TILE_K, :].to(dtype)
            x = multiply(a_tile, b_tile, problem.product)
            if problem.compensated:
                acc, comp = _kahan_add(acc, comp, x)
            else:
                acc = acc + x
    total = acc + comp
    if bias is not None:
        total = total + bias.to(dtype)
    if problem.activation is not None:
        total = _ACTIVATIONS[problem.activation](total)
    if residual is not None:
        total = total + residual.to(dtype)
    return total.to(problem.out_dtype)


def _kahan_add(acc: Tensor, comp: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x + comp
    total = acc + x
    comp = x.sub_(acc.sub_(total).neg_())
    # kept, inf - inf would turn an honest infinity into NaN on the next step
    return total, comp.masked_fill_(~total.isfinite(), 0.0)


def _product(a: Tensor, b: Tensor, product: str) -> Tensor:
    return a @ b


def _split_product(a: Tensor, b: Tensor, product: str) -> Tensor:
    """a @ b as `blocks.splits.split_dot_add` adds it up; products of 16-bit numbers are exact."""
    dtype, count, scale = _PARTS[product]
    a_parts, b_parts = (_split(x, dtype, count, scale) for x in (a, b))
    low = torch.zeros((), device=a.device)
    for order in range(count - 1, 0, -1):
        pairs = range(order + 1)
        low = (low + sum(a_parts[i] @ b_parts[order - i] for i in pairs)) / scale
    # beside an infinite first part the others are NaN
    return a_parts[0] @ b_parts[0] + low.masked_fill(~low.isfinite(), 0.0)


def _split(x: Tensor, dtype: torch.dtype, count: int, scale: float) -> list[Tensor]:
    parts = []
    for _ in range(count):
        parts.append(x.to(dtype).to(x.dtype))
        x = (x - parts[-1]) * scale
    return parts

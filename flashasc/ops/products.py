"""Matrix products whose error does not grow with the length of their sums."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .._arguments import autocast
from .._configs import GemmTile
from .._dispatch import Impl, Plan
from .._gemm_problem import Activation, Product
from .._validate import validate_bmm, validate_linear, validate_matmul
from .._validate.products import Choices
from ._gemm_op import Call, gemm

__all__ = ["bmm", "explain", "linear", "matmul"]

Compensated = bool | Literal["auto"]


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    product: Product = "ieee",
    impl: Impl = "auto",
) -> Tensor:
    """a @ b, with an error that does not grow with the length K of its sums.

    Args:
        a: [*batch, M, K] or [K] float16, bfloat16, float32 or float64, any strides.
        b: [*batch, K, N] or [K] of the same dtype and device. Batches broadcast, as in
            `torch.matmul`.
        compensated: sums over K with Kahan's compensation, or plain float32 ones. "auto":
            compensated from K = 4096 on, see `flashasc._configs.compensation`.
        out_dtype: dtype of the result: a's (None) or torch.float32.
        product: how float32 numbers are multiplied. "ieee": in float32, on every target. "hf32" on
            Ascend, "tf32" and "tf32x3" on NVIDIA: that target's shorter products. "bf16x3",
            "bf16x6", "fp16x3", "fp16x6": as three or six products of 16-bit parts, on every target;
            `blocks/splits.py` has their bounds, and the range of numbers for which they hold:
            beyond it results lose digits, and of large numbers are inf or NaN. 16-bit numbers
            always multiply exactly.
        impl: "auto": the kernel on an accelerator, the reference for CPU tensors and float64.
            "triton": the kernel; for CPU tensors it runs as lowered for Ascend, natively.
            "reference": plain PyTorch. An explicit choice is never replaced.

    Returns:
        [*batch, M, N], contiguous; without M or N where a or b has one dimension.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it and the way out.
        NotImplementedError: a product, dtype or device that the chosen implementation has not.
        ImportError: a kernel is needed and no Triton is installed.
        RuntimeError: a kernel is needed and the Triton installed is the wrong one, or damaged.

    K = 0 gives zeros. NaN and inf reach the elements that they reach in `torch.matmul`. The bits of
    a kernel's result depend on the row of a, the column of b and nothing else: neither on the batch
    nor on the other rows. A K above 32768 is cut in parts, whose sums take 8 bytes an element of
    the result each until they are merged. Under autocast a and b are cast as in `torch.matmul`.
    Gradients, of any order, are products of the same kind.
    """
    a, b = autocast(a), autocast(b)
    choices = validate_matmul(a, b, compensated, product, out_dtype, impl)
    left, right = _matrices(a, b)
    out: Tensor = gemm(left, right, None, None, None, *_options(choices))
    if right.dim() == 2:
        out = out.reshape(*a.shape[:-1] if a.dim() > 1 else (1,), right.shape[-1])
    if b.dim() == 1:
        out = out.squeeze(-1)
    return out.squeeze(-2 if b.dim() > 1 else -1) if a.dim() == 1 else out


def bmm(
    a: Tensor,
    b: Tensor,
    *,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    product: Product = "ieee",
    impl: Impl = "auto",
) -> Tensor:
    """Products of [B, M, K] and [B, K, N] matrices, one by one: `matmul` of exactly these shapes.

    Args:
        a: [B, M, K], any strides.
        b: [B, K, N] of the same dtype and device.
        compensated, out_dtype, product, impl: see `matmul`.

    Returns:
        [B, M, N], contiguous.

    Raises:
        As `matmul`.
    """
    a, b = autocast(a), autocast(b)
    choices = validate_bmm(a, b, compensated, product, out_dtype, impl)
    out: Tensor = gemm(a, b, None, None, None, *_options(choices))
    return out


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    product: Product = "ieee",
    impl: Impl = "auto",
) -> Tensor:
    """activation(x @ weight^T + bias) + residual, in one kernel, rounded once.

    Args:
        x: [*, in] float16, bfloat16, float32 or float64, any strides.
        weight: [out, in] of the same dtype and device, as are bias and residual.
        bias: [out].
        activation: "relu", "gelu", "gelu_tanh" (its approximation) or "silu".
        residual: broadcasts to [*, out]. Added last.
        compensated, out_dtype, product, impl: see `matmul`.

    Returns:
        [*, out], contiguous.

    Raises:
        As `matmul`.
    """
    x, weight, bias, residual = (autocast(t) for t in (x, weight, bias, residual))
    choices = validate_linear(
        x, weight, bias, activation, residual, compensated, product, out_dtype, impl
    )
    shape = (*x.shape[:-1], weight.shape[0])
    if residual is not None and residual.dim() > 1:
        residual = residual.expand(shape).flatten(0, -2)
    out: Tensor = gemm(
        (x[None] if x.dim() == 1 else x).flatten(0, -2),
        weight.mT,
        bias,
        residual,
        activation,
        *_options(choices),
    )
    return out.reshape(shape)


def explain(
    a: Tensor,
    b: Tensor,
    *,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    product: Product = "ieee",
    impl: Impl = "auto",
) -> Plan[GemmTile]:
    """What `matmul` would run for these arguments, and why. Computes nothing.

    Args:
        a, b, ...: as for `matmul`. A `linear` of x and a weight is `matmul(x, weight.mT)`.

    Returns:
        The plan: route, reason, target, and the row of the tile table, which says whether the sums
        are compensated. `print` it.

    Raises:
        What `matmul` would raise.
    """
    a, b = autocast(a), autocast(b)
    choices = validate_matmul(a, b, compensated, product, out_dtype, impl)
    left, right = _matrices(a, b)
    return Call(left, right, None, None, None, *_options(choices)).plan()


def _matrices(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The factors as batches of matrices: many matrices times one are one tall matrix."""
    left, right = (a[None] if a.dim() == 1 else a), (b[:, None] if b.dim() == 1 else b)
    return (left.flatten(0, -2) if right.dim() == 2 else left), right


def _options(choices: Choices) -> tuple[bool | None, Product, torch.dtype, Impl]:
    """The last arguments of the operator."""
    compensated = None if choices.compensated == "auto" else choices.compensated
    return compensated, choices.product, choices.out_dtype, choices.impl

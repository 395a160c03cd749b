"""Softmax, RMS norm and layer norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .._configs.compensation import REDUCTION_LENGTH
from .._dispatch import Impl
from .._reductions import Mode
from .._validate.reductions import (
    Compensated,
    affine,
    dims_of,
    eps_of,
    method_of,
    normalized_dims,
    result_dtype,
    validate_impl,
    validate_input,
)
from ._normalize_operator import normalize

__all__ = ["layer_norm", "rms_norm", "softmax"]

Shape: TypeAlias = int | Sequence[int]


def softmax(
    x: Tensor,
    dim: int = -1,
    *,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """exp(x) over its sum along one dimension.

    Args:
        x, compensated, out_dtype, impl: see `flashasc.ops.sum`.
        dim: the dimension. Along another than the last the rows are copied.

    Returns:
        Shape of x, contiguous. A row of nothing but -inf, or with a NaN or +inf, is NaN, as in
        torch.

    Raises:
        As `flashasc.ops.sum`.
    """
    validate_input("x", x)
    (axis,) = dims_of(dim, x, none=False) or (0,)
    if x.dim() == 0:
        return softmax(x.view(1), compensated=compensated, out_dtype=out_dtype, impl=impl).view(())
    last = x.dim() - 1
    rows = x.transpose(axis, last)
    result = _normalize("softmax", rows, None, None, 1, 0.0, compensated, out_dtype, impl)
    return result.transpose(axis, last).contiguous()


def rms_norm(
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    *,
    eps: float | None = None,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """x / sqrt(mean(x**2) + eps) * weight over the last dimensions, as torch's rms_norm.

    Squares are not scaled: where they overflow float32, from about 1e19 on, the row comes out 0.

    Args:
        x, compensated, out_dtype, impl: see `flashasc.ops.sum`.
        normalized_shape: the last sizes of x, over which the mean is taken.
        weight: of that shape, any float dtype (float64 with x alone), or None.
        eps: None: the eps of the dtype computed in (float32 for 16-bit x), as in torch.

    Returns:
        Shape of x, contiguous; computed in float32 and rounded once.

    Raises:
        As `flashasc.ops.sum`.
    """
    validate_input("x", x)
    dims = normalized_dims(normalized_shape, x)
    affine("weight", weight, x, dims)
    added = eps_of(eps, torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps)
    return _normalize("rms_norm", x, weight, None, dims, added, compensated, out_dtype, impl)


def layer_norm(
    x: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions.

    The variance is taken in two passes: it does not cancel, however large the mean. A row whose sum
    overflows float32 has no mean there, and is NaN; one whose squared deviations do, from about
    1e19 on, comes out 0.

    Args:
        x, compensated, out_dtype, impl: see `flashasc.ops.sum`.
        normalized_shape: the last sizes of x, over which mean and variance are taken.
        weight, bias: of that shape, any float dtype (float64 with x alone), or None.
        eps: added to the variance.

    Returns:
        Shape of x, contiguous; computed in float32 and rounded once.

    Raises:
        As `flashasc.ops.sum`.
    """
    validate_input("x", x)
    dims = normalized_dims(normalized_shape, x)
    affine("weight", weight, x, dims)
    affine("bias", bias, x, dims)
    added = eps_of(eps, None)
    return _normalize("layer_norm", x, weight, bias, dims, added, compensated, out_dtype, impl)


def _normalize(
    mode: Mode,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    compensated: Any,
    out_dtype: Any,
    impl: Any,
) -> Tensor:
    validate_impl(impl)
    length = math.prod(x.shape[x.dim() - dims :])
    method = method_of(compensated, length, REDUCTION_LENGTH)
    dtype = result_dtype(out_dtype, x)
    result: Tensor = normalize(x, weight, bias, mode, dims, eps, method, dtype, impl)
    return result

"""Sums, means, variances, norms, log-sum-exps and extremes, whose sums keep their digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .._configs.compensation import REDUCTION_LENGTH
from .._dispatch import Impl
from .._validate.reductions import (
    Compensated,
    correction_of,
    dims_of,
    method_of,
    result_dtype,
    some_numbers,
    validate_impl,
    validate_input,
)
from .._validate.scalars import flag
from ._reduce_operator import What, reduce

__all__ = ["amax", "amin", "logsumexp", "mean", "norm", "sum", "var"]

Dims: TypeAlias = int | Sequence[int] | None


def sum(
    x: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Sum along one dimension, several, or all.

    Args:
        x: [...] float16, bfloat16, float32 or float64; any strides.
        dim: what to reduce; None: all dimensions.
        keepdim: keep reduced dimensions with size 1.
        compensated: "auto": compensated from 1024 numbers on, plain below. True: compensated
            (Kahan): off by at most 2 ulp or so of the sum of magnitudes, whatever the length.
            "sum2": as if summed in twice the working precision: right to the last digit even where
            the sum is a millionth of the magnitudes. False: plain.
        out_dtype: None: x's; torch.float32 for the unrounded result.
        impl: "auto": plain PyTorch for CPU tensors and float64, else the Triton kernel; "triton" or
            "reference" as asked, never replaced by the other.

    Returns:
        The sums; over no numbers 0. 16-bit numbers are summed in float32, and rounded once.

    Raises:
        TypeError, ValueError, IndexError: a wrong argument; the message says which and what to do.
        NotImplementedError: no kernel for this device or dtype, or forward-mode derivatives.

    Gradients and second derivatives are PyTorch operations. The same call gives the same bits, and
    a row's do not depend on how many rows there are: sums that need several programs are cut at
    places that depend on a row's length alone, and put together in one order. A tensor that does
    not fold into two dimensions to keep and two to reduce is copied first. Autocast changes
    nothing: sums are float32 anyway, and what they are rounded to is for out_dtype to say.
    """
    return _reduce("sum", x, dim, keepdim, compensated, out_dtype, impl)


def mean(
    x: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Mean along one dimension, several, or all; over no numbers NaN.

    Args, raises and what else there is to say: see `sum`.
    """
    return _reduce("mean", x, dim, keepdim, compensated, out_dtype, impl)


def var(
    x: Tensor,
    dim: Dims = None,
    *,
    correction: float = 1,
    keepdim: bool = False,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Variance along one dimension, several, or all, in two passes: it does not cancel.

    Args:
        x, dim, keepdim, compensated, out_dtype, impl: see `sum`.
        correction: taken off the number of elements in the divisor, as in torch.var; 0 for the
            variance of a whole population.

    Returns:
        The variances. NaN over no numbers, over one where correction is 1, and where the sum of
        the numbers overflows float32, so that they have no mean there.

    Raises:
        As `sum`.
    """
    return _reduce("var", x, dim, keepdim, compensated, out_dtype, impl, correction_of(correction))


def norm(
    x: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Euclidean (L2) norm along one dimension, several, or all; over no numbers 0.

    It overflows or vanishes only where the result does: numbers are scaled by a power of two before
    they are squared. Args, raises and what else there is to say: see `sum`.
    """
    return _reduce("norm", x, dim, keepdim, compensated, out_dtype, impl)


def logsumexp(
    x: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    compensated: Compensated = "auto",
    out_dtype: torch.dtype | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """log(sum(exp(x))) along one dimension, several, or all; over no numbers -inf.

    Args, raises and what else there is to say: see `sum`.
    """
    return _reduce("logsumexp", x, dim, keepdim, compensated, out_dtype, impl)


def amax(
    x: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    impl: Impl = "auto",
) -> Tensor:
    """Largest number along one dimension, several, or all; NaN where there is one.

    Args and raises: see `sum`; a row without numbers is a ValueError. Numbers that share the
    maximum share its gradient.
    """
    return _reduce("amax", x, dim, keepdim, False, None, impl)


def amin(
    x: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    impl: Impl = "auto",
) -> Tensor:
    """Smallest number along one dimension, several, or all; NaN where there is one.

    See `amax`.
    """
    return _reduce("amin", x, dim, keepdim, False, None, impl)


def _reduce(
    what: What,
    x: Tensor,
    dim: Any,
    keepdim: bool,
    compensated: Any,
    out_dtype: Any,
    impl: Any,
    correction: float = 0.0,
) -> Tensor:
    validate_input("x", x)
    dims = dims_of(dim, x)
    flag("keepdim", keepdim)
    validate_impl(impl)
    if what in ("amax", "amin"):
        some_numbers(what, x, dims)
    length = math.prod([x.shape[d] for d in dims])
    method = method_of(compensated, length, REDUCTION_LENGTH)
    dtype = result_dtype(out_dtype, x)
    result: Tensor = reduce(x, what, dims, keepdim, correction, method, dtype, impl)
    return result

"""Everything a caller of a reduction can get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from .derivatives import no_transforms
from .scalars import _is_int, _number, _short, one_of
from .tensors import floating, strided

Compensated: TypeAlias = bool | Literal["auto", "sum2"]
IMPLS = ("auto", "triton", "reference")
_MOST = torch.finfo(torch.float64).max


def validate_input(name: str, x: Any) -> None:
    """The tensor that is reduced."""
    strided(name, x)
    floating(name, x)
    _no_transforms(x)


def validate_impl(impl: Any) -> None:
    """One of the implementations."""
    one_of("impl", impl, IMPLS)


def _no_transforms(tensor: Tensor) -> None:
    no_transforms("flashasc.ops", "torch's own reductions", tensor)


def dims_of(dim: Any, x: Tensor, *, none: bool = True) -> tuple[int, ...]:
    """The dimensions to reduce, not negative, in order.

    Args:
        dim: an int, several, or None for all of them.
        x: the tensor.
        none: whether None is allowed.
    """
    if dim is None and none:
        return tuple(range(x.dim()))
    expected = "an int, a tuple of ints or None" if none else "an int"
    given = (dim,) if _is_int(dim) else dim
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(map(_is_int, given)):
        raise TypeError(f"dim must be {expected}; got {type(dim).__name__} {dim!r}")
    if not none and not _is_int(dim):
        raise TypeError(f"dim must be {expected}; got {dim!r}")
    if not given:
        # as in torch
        return tuple(range(x.dim()))
    rank = max(x.dim(), 1)
    for d in given:
        if not -rank <= d < rank:
            raise IndexError(
                f"dim must be from {-rank} to {rank - 1} for x of {x.dim()} dimensions, "
                f"{tuple(x.shape)}; got {d}"
            )
    found = [int(d) % rank for d in given]
    if len(set(found)) < len(found):
        raise ValueError(f"dim must name each dimension once; got {dim!r}")
    return tuple(sorted(found)) if x.dim() else ()


def method_of(compensated: Any, length: int, threshold: int) -> str:
    """How the sums are kept: "plain", "kahan" or "sum2"."""
    if isinstance(compensated, bool):
        return "kahan" if compensated else "plain"
    if not isinstance(compensated, str):
        raise TypeError(
            f"compensated must be 'auto', True, False or 'sum2'; got {type(compensated).__name__} "
            f"{compensated!r}"
        )
    if compensated not in ("auto", "sum2"):
        raise ValueError(
            f"compensated must be 'auto', True, False or 'sum2'; got {compensated!r}. Kahan's sum "
            "is True, a plain one False"
        )
    if compensated == "sum2":
        return "sum2"
    return "kahan" if length >= threshold else "plain"


def result_dtype(out_dtype: Any, x: Tensor) -> torch.dtype:
    """The dtype of the result."""
    if out_dtype is None:
        return x.dtype
    if not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"out_dtype must be a torch.dtype or None; got {out_dtype!r}")
    if out_dtype not in (x.dtype, torch.float32):
        choices = "torch.float32" if x.dtype == torch.float32 else f"torch.float32 or {x.dtype}"
        raise ValueError(
            f"out_dtype must be {choices} where x is {x.dtype}; got {out_dtype}. Cast the result "
            "instead"
        )
    return out_dtype


def correction_of(correction: Any) -> float:
    """What is taken off the number of elements in a variance."""
    if correction is None:
        raise TypeError("correction must be a number; got None")
    value = _number("correction", correction, "Pass correction.item()")
    if not -_MOST <= value <= _MOST:
        raise ValueError(f"correction must be finite; got {_short(correction)}")
    return float(value)


def eps_of(eps: Any, default: float | None) -> float:
    """What is added to a mean square; None stands for the default, where there is one."""
    if eps is None:
        if default is None:
            raise TypeError("eps must be a number; got None")
        return default
    value = _number("eps", eps, "Pass eps.item()")
    if not 0 <= value <= _MOST:
        raise ValueError(f"eps must be 0 or more and finite; got {_short(eps)}")
    return float(value)


def some_numbers(what: str, x: Tensor, dims: Sequence[int]) -> None:
    """A maximum needs a number to be one of."""
    if 0 in [x.shape[d] for d in dims]:
        raise ValueError(
            f"{what} has no value over no numbers: x is {tuple(x.shape)}, reduced along {dims}. "
            "Leave such rows out"
        )


def normalized_dims(normalized_shape: Any, x: Tensor) -> int:
    """How many last dimensions a norm runs along."""
    shape = (normalized_shape,) if _is_int(normalized_shape) else normalized_shape
    if not isinstance(shape, Sequence) or isinstance(shape, str) or not all(map(_is_int, shape)):
        raise TypeError(
            "normalized_shape must be an int or a tuple of ints; got "
            f"{type(normalized_shape).__name__} {normalized_shape!r}"
        )
    if not shape:
        raise ValueError("normalized_shape must name at least one dimension; got none")
    if len(shape) > x.dim() or tuple(x.shape[x.dim() - len(shape) :]) != tuple(shape):
        raise ValueError(
            f"normalized_shape must be the last sizes of x, {tuple(x.shape)}; got {tuple(shape)}. "
            "x.shape[-1] normalises along the last dimension"
        )
    return len(shape)


def affine(name: str, tensor: Any, x: Tensor, dims: int) -> None:
    """A weight or bias of a norm, or None."""
    if tensor is None:
        return
    strided(name, tensor)
    floating(name, tensor)
    _no_transforms(tensor)
    if tensor.device != x.device:
        raise ValueError(
            f"{name} must be on x's device, {x.device}; got {tensor.device}: move it there with "
            ".to(x.device)"
        )
    expected = tuple(x.shape[x.dim() - dims :])
    if tuple(tensor.shape) != expected:
        raise ValueError(
            f"{name} must have the normalised shape, {expected}; got {tuple(tensor.shape)}"
        )
    if tensor.dtype == torch.float64 and x.dtype != torch.float64:
        raise TypeError(
            f"{name} must not be float64 where x is {x.dtype}: products are formed in float32. "
            f"Cast it with .float()"
        )

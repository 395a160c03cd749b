"""Checks of arguments that are not tensors."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any, get_args

import torch

from .._problem import Precision

# no sequence is longer: a window that reaches as far hides nothing
_UNBOUNDED = 2**31 - 1


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """One of several words."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {allowed}; got {value!r}")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}; got {value!r}")


def choices(precision: Any, impl: Any) -> None:
    """How accurately, and by which implementation."""
    one_of("impl", impl, ("auto", "triton", "reference"))
    one_of("precision", precision, get_args(Precision))


def flag(name: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False; got {type(value).__name__} {value!r}")


def scale_of(scale: Any, D: int, dtype: torch.dtype) -> float:
    """The factor of q @ k^T."""
    if scale is None:
        return 1.0 / math.sqrt(D)
    value = _number("scale", scale, "Multiply q by it, or pass scale.item()")
    largest = _largest(dtype)
    if not -largest <= value <= largest:
        raise ValueError(
            f"scale must be finite and at most {largest:.3g} in size for {dtype} inputs; got "
            f"{_short(scale)}. Scale q instead"
        )
    return float(value)


def softcap_of(softcap: Any, scale: float, dtype: torch.dtype) -> float | None:
    """What scores are capped at, or None."""
    if softcap is None:
        return None
    value = _number("softcap", softcap, "Pass softcap.item()")
    largest = _largest(dtype)
    if not 0 < value <= largest:
        raise ValueError(
            f"softcap must be greater than 0, finite, and at most {largest:.3g} for {dtype} "
            f"inputs; got {_short(softcap)}. None leaves scores uncapped"
        )
    # scores are divided by it
    if not abs(scale) <= largest * value:
        raise ValueError(
            f"softcap must not be so small that scale / softcap exceeds {largest:.3g} for {dtype} "
            f"inputs; got softcap {_short(softcap)} with scale {scale:g}"
        )
    return float(value)


def window_of(window: Any) -> tuple[int | None, int | None]:
    """How many keys a query sees to the left and to the right of its own; None: all."""
    if window is None:
        return None, None
    if not isinstance(window, (tuple, list)):
        raise TypeError(
            "window must be a pair (left, right) of integers or None; got "
            f"{type(window).__name__} {window!r}. A causal window of n keys is window=(n - 1, 0)"
        )
    if len(window) != 2:
        raise ValueError(
            f"window must be a pair (left, right); got {len(window)} values: {window!r}"
        )
    left, right = (_window_side(side, window) for side in window)
    return left, right


def _window_side(side: Any, window: Any) -> int | None:
    if side is None:
        return None
    if not _is_int(side):
        raise TypeError(
            f"window must hold integers or None; got {type(side).__name__} {side!r} in {window!r}"
        )
    if side < 0:
        raise ValueError(
            f"window must hold numbers of keys, 0 or more; got {side} in {window!r}. Where other "
            "libraries write -1 for no bound, write None"
        )
    return None if side >= _UNBOUNDED else _plain_int(side)


def length_of(name: str, value: Any) -> int | None:
    """A largest length, or None."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        raise TypeError(
            f"{name} must be an int or None; got a tensor, whose value would have to be fetched "
            f"from its device. Pass {name}=int(...), or None"
        )
    if not _is_int(value):
        raise TypeError(f"{name} must be an int or None; got {type(value).__name__} {value!r}")
    if value < 0:
        raise ValueError(f"{name} must be 0 or more; got {value}")
    return _plain_int(value)


def out_dtype_of(out_dtype: Any, dtype: torch.dtype, *, of: str = "q") -> torch.dtype:
    """The dtype of the output; `of` is the argument whose dtype decides."""
    if out_dtype is None:
        return dtype
    if not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"out_dtype must be a torch.dtype or None; got {out_dtype!r}")
    if out_dtype not in (dtype, torch.float32):
        choices = "torch.float32" if dtype == torch.float32 else f"torch.float32 or {dtype}"
        raise ValueError(
            f"out_dtype must be {choices} where {of} is {dtype}; got {out_dtype}. Cast the output "
            "instead"
        )
    return out_dtype


def _number(name: str, value: Any, fix: str) -> Any:
    """The number, to be compared before it is made a float: an int may be too large for one."""
    if isinstance(value, torch.Tensor):
        raise TypeError(
            f"{name} must be a Python number; got a tensor, whose value would have to be fetched "
            f"from its device. {fix}"
        )
    if isinstance(value, bool) or not isinstance(
        value, (numbers.Real, torch.SymFloat, torch.SymInt)
    ):
        raise TypeError(f"{name} must be a number or None; got {type(value).__name__} {value!r}")
    exact = (float, numbers.Rational, torch.SymFloat, torch.SymInt)
    # NumPy would compare in float16 what is given in float16, where the limit is infinite
    return value if isinstance(value, exact) else float(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt, numbers.Integral)) and not isinstance(value, bool)


def _plain_int(value: Any) -> int:
    # an int under torch.compile stays a symbol; operator.index would fix its value
    if isinstance(value, (int, torch.SymInt)):
        return value  # type: ignore[return-value]
    return operator.index(value)


def _largest(dtype: torch.dtype) -> float:
    """The largest factor of a score.

    Products of scores and factors are float32, float64 for float64 inputs; with them go log2 units.
    """
    return torch.finfo(torch.promote_types(dtype, torch.float32)).max * math.log(2.0)


def _short(number: Any) -> str:
    text = repr(number)
    return text if len(text) <= 40 else f"{text[:37]}..."

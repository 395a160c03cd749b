"""Rounding: float64 values rounded once, and distances in units in the last place."""

from __future__ import annotations

import torch
from torch import Tensor


def relative_error(out: Tensor, exact: Tensor) -> float:
    """Norm of the error over the norm of the exact result."""
    return float((out.double() - exact).norm() / exact.norm())


def round_once(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values correctly rounded to `dtype`.

    `Tensor.to` goes from float64 to 16 bits through float32, and rounds twice. Here the step to
    float32 rounds to odd, which keeps the second one right (Boldo, Melquiond, 2008).
    """
    if dtype in (torch.float32, torch.float64):
        return exact.to(dtype)
    single = exact.to(torch.float32)
    inexact = single.double() != exact
    too_large = single.double().abs() > exact.abs()
    truncated = torch.where(too_large, torch.nextafter(single, torch.zeros_like(single)), single)
    odd = (truncated.view(torch.int32) | inexact.to(torch.int32)).view(torch.float32)
    return torch.where(exact.isnan(), single, odd).to(dtype)


def share_correctly_rounded(out: Tensor, exact: Tensor) -> float:
    """Share of the elements of `out` that are the float64 result, correctly rounded.

    Args:
        out: [...] float16, bfloat16 or float32.
        exact: [...] float64.

    Returns:
        Between 0 and 1.
    """
    return float((out == round_once(exact, out.dtype)).double().mean())


def ulps(out: Tensor, exact: Tensor) -> Tensor:
    """How many units in the last place of the exact result each element is off.

    Args:
        out: [...] float16, bfloat16 or float32.
        exact: [...] float64.

    Returns:
        [...] float64.
    """
    return (out.double() - exact).abs() / unit_in_last_place(exact, out.dtype)


def unit_in_last_place(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance of neighbouring numbers of `dtype` around each float64 value: [...] float64.

    Below the normal range it is that of the smallest normal number.
    """
    info = torch.finfo(dtype)
    exponent = exact.abs().clamp(min=info.smallest_normal).frexp().exponent
    return torch.ldexp(torch.full_like(exact, info.eps), exponent - 1)

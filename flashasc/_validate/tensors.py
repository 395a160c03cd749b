"""Checks of one tensor at a time: type, dtype, device, shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int32, torch.int64)


def strided(name: str, tensor: Any) -> None:
    """A dense tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor; got {type(tensor).__name__}. torch.as_tensor makes "
            "one of an array"
        )
    if tensor.is_nested:
        raise TypeError(
            f"{name} must be a strided (dense) tensor; got a nested one. "
            "torch.nested.to_padded_tensor makes it dense"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"{name} must be a strided (dense) tensor; got {tensor.layout}. Call .to_dense() on it"
        )


def floating(name: str, tensor: Tensor) -> None:
    """One of the float dtypes that sums are kept of."""
    if tensor.dtype not in FLOATS:
        raise TypeError(
            f"{name} must be float16, bfloat16, float32 or float64; got {tensor.dtype}. Cast it "
            "first"
        )


def on_device_of(name: str, tensor: Tensor, q: Tensor) -> None:
    """On q's device."""
    if tensor.device != q.device:
        raise ValueError(
            f"{name} must be on q's device, {q.device}; got {tensor.device}: move it there with "
            ".to(q.device)"
        )


def mask_tensor(mask: Any, q: Tensor, shape: tuple[int, int, int, int]) -> None:
    """A bool mask that broadcasts to [B, Hq, Sq, Sk]."""
    strided("mask", mask)
    if mask.dtype != torch.bool:
        fix = (
            "what is added to scores is bias=..."
            if mask.dtype.is_floating_point
            else "if non-zero means that a query may see the key, pass mask.bool()"
        )
        raise TypeError(f"mask must be bool, True = may attend; got {mask.dtype}: {fix}")
    on_device_of("mask", mask, q)
    _broadcasts("mask", mask, shape)


def bias_tensor(bias: Any, q: Tensor, shape: tuple[int, int, int, int]) -> None:
    """A float bias that broadcasts to [B, Hq, Sq, Sk]."""
    strided("bias", bias)
    if bias.dtype == torch.bool:
        raise TypeError("bias must be a float tensor; got torch.bool: a bool mask is mask=...")
    floating("bias", bias)
    on_device_of("bias", bias, q)
    _broadcasts("bias", bias, shape)


def slopes_tensor(slopes: Any, q: Tensor, B: int, Hq: int) -> None:
    """ALiBi slopes, [Hq] or [B, Hq]."""
    strided("alibi_slopes", slopes)
    floating("alibi_slopes", slopes)
    on_device_of("alibi_slopes", slopes, q)
    if tuple(slopes.shape) not in ((Hq,), (B, Hq)):
        raise ValueError(
            f"alibi_slopes must be [Hq] = ({Hq},) or [B, Hq] = ({B}, {Hq}); got "
            f"{tuple(slopes.shape)}. Reshape it, one slope a query head"
        )


def sinks_tensor(sinks: Any, q: Tensor, Hq: int) -> None:
    """Sinks, [Hq]."""
    strided("sinks", sinks)
    floating("sinks", sinks)
    on_device_of("sinks", sinks, q)
    if tuple(sinks.shape) != (Hq,):
        raise ValueError(
            f"sinks must be [Hq] = ({Hq},); got {tuple(sinks.shape)}. Reshape it, one logit a "
            "query head"
        )


def lengths_tensor(name: str, lengths: Any, q: Tensor, size: int | None, what: str) -> None:
    """Integers on the device, [size], or of any number but zero."""
    strided(name, lengths)
    if lengths.dtype not in INTEGERS:
        raise TypeError(
            f"{name} must be int32 or int64; got {lengths.dtype}: convert it with .to(torch.int32)"
        )
    if lengths.dim() != 1:
        raise ValueError(
            f"{name} must have 1 dimension, {what}; got {lengths.dim()}: {tuple(lengths.shape)}. "
            "Flatten it"
        )
    on_device_of(name, lengths, q)
    if size is not None and lengths.shape[0] != size:
        raise ValueError(
            f"{name} must have {size} elements, {what}; got {lengths.shape[0]}. Cumulative lengths "
            "start with a 0, plain ones do not"
        )
    if size is None and lengths.shape[0] == 0:
        raise ValueError(
            f"{name} must have at least 1 element, {what}; got none. Cumulative lengths start with "
            "a 0"
        )


def _broadcasts(name: str, tensor: Tensor, shape: tuple[int, int, int, int]) -> None:
    fits = tensor.dim() <= 4 and all(
        size == 1 or size == full
        for size, full in zip(reversed(tensor.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name} must broadcast to [B, Hq, Sq, Sk] = {tuple(shape)}, whatever the layout; got "
            f"{tuple(tensor.shape)}. A size that is the same for all is 1: [B, Sk] becomes "
            f"[B, 1, 1, Sk] by {name}[:, None, None, :]"
        )

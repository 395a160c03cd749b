"""From the arguments of a public call to the facts of the problem."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from ._problem import AttentionProblem
from ._validate import Arguments, validate_attention

__all__ = ["Arguments", "Window", "autocast", "prepare"]

# keys to the left and to the right of a query's own
Window: TypeAlias = tuple[int | None, int | None]


def prepare(call: Arguments) -> tuple[Arguments, AttentionProblem]:
    """The arguments as they are computed with, and the facts of the call.

    Raises:
        What `flashasc.attention` raises for wrong arguments.
    """
    call = call._replace(q=autocast(call.q), k=autocast(call.k), v=autocast(call.v))
    return call, validate_attention(call)


def autocast(tensor: Any) -> Any:
    """The tensor in autocast's dtype where autocast is on; float64 is left alone, as by SDPA."""
    if not isinstance(tensor, Tensor) or tensor.dtype == torch.float64:
        return tensor
    device_type = tensor.device.type
    if not tensor.is_floating_point() or device_type == "meta":
        return tensor
    if not torch.is_autocast_enabled(device_type):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device_type))

"""Derivatives that are asked for and not there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import (
    retrieve_current_functorch_interpreter,
    temporarily_pop_interpreter_stack,
)
from torch.autograd import forward_ad


def no_transforms(name: str, instead: str, *tensors: Any) -> None:
    """Refuse derivatives that operators have no rule for, and would lose without a word.

    Args:
        name: of the function that was called.
        instead: what to use where such derivatives are needed.
        *tensors: all its arguments that could carry a derivative, and None.

    Raises:
        NotImplementedError: a tensor has a tangent, or `torch.func` differentiates by it.
    """
    if torch.compiler.is_compiling():
        # the stack of transforms is not to be seen there, and operators refuse its gradients
        if forward_ad._current_level >= 0 and any(map(_has_tangent, tensors)):
            _refuse("forward", name, instead)
        return
    if forward_ad._current_level < 0 and _functorch.peek_interpreter_stack() is None:
        return
    for tensor in tensors:
        if isinstance(tensor, Tensor) and (mode := _asked_of(tensor)) is not None:
            _refuse(mode, name, instead)


def _asked_of(tensor: Tensor) -> str | None:
    """What some transform, not only the innermost, wants of a tensor: "forward" or "reverse"."""
    if _functorch.peek_interpreter_stack() is None:
        return "forward" if _has_tangent(tensor) else None
    transform = retrieve_current_functorch_interpreter()
    if _functorch.maybe_get_level(tensor) == transform.level():
        if transform.key() == _functorch.TransformType.Jvp and _has_tangent(tensor):
            return "forward"
        if transform.key() == _functorch.TransformType.Grad and tensor.requires_grad:
            return "reverse"
        tensor = _functorch.get_unwrapped(tensor)
    with temporarily_pop_interpreter_stack():
        return _asked_of(tensor)


def _has_tangent(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and forward_ad.unpack_dual(tensor).tangent is not None


def _refuse(mode: str, name: str, instead: str) -> None:
    if mode == "forward":
        what = "forward-mode derivatives (torch.func.jvp, torch.autograd.forward_ad)"
        fix = f"where you need them, use {instead}"
    else:
        what = "derivatives by torch.func (grad, vjp, jacrev, hessian)"
        fix = f"use torch.autograd.grad or .backward() where it has gradients, or {instead}"
    raise NotImplementedError(f"{what} of {name} are not implemented; {fix}")

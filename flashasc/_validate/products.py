"""The check of a matrix product: types, shapes, dtypes and devices only, never values."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .._gemm_problem import Activation, Product
from . import tensors as check
from .derivatives import no_transforms
from .scalars import one_of, out_dtype_of


class Choices(NamedTuple):
    """The options that every product takes, checked."""

    compensated: bool | Literal["auto"]
    product: Product
    out_dtype: torch.dtype
    impl: Literal["auto", "triton", "reference"]


def validate_matmul(
    a: Any, b: Any, compensated: Any, product: Any, out_dtype: Any, impl: Any
) -> Choices:
    """Check the arguments of `flashasc.ops.matmul`.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it, what was expected, what
            was given, and the way out.
        NotImplementedError: derivatives by torch.func or in forward mode.
    """
    choices = _operands("matmul", ("a", a), ("b", b), compensated, product, out_dtype, impl)
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() == 0:
            raise ValueError(
                f"{name} must have at least 1 dimension; got a scalar. Multiply by it with *"
            )
    inner = b.shape[0] if b.dim() == 1 else b.shape[-2]
    if a.shape[-1] != inner:
        raise ValueError(
            f"a's last size and b's {'only' if b.dim() == 1 else 'last but one'} must agree: "
            f"{a.shape[-1]} and {inner}; got a {tuple(a.shape)}, b {tuple(b.shape)}. Transpose one "
            "with .mT: any strides will do"
        )
    _broadcast(a, b)
    return choices


def validate_bmm(
    a: Any, b: Any, compensated: Any, product: Any, out_dtype: Any, impl: Any
) -> Choices:
    """Check the arguments of `flashasc.ops.bmm`; raises as `validate_matmul` does."""
    choices = _operands("bmm", ("a", a), ("b", b), compensated, product, out_dtype, impl)
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() != 3:
            raise ValueError(
                f"{name} must have 3 dimensions, [batch, rows, columns]; got {tensor.dim()}: "
                f"{tuple(tensor.shape)}. matmul takes any number of them"
            )
    if a.shape[0] != b.shape[0]:
        raise ValueError(
            f"a and b must have one batch size; got a {tuple(a.shape)}, b {tuple(b.shape)}. "
            "matmul broadcasts a batch of 1"
        )
    if a.shape[2] != b.shape[1]:
        raise ValueError(
            f"a's last size and b's last but one must agree: {a.shape[2]} and {b.shape[1]}; got a "
            f"{tuple(a.shape)}, b {tuple(b.shape)}. Transpose one with .mT: any strides will do"
        )
    return choices


def validate_linear(
    x: Any,
    weight: Any,
    bias: Any,
    activation: Any,
    residual: Any,
    compensated: Any,
    product: Any,
    out_dtype: Any,
    impl: Any,
) -> Choices:
    """Check the arguments of `flashasc.ops.linear`; raises as `validate_matmul` does."""
    choices = _operands(
        "linear", ("x", x), ("weight", weight), compensated, product, out_dtype, impl,
        bias=bias, residual=residual,
    )  # fmt: skip
    if x.dim() == 0:
        raise ValueError("x must have at least 1 dimension, [..., features]; got a scalar")
    if weight.dim() != 2:
        raise ValueError(
            f"weight must have 2 dimensions, [out, in]; got {weight.dim()}: {tuple(weight.shape)}"
        )
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"x's last size and weight's must agree: {x.shape[-1]} and {weight.shape[1]}; got x "
            f"{tuple(x.shape)}, weight {tuple(weight.shape)}. A weight that is [in, out] is "
            "weight.mT here"
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(
            f"bias must be [out] = ({weight.shape[0]},); got {tuple(bias.shape)}. What differs "
            "from row to row is residual=..."
        )
    shape = (*x.shape[:-1], weight.shape[0])
    if residual is not None and not _fits(residual.shape, shape):
        raise ValueError(
            f"residual must broadcast to the result, {shape}; got {tuple(residual.shape)}"
        )
    if activation is not None:
        one_of("activation", activation, get_args(Activation))
    return choices


def _operands(
    name: str,
    left: tuple[str, Any],
    right: tuple[str, Any],
    compensated: Any,
    product: Any,
    out_dtype: Any,
    impl: Any,
    **more: Any,
) -> Choices:
    """What holds for the tensors and options of every product."""
    one_of("impl", impl, ("auto", "triton", "reference"))
    one_of("product", product, get_args(Product))
    if compensated != "auto" and not isinstance(compensated, bool):
        raise TypeError(f'compensated must be True, False or "auto"; got {compensated!r}')
    first_name, first = left
    given = [left, right, *((key, x) for key, x in more.items() if x is not None)]
    for key, tensor in given:
        check.strided(key, tensor)
        check.floating(key, tensor)
        if tensor.dtype != first.dtype:
            raise TypeError(
                f"{key} must have {first_name}'s dtype, {first.dtype}; got {tensor.dtype}: cast "
                "all to one dtype"
            )
        if tensor.device != first.device:
            raise ValueError(
                f"{key} must be on {first_name}'s device, {first.device}; got {tensor.device}: "
                f"move it there with .to({first_name}.device)"
            )
    instead = f"torch.{'nn.functional.' if name == 'linear' else ''}{name}"
    no_transforms(f"flashasc.ops.{name}", instead, *(tensor for _, tensor in given))
    if product != "ieee" and first.dtype != torch.float32:
        raise ValueError(
            f'product must be "ieee" for {first.dtype} operands, whose products are exact; got '
            f'"{product}", which is for float32'
        )
    dtype = out_dtype_of(out_dtype, first.dtype, of=first_name)
    return Choices(compensated, product, dtype, impl)


def _broadcast(a: Tensor, b: Tensor) -> None:
    try:
        torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"the batches of a and b must broadcast; got a {tuple(a.shape)}, b {tuple(b.shape)}: "
            f"{tuple(a.shape[:-2])} and {tuple(b.shape[:-2])}. Sizes must agree or be 1, from the "
            "right"
        ) from None


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to another."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(size in (1, full) for size, full in pairs)

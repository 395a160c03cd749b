"""PyTorch's view of softmax and the norms: the operator, its shapes, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._dispatch import Impl, plan_reduction
from .._reductions import Method, Mode, rows_of_both
from ._engines import Reference
from ._reduce_operator import centred, spread_of

_SCHEMA = (
    "(Tensor x, Tensor? weight, Tensor? bias, str mode, int dims, float eps, str method, "
    "ScalarType out_dtype, str impl) -> Tensor"
)


@torch.library.custom_op("flashasc::normalize", mutates_args=(), schema=_SCHEMA)
def normalize(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mode: Mode,
    dims: int,
    eps: float,
    method: Method,
    out_dtype: torch.dtype,
    impl: Impl,
) -> Tensor:
    """Softmax or a norm along the last `dims` dimensions of a validated tensor; contiguous."""
    out = x.new_empty(x.shape, dtype=out_dtype)
    if x.numel() == 0:
        return out
    length = math.prod(x.shape[x.dim() - dims :])
    plan = plan_reduction(x.device, x.dtype, impl, normalized=length)
    weight, bias = (None if t is None else t.contiguous().view(-1) for t in (weight, bias))
    if plan.route == "reference":
        engine = Reference(x, tuple(range(x.dim() - dims, x.dim())), method)
        _in_torch(engine, weight, bias, mode, eps, out)
        return out
    from ..kernels.normalize_launch import launch_normalize

    assert plan.target is not None
    rows, out_rows = rows_of_both(x.resolve_neg(), out, dims)
    launch_normalize(rows, out_rows, weight, bias, mode, eps, method, plan.target, plan.route)
    return out


@normalize.register_fake
def _(x: Tensor, *facts: Any) -> Tensor:
    return x.new_empty(x.shape, dtype=facts[6])


_BLOCK = 1 << 20
"""Numbers that are normalised at a time, about."""


def _in_torch(
    engine: Reference,
    weight: Tensor | None,
    bias: Tensor | None,
    mode: Mode,
    eps: float,
    out: Tensor,
) -> None:
    """Write the result of the engine's rows into `out` by the reference's reductions."""
    rows = engine.rows
    wide = torch.promote_types(rows.dtype, torch.float32)
    count, length = rows.shape
    of_block: Callable[[Tensor, slice], Tensor]
    if mode == "softmax":
        largest = engine.max("value")
        (total,) = engine.sum("weight", largest)
        # inf - inf is NaN, and so is all of such a row
        total = total.masked_fill(~largest.isfinite(), math.nan)

        def of_block(tile: Tensor, at: slice) -> Tensor:
            return (tile - largest[at, None]).exp() / total[at, None]
    else:
        if mode == "layer_norm":
            mean, lack, spread = spread_of(engine, length)
        else:
            mean, lack, spread = None, None, engine.sum("square")[0]
        scale = 1.0 / (spread / length + eps).sqrt()

        def of_block(tile: Tensor, at: slice) -> Tensor:
            if mean is not None and lack is not None:
                tile = (tile - mean[at, None]) - lack[at, None]
            tile = tile * scale[at, None]
            tile = tile if weight is None else tile * weight.to(wide)
            return tile if bias is None else tile + bias.to(wide)

    flat = out.view(count, length)
    step = max(1, _BLOCK // length)
    for start in range(0, count, step):
        at = slice(start, start + step)
        flat[at] = of_block(rows[at].to(wide), at).to(out.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.mode, ctx.dims, ctx.eps, *_ = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    # of softmax the result says all; 16 bits of it would spoil the gradient's last digits no more
    # than those of the input's gradient do
    ctx.save_for_backward(*((output,) if ctx.mode == "softmax" else (x, weight)))
    ctx.dtype = x.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    wide = torch.promote_types(ctx.dtype, torch.float32)
    grad = grad.to(wide)
    along = tuple(range(grad.dim() - ctx.dims, grad.dim()))
    over = tuple(range(grad.dim() - ctx.dims))
    if ctx.mode == "softmax":
        out = ctx.saved_tensors[0].to(wide)
        of_x = out * (grad - (out * grad).sum(along, keepdim=True))
        return (of_x.to(ctx.dtype), *[None] * 8)
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    wide_x = x.to(wide)
    if ctx.mode == "layer_norm":
        wide_x = centred(wide_x, along)
    scale = (wide_x.square().mean(along, keepdim=True) + ctx.eps).rsqrt()
    normed = wide_x * scale
    of_x = of_weight = of_bias = None
    if needs_x:
        inner = grad if weight is None else grad * weight.to(wide)
        of_x = inner - normed * (inner * normed).mean(along, keepdim=True)
        if ctx.mode == "layer_norm":
            of_x = of_x - inner.mean(along, keepdim=True)
        of_x = (of_x * scale).to(ctx.dtype)
    if needs_weight:
        of_weight = (grad * normed).sum(over) if over else grad * normed
        of_weight = of_weight.to(weight.dtype)
    if needs_bias:
        of_bias = (grad.sum(over) if over else grad).to(ctx.bias_dtype)
    return (of_x, of_weight, of_bias, *[None] * 6)


normalize.register_autograd(_backward, setup_context=_save)

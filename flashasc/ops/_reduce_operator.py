"""PyTorch's view of reductions: the operator, its shapes for tracing, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from .._dispatch import Impl
from .._reductions import Method
from ._engines import Engine, engine_for

What = Literal["sum", "mean", "var", "norm", "logsumexp", "amax", "amin"]

_SCHEMA = (
    "(Tensor x, str what, int[] dims, bool keepdim, float correction, str method, "
    "ScalarType out_dtype, str impl) -> Tensor"
)


@torch.library.custom_op("flashasc::reduce", mutates_args=(), schema=_SCHEMA)
def reduce(
    x: Tensor,
    what: What,
    dims: Sequence[int],
    keepdim: bool,
    correction: float,
    method: Method,
    out_dtype: torch.dtype,
    impl: Impl,
) -> Tensor:
    """Reduce validated dimensions, not negative and in order, to one number each."""
    shape = _shape(x, dims, keepdim)
    if math.prod(shape) == 0:
        return x.new_empty(shape, dtype=out_dtype)
    length = math.prod([x.shape[d] for d in dims])
    if length == 0:
        return x.new_full(shape, _OVER_NOTHING[what], dtype=out_dtype)
    engine = engine_for(x, dims, method, impl)
    return _reduced(engine, what, length, correction).to(out_dtype).view(shape)


# a maximum over nothing is refused before it gets here
_OVER_NOTHING: dict[str, float] = {
    "sum": 0.0,
    "norm": 0.0,
    "mean": math.nan,
    "var": math.nan,
    "logsumexp": -math.inf,
}


def _reduced(engine: Engine, what: What, length: int, correction: float) -> Tensor:
    """[count], float32 or float64."""
    match what:
        case "sum":
            return engine.sum("value")[0]
        case "mean":
            return engine.sum("value")[0] / length
        case "var":
            return spread_of(engine, length)[2] / max(length - correction, 0.0)
        case "norm":
            largest = engine.max("size")
            scale, unscale = _scales(largest)
            return engine.sum("scaled", scale)[0].sqrt() * unscale
        case "logsumexp":
            largest = engine.max("value")
            (total,) = engine.sum("weight", largest)
            return torch.where(largest.isfinite(), largest, 0.0) + total.log()
        case "amax":
            return engine.max("value")
        case "amin":
            return -engine.max("negated")


def spread_of(engine: Engine, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, what it lacks, and the sum of squared deviations, as `blocks.reduce.row_moments`."""
    mean = engine.sum("value")[0] / length
    squares, apart = engine.sum("spread", mean)
    # the mean was rounded: see `blocks.reduce.corrected_spread`
    return mean, apart / length, (squares - apart * (apart / length)).clamp(min=0.0)


def centred(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """x - mean. Twice: rounded, the mean of large numbers is off by much of a deviation."""
    for _ in range(2):
        x = x - x.mean(dims, keepdim=True)
    return x


def _scales(largest: Tensor) -> tuple[Tensor, Tensor]:
    """Powers of two that bring rows to where squares neither overflow nor vanish, and back."""
    least, most = torch.finfo(largest.dtype).tiny, 1.0 / torch.finfo(largest.dtype).tiny
    # largest / mantissa is a power of two, exactly
    unscale = (largest / torch.frexp(largest).mantissa).nan_to_num(1.0).clamp(least, most)
    return 1.0 / unscale, unscale


def _shape(x: Tensor, dims: Sequence[int], keepdim: bool) -> list[int]:
    if keepdim:
        return [1 if d in dims else size for d, size in enumerate(x.shape)]
    return [size for d, size in enumerate(x.shape) if d not in dims]


@reduce.register_fake
def _(x: Tensor, what: What, dims: Sequence[int], keepdim: bool, *facts: Any) -> Tensor:
    return x.new_empty(_shape(x, dims, keepdim), dtype=facts[2])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.what, ctx.dims, ctx.keepdim, ctx.correction, *_ = inputs
    linear = ctx.what in ("sum", "mean")
    ctx.shape, ctx.dtype = x.shape, x.dtype
    ctx.save_for_backward(*(() if linear else (x, output)))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (_gradient(ctx, grad), *[None] * 7)


def _gradient(ctx: Any, grad: Tensor) -> Tensor:
    """The input's gradient: PyTorch operations, which have derivatives themselves."""
    wide = torch.promote_types(ctx.dtype, torch.float32)
    length = math.prod([ctx.shape[d] for d in ctx.dims])
    grad = _unsqueezed(grad.to(wide), ctx)
    if ctx.what in ("sum", "mean"):
        share: Tensor = grad if ctx.what == "sum" else grad / length
        spread: Tensor = share.expand(ctx.shape).to(ctx.dtype)
        return spread
    # of a number alone there are no dimensions to name
    dims = ctx.dims or (0,)
    x, output = ctx.saved_tensors
    x, output = x.to(wide), _unsqueezed(output.to(wide), ctx)
    match ctx.what:
        case "var":
            factor = 2.0 / divisor if (divisor := max(length - ctx.correction, 0.0)) else math.nan
            result = grad * factor * centred(x, tuple(dims))
        case "norm":
            # 0 where the norm has a corner, as in torch; the quotient first, which is 1 at most
            result = grad * (x / torch.where(output == 0, 1.0, output))
        case "logsumexp":
            # not the output: 16 bits of it are too few for an exponent
            result = grad * (x - x.logsumexp(dims, keepdim=True)).exp()
        case _:
            # those that share the maximum share its gradient
            chosen = (x == output).to(wide)
            result = grad * chosen / chosen.sum(dims, keepdim=True)
    gradient: Tensor = result.to(ctx.dtype)
    return gradient


def _unsqueezed(reduced: Tensor, ctx: Any) -> Tensor:
    if not ctx.keepdim:
        for d in ctx.dims:
            reduced = reduced.unsqueeze(d)
    return reduced


reduce.register_autograd(_backward, setup_context=_save)

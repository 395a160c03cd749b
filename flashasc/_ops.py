"""PyTorch's view of attention: operator schemas, shapes for tracing, and gradients.

The launchers behind the operators, and with them Triton, are imported when an operator runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import reference
from ._dispatch import plan_attention
from ._problem import AttentionProblem, columns_adjacent

# The operators take [B, H, S, D] views, whatever the layout: strides say the rest.


def _problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    diagonal: int,
    layout: str,
    precision: str,
    out_dtype: torch.dtype,
    with_lse: bool,
) -> AttentionProblem:
    B, Hq, Sq, D = q.shape
    return AttentionProblem(
        B=B, Hq=Hq, Hk=k.shape[1], Sq=Sq, Sk=k.shape[2], D=D, Dv=v.shape[3], dtype=q.dtype,
        out_dtype=out_dtype, device=q.device, layout=layout, causal=causal,  # type: ignore[arg-type]
        diagonal=diagonal, scale=scale, precision=precision, with_lse=with_lse,  # type: ignore[arg-type]
        adjacent_columns=columns_adjacent(q, k, v),
    )  # fmt: skip


def _empty_outputs(q: Tensor, problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Output, contiguous in the layout's own order, and log-sum-exp ([0] when nobody asked)."""
    B, Hq, Sq, Dv = problem.B, problem.Hq, problem.Sq, problem.Dv
    shape = (B, Hq, Sq, Dv) if problem.layout == "BNSD" else (B, Sq, Hq, Dv)
    out = q.new_empty(shape, dtype=problem.out_dtype)
    lse_dtype = reference.working_dtype(problem.dtype)
    lse = q.new_empty((B, Hq, Sq) if problem.with_lse else (0,), dtype=lse_dtype)
    return out, lse


@torch.library.custom_op("flashasc::attention_fwd", mutates_args=())
def attention_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    diagonal: int,
    layout: str,
    precision: str,
    out_dtype: torch.dtype,
    with_lse: bool,
    impl: str,
) -> tuple[Tensor, Tensor]:
    """Attention of validated [B, H, S, D] views: out in the layout order; lse, or an empty [0]."""
    problem = _problem(q, k, v, scale, causal, diagonal, layout, precision, out_dtype, with_lse)
    plan = plan_attention(problem, impl)  # type: ignore[arg-type]
    out, lse = _empty_outputs(q, problem)
    out_view = out if layout == "BNSD" else out.transpose(1, 2)
    if problem.empty:
        out.zero_()
        lse.fill_(-torch.inf)
    elif plan.route == "reference":
        result, result_lse = reference.attention_fwd(q, k, v, problem)
        out_view.copy_(result)
        if with_lse:
            lse.copy_(result_lse)
    else:
        from .kernels.attention_fwd import launch_attention_fwd

        assert plan.config is not None and plan.target is not None
        launch_attention_fwd(
            q,
            k,
            v,
            out_view,
            lse if with_lse else None,
            problem,
            plan.config,
            plan.target,
            plan.route,
        )
    return out, lse


@attention_fwd.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    diagonal: int,
    layout: str,
    precision: str,
    out_dtype: torch.dtype,
    with_lse: bool,
    impl: str,
) -> tuple[Tensor, Tensor]:
    return _empty_outputs(
        q, _problem(q, k, v, scale, causal, diagonal, layout, precision, out_dtype, with_lse)
    )


@torch.library.custom_op("flashasc::attention_bwd", mutates_args=())
def attention_bwd(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    diagonal: int,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients (dq, dk, dv) of [B, H, S, D] views; plain PyTorch on every device."""
    problem = _problem(q, k, v, scale, causal, diagonal, "BNSD", precision, out.dtype, True)
    return reference.attention_bwd(grad_out, grad_lse, q, k, v, out, lse, problem)


@attention_bwd.register_fake
def _(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    diagonal: int,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _no_second_derivatives(ctx: Any, *grads: Tensor | None) -> None:
    raise NotImplementedError(
        "second derivatives (double backward) of flashasc.attention are not implemented; where you "
        "need them, use F.scaled_dot_product_attention under "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )


attention_bwd.register_autograd(_no_second_derivatives)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.scale, ctx.causal, ctx.diagonal, ctx.layout, ctx.precision, *_ = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse = ctx.saved_tensors
    if grad_out is None and grad_lse is None:
        return (None,) * 11
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    if ctx.layout == "BSND":
        grad_out, out = grad_out.transpose(1, 2), out.transpose(1, 2)
    grads = attention_bwd(
        grad_out, grad_lse, q, k, v, out, lse, ctx.scale, ctx.causal, ctx.diagonal, ctx.precision
    )
    asked = (g if need else None for g, need in zip(grads, ctx.needs_input_grad, strict=False))
    return (*asked, *(None,) * 8)


attention_fwd.register_autograd(_backward, setup_context=_save_for_backward)

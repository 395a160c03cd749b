"""PyTorch's view of a matrix product: operator schema, shapes for tracing, and gradients.

The launcher behind the operator, and with it Triton, is imported when the operator runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import reference
from .._configs import GemmTile
from .._configs.compensation import PRODUCT_LENGTH
from .._dispatch import Impl, Plan, plan_gemm
from .._gemm_problem import Activation, GemmProblem, Product, gemm_problem
from .._validate import no_transforms

_SCHEMA = (
    "(Tensor a, Tensor b, Tensor? bias, Tensor? residual, str? activation, bool? compensated, "
    "str product, ScalarType out_dtype, str impl) -> Tensor"
)


class Call(NamedTuple):
    """The arguments of the operator, in their order."""

    a: Tensor
    b: Tensor
    bias: Tensor | None
    residual: Tensor | None
    activation: Activation | None
    compensated: bool | None
    """None: from K = PRODUCT_LENGTH on."""
    product: Product
    out_dtype: torch.dtype
    impl: Impl

    def problem(self) -> GemmProblem:
        """The facts of the call."""
        compensated = self.compensated
        if compensated is None:
            compensated = self.a.shape[-1] >= PRODUCT_LENGTH
        return gemm_problem(*self[:5], compensated, self.product, self.out_dtype)

    def plan(self) -> Plan[GemmTile]:
        """How the call is computed.

        Raises:
            NotImplementedError, ImportError: see `plan_gemm`.
        """
        problem = self.problem()
        pieces = [_step(x, -1) == 1 or _step(x, -2) == 1 for x in (self.a, self.b)]
        if self.residual is not None:
            pieces.append(_step(self.residual.expand(problem.shape), -1) == 1)
        return plan_gemm(problem, self.impl, in_pieces=all(pieces))


@torch.library.custom_op("flashasc::gemm", mutates_args=(), schema=_SCHEMA)
def gemm(*args: Any) -> Tensor:
    """activation(a @ b + bias) + residual of validated [*batch, M, K] and [*batch, K, N]."""
    call = Call(*args)
    a, b, bias, residual = call[:4]
    problem, plan = call.problem(), call.plan()
    if plan.route == "reference":
        return reference.gemm(a, b, bias, residual, problem)
    from ..kernels.gemm_launch import launch_gemm

    assert plan.config is not None and plan.target is not None
    out = a.new_empty(problem.shape, dtype=problem.out_dtype)
    launch_gemm(a, b, bias, residual, out, problem, plan.config, plan.target, plan.route)
    return out


@gemm.register_fake
def _(*args: Any) -> Tensor:
    call = Call(*args)
    batch = torch.broadcast_shapes(call.a.shape[:-2], call.b.shape[:-2])
    return call.a.new_empty((*batch, call.a.shape[-2], call.b.shape[-1]), dtype=call.out_dtype)


_DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda grad, x: torch.ops.aten.threshold_backward(grad, x, 0),
    "gelu": lambda grad, x: torch.ops.aten.gelu_backward(grad, x),
    "gelu_tanh": lambda grad, x: torch.ops.aten.gelu_backward(grad, x, approximate="tanh"),
    # aten's has no derivative of its own
    "silu": lambda grad, x: grad * x.sigmoid() * (1 + x * (-x).sigmoid()),
}
"""Gradient at an activation's input, of that at its output."""


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    call = Call(*inputs)
    ctx.save_for_backward(*call[:4])
    ctx.facts = call[4:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    # forward over backward: the products below would lose the tangent
    no_transforms("the gradients of flashasc.ops.matmul", "torch.matmul", grad)
    a, b, bias, residual = ctx.saved_tensors
    call = Call(a, b, bias, residual, *ctx.facts)
    needs = dict(zip(Call._fields, ctx.needs_input_grad, strict=True))
    grads: dict[str, Tensor] = {}
    if residual is not None and needs["residual"]:
        grads["residual"] = grad.sum_to_size(residual.shape).to(residual.dtype)
    if call.activation is not None:
        # cheaper to compute again than to keep
        before = gemm(*call._replace(residual=None, activation=None, out_dtype=_wide(a.dtype)))
        grad = _DERIVATIVES[call.activation](grad.to(before.dtype), before).to(grad.dtype)
    if bias is not None and needs["bias"]:
        grads["bias"] = grad.sum_to_size(bias.shape).to(bias.dtype)
    # products in the gradient's own dtype, which is the output's: rounded to 16 bits, a float32 one
    # would lose what it carries
    options = (None, None, None, call.compensated, call.product, grad.dtype, call.impl)
    if needs["a"]:
        found = gemm(grad, b.mT.to(grad.dtype), *options)
        grads["a"] = found.sum_to_size(a.shape).to(a.dtype)
    if needs["b"]:
        found = gemm(a.mT.to(grad.dtype), grad, *options)
        grads["b"] = found.sum_to_size(b.shape).to(b.dtype)
    return tuple(grads.get(name) for name in Call._fields)


gemm.register_autograd(_backward, setup_context=_save)


def _step(x: Tensor, dim: int) -> int:
    """Stride of a dimension; 1 where there is a single element along it."""
    return 1 if x.shape[dim] == 1 else x.stride(dim)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)

"""PyTorch's view of attention: operator schemas, shapes for tracing, and gradients.

The launchers behind the operators, and with them Triton, are imported when an operator runs; so is
the reference, which importing the package would otherwise wait for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._dispatch import AttentionPlan, Impl, plan_attention
from ._problem import (
    AttentionProblem,
    Extras,
    Layout,
    Precision,
    attention_problem,
    heads_first,
)
from ._repeat import Memo, Repeat, alike, recording, repeat_of

# The operators take [B, H, S, D] views whatever the layout, [H, tokens, D] for packed sequences:
# strides say the rest. Each argument stands once in these schemas and once in `Call`.
TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? bias, Tensor? alibi_slopes, "
    "Tensor? sinks, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? kv_lens"
)
FACTS = (
    "float scale, float? softcap, bool causal, bool bottom_right, SymInt? window_left, "
    "SymInt? window_right, str layout, str precision, ScalarType out_dtype, bool with_lse, "
    "SymInt? max_seqlen_q, SymInt? max_seqlen_k, str impl"
)
_FORWARD = f"({TENSORS}, {FACTS}) -> (Tensor, Tensor)"
_BACKWARD = (
    f"(Tensor grad_out, Tensor? grad_lse, Tensor out, Tensor lse, {TENSORS}, {FACTS}, "
    "bool[] needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


class Call(NamedTuple):
    """The arguments of `attention_fwd`, in their order."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    bias: Tensor | None
    alibi_slopes: Tensor | None
    sinks: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    kv_lens: Tensor | None
    scale: float
    softcap: float | None
    causal: bool
    bottom_right: bool
    window_left: int | None
    window_right: int | None
    layout: Layout
    precision: Precision
    out_dtype: torch.dtype
    with_lse: bool
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    impl: Impl

    @property
    def extras(self) -> Extras:
        """The tensors beside q, k and v."""
        return Extras(*self[3:10])

    @property
    def differentiable(self) -> tuple[Tensor | None, ...]:
        """The inputs that may ask for a gradient, in the order of `reference.Gradients`."""
        return (self.q, self.k, self.v, self.bias, self.alibi_slopes, self.sinks)

    def problem(self) -> AttentionProblem:
        """The facts of the call."""
        facts = {name: getattr(self, name) for name in self._fields[10:-1]}
        return attention_problem(self.q, self.k, self.v, self.extras, **facts)


def _empty_outputs(q: Tensor, problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Output, contiguous in the layout's own order, and log-sum-exp ([0] when nobody asked)."""
    from . import reference

    shape = (*q.shape[:-1], problem.Dv)
    ordered = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "TND": (1, 0, 2)}[problem.layout]
    out = q.new_empty([shape[d] for d in ordered], dtype=problem.out_dtype)
    lse_dtype = reference.working_dtype(problem.dtype)
    lse = q.new_empty(q.shape[:-1] if problem.with_lse else (0,), dtype=lse_dtype)
    return out, lse


_UNWRITTEN = {"out_ptr": 0.0, "lse_ptr": -torch.inf}
"""What tokens that belong to no sequence get."""
_known: Memo[Repeat] = Memo()
"""How calls that a kernel served are made again."""


def pointers(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    kv_lens: Tensor | None,
) -> dict[str, Tensor | None]:
    """A call's tensors, by the kernels' names."""
    return {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "mask_ptr": mask,
        "bias_ptr": bias,
        "alibi_ptr": alibi_slopes,
        "sinks_ptr": sinks,
        "cu_q_ptr": cu_seqlens_q,
        "cu_k_ptr": cu_seqlens_k,
        "kv_lens_ptr": kv_lens,
    }


def known(call: Call) -> Repeat | None:
    """How a call is made again that is like one before, if a kernel served that."""
    key = alike(call[:10], call[10:])
    return None if key is None else _known.get(key)


def forward(*args: Any) -> tuple[Tensor, Tensor]:
    """Attention of a `Call`'s views: out in the layout's order; lse, or an empty [0]."""
    from . import reference

    call = Call(*args)
    key = alike(call[:10], call[10:])
    given = pointers(*call[:10])
    if key is not None and (repeat := _known.get(key)):
        made = repeat(given)
        return made["out_ptr"], made["lse_ptr"] if call.with_lse else call.q.new_empty(0)
    announced, call = call, _lengths_known(call)
    q, k, v = call.q, call.k, call.v
    problem = call.problem()
    plan = plan_attention(problem, call.impl)
    out, lse = _empty_outputs(q, problem)
    out_view = heads_first(out, problem.layout)
    if plan.route == "reference":
        result, result_lse = reference.attention_fwd(q, k, v, problem, call.extras)
        out_view.copy_(result)
        if problem.with_lse:
            lse.copy_(result_lse)
        return out, lse
    with recording() as launches:
        _launch(q, k, v, out_view, lse if problem.with_lse else None, problem, call.extras, plan)
    # not where lengths were read from the device, which may be others next time
    if key is not None and call is announced:
        results = {"out_ptr": out, "lse_ptr": lse} if problem.with_lse else {"out_ptr": out}
        fill = {name: _UNWRITTEN[name] for name in results} if _leaves_gaps(problem, plan) else {}
        _known.keep(key, repeat_of(q.device, launches, given, results, fill))
    return out, lse


attention_fwd = torch.library.custom_op(
    "flashasc::attention_fwd", forward, mutates_args=(), schema=_FORWARD
)


def _leaves_gaps(problem: AttentionProblem, plan: AttentionPlan) -> bool:
    """Whether a plan's kernels leave rows unwritten that belong to no sequence."""
    return problem.packed and (plan.config is None or plan.config.core_loop)


def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    problem: AttentionProblem,
    extras: Extras,
    plan: AttentionPlan,
) -> None:
    """Run the kernels of a plan."""
    from .kernels.attention_launch import launch_attention_fwd
    from .kernels.split_launch import launch_attention_split

    assert plan.target is not None and plan.route != "reference"
    where = (plan.target, plan.route)
    if _leaves_gaps(problem, plan):
        out.fill_(_UNWRITTEN["out_ptr"])
        if lse is not None:
            lse.fill_(_UNWRITTEN["lse_ptr"])
    if plan.config is not None:
        launch_attention_fwd(q, k, v, out, lse, problem, extras, plan.config, *where, few=plan.few)
    if plan.split is not None:
        last_key = problem.packed and problem.bottom_right
        launch_attention_split(
            q, k, v, out, lse, problem, extras, plan.split, *where, last_key=last_key, few=plan.few
        )


@attention_fwd.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor]:
    call = Call(*args)
    return _empty_outputs(call.q, call.problem())


@torch.library.custom_op("flashasc::attention_bwd", mutates_args=(), schema=_BACKWARD)
def attention_bwd(
    grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *args: Any
) -> tuple[Tensor, ...]:
    """Gradients of `attention_fwd`'s inputs, [0] where none is asked for; plain PyTorch.

    Args:
        grad_out, out: in the layout's order.
        grad_lse, lse: as `attention_fwd` returns it.
        *args: the arguments of `attention_fwd`; then which of q, k, v, bias, alibi_slopes and sinks
            need a gradient.
    """
    from . import reference

    *inputs, needs = args
    call = _lengths_known(Call(*inputs))
    problem = call.problem()
    grad_out, out = (heads_first(x, problem.layout) for x in (grad_out, out))
    grads = reference.attention_bwd(
        grad_out,
        grad_lse,
        call.q,
        call.k,
        call.v,
        out,
        lse,
        problem,
        call.extras,
        reference.Needs(*needs),
    )
    return tuple(call.q.new_empty(0) if g is None else g for g in grads)


@attention_bwd.register_fake
def _(grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *args: Any) -> Any:
    *inputs, needs = args
    call = Call(*inputs)
    return tuple(
        x.new_empty(x.shape) if need and x is not None else call.q.new_empty(0)
        for x, need in zip(call.differentiable, needs, strict=True)
    )


def _lengths_known(call: Call) -> Call:
    """The call with its largest lengths; those not given are read, which waits for the device."""
    if call.layout != "TND":
        return call
    if call.max_seqlen_q is None:
        call = call._replace(max_seqlen_q=_longest(call.cu_seqlens_q, call.q.shape[1]))
    if call.max_seqlen_k is None:
        call = call._replace(max_seqlen_k=_longest(call.cu_seqlens_k, call.k.shape[1]))
    return call


def _longest(cu_seqlens: Tensor | None, tokens: int) -> int:
    assert cu_seqlens is not None
    # clamped like the kernels do, before a difference of two far-off numbers wraps round
    lengths = cu_seqlens.clamp(0, tokens).diff()
    return max(int(lengths.max()), 0) if lengths.numel() else 0


def _no_second_derivatives(ctx: Any, *grads: Tensor | None) -> None:
    raise NotImplementedError(
        "second derivatives (double backward) of flashasc.attention are not implemented; where you "
        "need them, use F.scaled_dot_product_attention under "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )


attention_bwd.register_autograd(_no_second_derivatives)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    call = Call(*inputs)
    ctx.save_for_backward(*output, *call[:10])
    ctx.facts = call[10:]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    from . import reference

    result: dict[str, Tensor] = {}
    if grad_out is not None or grad_lse is not None:
        given = [g for g in (grad_out, grad_lse) if g is not None]
        if forward_ad._current_level >= 0 and any(
            forward_ad.unpack_dual(g).tangent is not None for g in given
        ):
            # forward over backward: the operator below would lose the tangent
            _no_second_derivatives(ctx)
        out, lse, *tensors = ctx.saved_tensors
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        asked = dict(zip(Call._fields, ctx.needs_input_grad, strict=True))
        needs = [bool(asked[name]) for name in reference.Needs._fields]
        grads = attention_bwd(grad_out, grad_lse, out, lse, *tensors, *ctx.facts, needs)
        named = zip(reference.Needs._fields, grads, needs, strict=True)
        result = {name: grad for name, grad, need in named if need}
    return tuple(result.get(name) for name in Call._fields)


attention_fwd.register_autograd(_backward, setup_context=_save_for_backward)

"""Attention to a part of the keys, as a raw softmax state that can be joined with others.

For split keys, context parallelism and anything else that sees a row's keys in several goes: states
keep every digit, where rounded (out, lse) pairs do not. Plain PyTorch here; the kernels, and with
them Triton, are imported when an operator runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from . import reference
from ._dispatch import AttentionPlan, Impl, kernel_route, plan_attention
from ._ops import FACTS, TENSORS, Call
from ._problem import AttentionProblem, Extras
from ._target import target_of


@dataclass(frozen=True)
class AttentionState:
    """The raw softmax state of query rows, see `blocks.softmax`.

    Attributes:
        rows: [B, Hq, 5, Sq] ([Hq, 5, tokens] of packed queries), float32 (float64 for float64
            inputs): pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp.
        acc: [B, Hq, Sq, 2, Dv] ([Hq, tokens, 2, Dv]): acc, acc_comp.
        whole: pivots are whole numbers, and a rescale is exact.
        lowered: weights are kept in float16, under lowered pivots.
        natural: pivots are in natural units, not log2 ones.
        separate_lse: lse_sum was kept; otherwise row_sum has the log-sum-exp.
        impl: what computed it, and goes on with it: "triton" or "reference".
    """

    rows: Tensor
    acc: Tensor
    whole: bool
    lowered: bool
    natural: bool
    separate_lse: bool
    impl: Impl

    @property
    def kind(self) -> tuple[object, ...]:
        """What two states must have in common to be joined."""
        return (
            self.whole,
            self.lowered,
            self.natural,
            self.separate_lse,
            self.impl,
            self.rows.shape,
            self.acc.shape,
        )


def attention_state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: AttentionProblem,
    extras: Extras = Extras(),  # noqa: B008 - an immutable tuple
    *,
    impl: Impl = "auto",
) -> AttentionState:
    """The state of all queries after the given part of their keys. Not differentiable.

    Args:
        q, k, v: [B, H, S, D] views whatever the layout, [H, tokens, D] of packed sequences; any
            strides. k and v are the part.
        problem: the facts of the call, `Sk` those of the part. Query i is aligned with key
            i + `problem.diagonal` of the part: the first query's global position minus the first
            key's, for causal attention to a part. Packed sequences align as `bottom_right` says,
            or by `extras.diagonals`. Sinks do not count before `finalize_state`.
        extras: the other tensors; `diagonals` [B] has precedence over `problem.diagonal`.
        impl: as for `flashasc.attention`.

    Returns:
        The state. A row that saw nothing has pivot -inf and sums 0; tokens of no sequence too.

    Raises:
        NotImplementedError, ImportError: as `flashasc.attention`.
    """
    plan = _plan(problem, impl)
    whole = problem.dtype.itemsize > 2 or problem.precision == "high"
    compensated = problem.precision != "standard"
    # the window is handed over as it is: a causal call says so by `causal`
    rows, acc = attention_state_op(
        q,
        k,
        v,
        *extras[:-1],
        problem.scale,
        problem.softcap,
        problem.causal,
        problem.bottom_right,
        problem.window_left,
        problem.window_right,
        problem.layout,
        problem.precision,
        problem.out_dtype,
        problem.with_lse,
        problem.Sq if problem.packed else None,
        problem.Sk if problem.packed else None,
        impl,
        extras.diagonals,
        problem.diagonal,
    )
    return AttentionState(
        rows,
        acc,
        whole=whole,
        lowered=problem.dtype == torch.float16,
        natural=plan.config.natural(problem) if plan.config else not whole,
        separate_lse=problem.with_lse and compensated and not whole,
        impl="reference" if plan.route == "reference" else "triton",
    )


def merge_states(a: AttentionState, b: AttentionState) -> AttentionState:
    """Join the states that the same queries have after two disjoint sets of keys.

    Symmetric in a and b, bit for bit. What is joined in another order may differ in the last bits
    of the compensation.

    Raises:
        ValueError: the states are of different kinds.
    """
    if a.kind != b.kind:
        raise ValueError(
            "a and b must be states of the same queries, of one precision, dtype and "
            f"implementation; got {a.kind} and {b.kind}"
        )
    rows, acc = merge_states_op(a.rows, a.acc, b.rows, b.acc, a.whole, a.natural, a.impl)
    return replace(a, rows=rows, acc=acc)


def finalize_state(
    state: AttentionState, sinks: Tensor | None = None, out_dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of a state that has seen all its keys.

    Args:
        state: the state.
        sinks: [Hq], any float dtype, natural-log units: counted here, once.
        out_dtype: of the output.

    Returns:
        (out, lse): [B, Hq, Sq, Dv] of out_dtype and [B, Hq, Sq] float32 ([Hq, tokens, Dv] and
        [Hq, tokens]; float64 for float64 inputs), contiguous, lse in natural-log units.
    """
    found: tuple[Tensor, Tensor] = finalize_state_op(
        state.rows,
        state.acc,
        sinks,
        out_dtype,
        state.whole,
        state.lowered,
        state.natural,
        state.separate_lse,
        state.impl,
    )
    return found


def _plan(problem: AttentionProblem, impl: Impl) -> AttentionPlan:
    """How states of such a call are computed: also where there happens to be no key."""
    if problem.packed:
        tokens = (max(problem.tokens_q, 1), max(problem.tokens_k, 1))
        problem = replace(problem, tokens_q=tokens[0], tokens_k=tokens[1])
    return plan_attention(
        replace(problem, B=max(problem.B, 1), Sq=max(problem.Sq, 1), Sk=max(problem.Sk, 1)),
        impl,
        splits="never",
    )


def empty_state(q: Tensor, problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    dtype = reference.working_dtype(problem.dtype)
    *heads, count, _ = q.shape
    rows = q.new_empty((*heads, 5, count), dtype=dtype)
    return rows, q.new_empty((*heads, count, 2, problem.Dv), dtype=dtype)


def _state_call(args: tuple[Any, ...]) -> tuple[Call, AttentionProblem, Extras]:
    *inputs, diagonals, diagonal = args
    call = Call(*inputs)
    problem = replace(call.problem(), diagonal=diagonal, has_diagonals=diagonals is not None)
    return call, problem, call.extras._replace(diagonals=diagonals)


@torch.library.custom_op(
    "flashasc::attention_state",
    mutates_args=(),
    schema=f"({TENSORS}, {FACTS}, Tensor? diagonals, SymInt diagonal) -> (Tensor, Tensor)",
)
def attention_state_op(*args: Any) -> tuple[Tensor, Tensor]:
    """Rows and acc of the state of validated views."""
    call, problem, extras = _state_call(args)
    q, k, v = call.q, call.k, call.v
    plan = plan_attention(problem, call.impl, splits="never")
    if plan.route == "reference":
        return reference.attention_state(q, k, v, problem, extras)
    from .kernels.attention_launch import launch_attention_fwd

    assert plan.config is not None and plan.target is not None
    rows, acc = empty_state(q, problem)
    if problem.precision == "standard":
        # sums that are not compensated leave their compensations as they find them
        acc.zero_()
    if problem.packed:
        # tokens that belong to no sequence
        acc.zero_()
        rows.zero_()[:, 0] = -torch.inf
    launch_attention_fwd(
        q, k, v, acc, rows, problem, extras, plan.config, plan.target, plan.route, state=True
    )
    return rows, acc


@attention_state_op.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor]:
    call, problem, _ = _state_call(args)
    return empty_state(call.q, problem)


@torch.library.custom_op(
    "flashasc::merge_states",
    mutates_args=(),
    schema="(Tensor rows_a, Tensor acc_a, Tensor rows_b, Tensor acc_b, bool whole, bool natural, "
    "str impl) -> (Tensor, Tensor)",
)
def merge_states_op(
    rows_a: Tensor,
    acc_a: Tensor,
    rows_b: Tensor,
    acc_b: Tensor,
    whole: bool,
    natural: bool,
    impl: Impl,
) -> tuple[Tensor, Tensor]:
    """Rows and acc of two states joined."""
    if impl == "reference" or not acc_a.numel():
        return reference.merge_states(rows_a, acc_a, rows_b, acc_b, whole)
    from .kernels.states import launch_merge_states

    rows, acc = torch.empty_like(rows_a), torch.empty_like(acc_a)
    parts = (rows_a.contiguous(), acc_a.contiguous(), rows_b.contiguous(), acc_b.contiguous())
    target = target_of(acc.device)
    launch_merge_states(
        parts, rows, acc, target, kernel_route(acc.device), whole=whole, natural=natural
    )
    return rows, acc


@merge_states_op.register_fake
def _(rows_a: Tensor, acc_a: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return rows_a.new_empty(rows_a.shape), acc_a.new_empty(acc_a.shape)


@torch.library.custom_op(
    "flashasc::finalize_state",
    mutates_args=(),
    schema="(Tensor rows, Tensor acc, Tensor? sinks, ScalarType out_dtype, bool whole, "
    "bool lowered, bool natural, bool separate_lse, str impl) -> (Tensor, Tensor)",
)
def finalize_state_op(
    rows: Tensor,
    acc: Tensor,
    sinks: Tensor | None,
    out_dtype: torch.dtype,
    whole: bool,
    lowered: bool,
    natural: bool,
    separate_lse: bool,
    impl: Impl,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a finished state."""
    out, lse = _outputs_of(rows, acc, out_dtype)
    if impl == "reference" or not acc.numel():
        per_row = None if sinks is None else sinks.to(rows.dtype)[:, None]
        found = reference.finalize_state(rows, acc, whole, lowered, separate_lse, per_row)
        out.copy_(found[0])
        lse.copy_(found[1])
        return out, lse
    from .kernels.states import launch_finalize_state

    if sinks is not None:
        sinks = (sinks.float() if sinks.dtype == torch.float64 else sinks).contiguous()
    launch_finalize_state(
        rows.contiguous(),
        acc.contiguous(),
        out,
        lse,
        sinks,
        target_of(acc.device),
        kernel_route(acc.device),
        whole=whole,
        lowered=lowered,
        natural=natural,
        separate_lse=separate_lse,
    )
    return out, lse


@finalize_state_op.register_fake
def _(
    rows: Tensor, acc: Tensor, sinks: Tensor | None, out_dtype: torch.dtype, *_: Any
) -> tuple[Tensor, Tensor]:
    return _outputs_of(rows, acc, out_dtype)


def _outputs_of(rows: Tensor, acc: Tensor, out_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    *heads, count, _, Dv = acc.shape
    return acc.new_empty((*heads, count, Dv), dtype=out_dtype), rows.new_empty((*heads, count))

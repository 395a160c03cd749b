"""Operators on raw softmax states: compute one, join two, finish one; see `_states`.

The launchers behind them, and with them Triton, are imported when an operator runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import reference
from ._dispatch import Impl, kernel_route, plan_attention
from ._ops import FACTS, TENSORS, Call, pointers
from ._problem import AttentionProblem, Extras
from ._repeat import Memo, Repeat, repeated
from ._target import target_of

# how calls that a kernel served are made again
known_states: Memo[Repeat] = Memo()
_known_merges: Memo[Repeat] = Memo()
_known_outputs: Memo[Repeat] = Memo()


def empty_state(q: Tensor, problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Memory for the rows and the acc of a state of these queries."""
    dtype = reference.working_dtype(problem.dtype)
    *heads, count, _ = q.shape
    rows = q.new_empty((*heads, 5, count), dtype=dtype)
    return rows, q.new_empty((*heads, count, 2, problem.Dv), dtype=dtype)


def _state_call(args: tuple[Any, ...]) -> tuple[Call, AttentionProblem, Extras]:
    *inputs, diagonals, diagonal = args
    call = Call(*inputs)
    problem = replace(call.problem(), diagonal=diagonal, has_diagonals=diagonals is not None)
    return call, problem, call.extras._replace(diagonals=diagonals)


def state_pointers(q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> dict[str, Tensor | None]:
    """A call's tensors, by the kernel's names, in their order."""
    return {**pointers(q, k, v, *extras[:-1]), "diagonals_ptr": extras.diagonals}


def state(*args: Any) -> tuple[Tensor, Tensor]:
    """Rows and acc of the state of validated views."""
    *inputs, diagonals, diagonal = args
    call = Call(*inputs)
    if call.layout == "TND":
        # what belongs to no sequence gets two different numbers before the launch
        return _compute_state(*args)
    standard = call.precision == "standard"
    return repeated(
        known_states,
        state_pointers(call.q, call.k, call.v, call.extras._replace(diagonals=diagonals)),
        (*call[10:], diagonal),
        ("lse_ptr", "out_ptr"),
        lambda: _compute_state(*args),
        fill={"out_ptr": 0.0} if standard else {},
    )


def _compute_state(*args: Any) -> tuple[Tensor, Tensor]:
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


attention_state_op = torch.library.custom_op(
    "flashasc::attention_state",
    state,
    mutates_args=(),
    schema=f"({TENSORS}, {FACTS}, Tensor? diagonals, SymInt diagonal) -> (Tensor, Tensor)",
)


@attention_state_op.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor]:
    call, problem, _ = _state_call(args)
    return empty_state(call.q, problem)


def merged(
    rows_a: Tensor,
    acc_a: Tensor,
    rows_b: Tensor,
    acc_b: Tensor,
    whole: bool,
    natural: bool,
    impl: Impl,
) -> tuple[Tensor, Tensor]:
    """Rows and acc of two states joined."""

    def compute() -> tuple[Tensor, Tensor]:
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

    return repeated(
        _known_merges,
        {"rows_a_ptr": rows_a, "acc_a_ptr": acc_a, "rows_b_ptr": rows_b, "acc_b_ptr": acc_b},
        (whole, natural, impl),
        ("rows_ptr", "acc_ptr"),
        compute,
    )


merge_states_op = torch.library.custom_op(
    "flashasc::merge_states",
    merged,
    mutates_args=(),
    schema="(Tensor rows_a, Tensor acc_a, Tensor rows_b, Tensor acc_b, bool whole, bool natural, "
    "str impl) -> (Tensor, Tensor)",
)


@merge_states_op.register_fake
def _(rows_a: Tensor, acc_a: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return rows_a.new_empty(rows_a.shape), acc_a.new_empty(acc_a.shape)


def finished(
    rows: Tensor, acc: Tensor, sinks: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a finished state."""
    return repeated(
        _known_outputs,
        {"rows_ptr": rows, "acc_ptr": acc, "sinks_ptr": sinks},
        options,
        ("out_ptr", "lse_ptr"),
        lambda: _compute_finished(rows, acc, sinks, *options),
    )


def _compute_finished(
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


finalize_state_op = torch.library.custom_op(
    "flashasc::finalize_state",
    finished,
    mutates_args=(),
    schema="(Tensor rows, Tensor acc, Tensor? sinks, ScalarType out_dtype, bool whole, "
    "bool lowered, bool natural, bool separate_lse, str impl) -> (Tensor, Tensor)",
)


@finalize_state_op.register_fake
def _(
    rows: Tensor, acc: Tensor, sinks: Tensor | None, out_dtype: torch.dtype, *_: Any
) -> tuple[Tensor, Tensor]:
    return _outputs_of(rows, acc, out_dtype)


def _outputs_of(rows: Tensor, acc: Tensor, out_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    *heads, count, _, Dv = acc.shape
    return acc.new_empty((*heads, count, Dv), dtype=out_dtype), rows.new_empty((*heads, count))

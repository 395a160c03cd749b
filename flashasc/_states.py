"""Attention to a part of the keys, as a raw softmax state that can be joined with others.

For split keys, context parallelism and anything else that sees a row's keys in several goes: states
keep every digit, where rounded (out, lse) pairs do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from . import _state_ops
from ._dispatch import AttentionPlan, Impl, plan_attention
from ._problem import AttentionProblem, Extras
from ._repeat import Memo, Repeat, alike_unobserved


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


class _Known(NamedTuple):
    """How a state is computed that is like one before."""

    repeat: Repeat
    state: partial[AttentionState]
    """Given its rows and acc."""


_known: Memo[_Known] = Memo()


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
    # the window is handed over as it is: a causal call says so by `causal`
    options = (
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
    )
    key = alike_unobserved((q, k, v, *extras), (*options, problem.diagonal))
    if key is not None and (known := _known.get(key)):
        made = known.repeat(_state_ops.state_pointers(q, k, v, extras))
        return known.state(made["lse_ptr"], made["out_ptr"])
    plan = _plan(problem, impl)
    whole = problem.dtype.itemsize > 2 or problem.precision == "high"
    compensated = problem.precision != "standard"
    state = partial(
        AttentionState,
        whole=whole,
        lowered=problem.dtype == torch.float16,
        natural=plan.config.natural(problem) if plan.config else not whole,
        separate_lse=problem.with_lse and compensated and not whole,
        impl="reference" if plan.route == "reference" else "triton",
    )
    args = (q, k, v, *extras[:-1], *options, extras.diagonals, problem.diagonal)
    if key is None:
        return state(*_state_ops.attention_state_op(*args))
    found = state(*_state_ops.state(*args))
    if repeat := _state_ops.known_states.get(key):
        _known.keep(key, _Known(repeat, state))
    return found


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
    tensors = (a.rows, a.acc, b.rows, b.acc)
    direct = alike_unobserved(tensors, ()) is not None
    merge = _state_ops.merged if direct else _state_ops.merge_states_op
    rows, acc = merge(*tensors, a.whole, a.natural, a.impl)
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
    direct = alike_unobserved((state.rows, state.acc, sinks), ()) is not None
    finish = _state_ops.finished if direct else _state_ops.finalize_state_op
    found: tuple[Tensor, Tensor] = finish(
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
    if problem.empty:
        problem = replace(
            problem,
            B=max(problem.B, 1),
            Sq=max(problem.Sq, 1),
            Sk=max(problem.Sk, 1),
            tokens_q=max(problem.tokens_q, 1) if problem.packed else 0,
            tokens_k=max(problem.tokens_k, 1) if problem.packed else 0,
        )
    return plan_attention(problem, impl, splits="never")

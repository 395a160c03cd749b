"""PyTorch's view of decoding with a cache: operators, and shapes for tracing."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import reference
from ._dispatch import AttentionPlan, Impl, plan_decode, plan_reduction
from ._problem import AttentionProblem, Extras, Layout, Precision, attention_problem, heads_first
from ._repeat import Memo, Repeat, alike, recording, repeat_of


class DecodeCall(NamedTuple):
    """The arguments of `decode_op`, in their order."""

    q: Tensor
    k: Tensor
    v: Tensor
    kv_lens: Tensor
    block_table: Tensor | None
    alibi_slopes: Tensor | None
    sinks: Tensor | None
    scale: float
    softcap: float | None
    causal: bool
    window_left: int | None
    window_right: int | None
    layout: Layout
    precision: Precision
    out_dtype: torch.dtype
    with_lse: bool
    most_keys: int
    """No sequence has more; longer ones count as that long."""
    impl: Impl

    @property
    def extras(self) -> Extras:
        """The tensors beside q, k and v."""
        return Extras(alibi_slopes=self.alibi_slopes, sinks=self.sinks, kv_lens=self.kv_lens)

    @property
    def page(self) -> int:
        """Keys of a page; 0: they lie in one piece."""
        return 0 if self.block_table is None else self.k.shape[2]

    def problem(self) -> AttentionProblem:
        """The facts of the call, keys counted as if they lay in one piece."""
        q, k, v = self.q, self.k, self.v
        shape = (q.shape[0], k.shape[1], self.most_keys)
        # views of no memory: what is asked of k and v is their shape and their last strides
        k, v = (
            x[:1, :, :1].expand(*shape, -1) if x.numel() else x.new_empty((*shape, x.shape[-1]))
            for x in (k, v)
        )
        return attention_problem(
            q,
            k,
            v,
            self.extras,
            scale=self.scale,
            softcap=self.softcap,
            causal=self.causal,
            bottom_right=True,
            window_left=self.window_left,
            window_right=self.window_right,
            layout=self.layout,
            precision=self.precision,
            out_dtype=self.out_dtype,
            with_lse=self.with_lse,
            max_seqlen_q=None,
            max_seqlen_k=None,
        )


_known: Memo[Repeat] = Memo()
"""How calls that a kernel served are made again."""
_known_appends: Memo[Repeat] = Memo()


def _empty_outputs(call: DecodeCall) -> tuple[Tensor, Tensor]:
    q = call.q
    B, Hq, Sq, _ = q.shape
    shape = (B, Hq, Sq, call.v.shape[-1])
    if call.layout == "BSND":
        shape = (B, Sq, Hq, call.v.shape[-1])
    lse = q.new_empty(
        (B, Hq, Sq) if call.with_lse else (0,), dtype=reference.working_dtype(q.dtype)
    )
    return q.new_empty(shape, dtype=call.out_dtype), lse


def plan(call: DecodeCall) -> AttentionPlan:
    """What `attend` will run; raises what it would."""
    return plan_decode(call.problem(), call.impl, call.page)


def pointers(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_lens: Tensor,
    block_table: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
) -> dict[str, Tensor | None]:
    """A call's tensors, by the kernels' names."""
    return {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "kv_lens_ptr": kv_lens,
        "table_ptr": block_table,
        "alibi_ptr": alibi_slopes,
        "sinks_ptr": sinks,
    }


def known(call: DecodeCall) -> Repeat | None:
    """How a call is made again that is like one before, if a kernel served that."""
    key = alike(call[:7], call[7:])
    return None if key is None else _known.get(key)


def attend(*args: Any) -> tuple[Tensor, Tensor]:
    """Attention to a cache, of a `DecodeCall`: out in the layout's order; lse, or an empty [0]."""
    call = DecodeCall(*args)
    key = alike(call[:7], call[7:])
    given = pointers(*call[:7])
    if key is not None and (repeat := _known.get(key)):
        made = repeat(given)
        return made["out_ptr"], made["lse_ptr"] if call.with_lse else call.q.new_empty(0)
    problem = call.problem()
    planned = plan_decode(problem, call.impl, call.page)
    out, lse = _empty_outputs(call)
    out_view = heads_first(out, call.layout)
    if planned.route == "reference":
        result, result_lse = reference.decode(
            call.q, call.k, call.v, problem, call.extras, call.block_table
        )
        out_view.copy_(result)
        if call.with_lse:
            lse.copy_(result_lse)
        return out, lse
    from .kernels.split_launch import Pages, launch_attention_split

    assert planned.split is not None and planned.target is not None
    table = call.block_table
    with recording() as launches:
        launch_attention_split(
            call.q,
            call.k,
            call.v,
            out_view,
            lse if call.with_lse else None,
            problem,
            call.extras,
            planned.split,
            planned.target,
            planned.route,
            last_key=True,
            pages=None if table is None else Pages(table, call.page),
        )
    if key is not None:
        results = {"out_ptr": out, "lse_ptr": lse} if call.with_lse else {"out_ptr": out}
        _known.keep(key, repeat_of(call.q.device, launches, given, results, {}))
    return out, lse


decode_op = torch.library.custom_op(
    "flashasc::decode",
    attend,
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor kv_lens, Tensor? block_table, "
    "Tensor? alibi_slopes, Tensor? sinks, float scale, float? softcap, bool causal, "
    "SymInt? window_left, SymInt? window_right, str layout, str precision, ScalarType out_dtype, "
    "bool with_lse, SymInt most_keys, str impl) -> (Tensor, Tensor)",
)


@decode_op.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor]:
    return _empty_outputs(DecodeCall(*args))


def append(
    k: Tensor,
    v: Tensor,
    new_k: Tensor,
    new_v: Tensor,
    kv_lens: Tensor,
    block_table: Tensor | None,
    impl: Impl,
) -> None:
    """Write new keys and values into a cache, behind those that each sequence has."""
    # tokens of the cache itself: programs read and write in no order
    shared = torch._C._is_alias_of  # type: ignore[attr-defined]
    if any(shared(x, held) for x in (new_k, new_v) for held in (k, v)):
        new_k, new_v = new_k.clone(), new_v.clone()
    tensors = (k, v, new_k, new_v, kv_lens, block_table)
    key = alike(tensors, (impl,))
    names = ("k_ptr", "v_ptr", "new_k_ptr", "new_v_ptr", "lens_ptr", "table_ptr")
    given: dict[str, Any] = dict(zip(names, tensors, strict=True))
    if key is not None and (repeat := _known_appends.get(key)):
        repeat(given)
        return
    if not (new_k.numel() and k.numel()):
        return
    plan = plan_reduction(k.device, k.dtype, impl)
    if plan.target is None:
        reference.append(k, v, new_k, new_v, kv_lens, block_table)
        return
    from .kernels.append import launch_append_kv

    with recording() as launches:
        launch_append_kv(*tensors, plan.target, plan.route)  # type: ignore[arg-type]
    if key is not None:
        _known_appends.keep(key, repeat_of(k.device, launches, given, {}, {}))


append_op = torch.library.custom_op(
    "flashasc::append_kv",
    append,
    mutates_args=("k", "v"),
    schema="(Tensor(a!) k, Tensor(b!) v, Tensor new_k, Tensor new_v, Tensor kv_lens, "
    "Tensor? block_table, str impl) -> ()",
)


@append_op.register_fake
def _(*args: Any) -> None:
    return None

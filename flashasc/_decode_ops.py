"""PyTorch's view of decoding with a cache: operators, and shapes for tracing."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import reference
from ._dispatch import Impl, kernel_route, plan_decode
from ._problem import AttentionProblem, Extras, Layout, Precision, attention_problem, heads_first
from ._target import target_of


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


@torch.library.custom_op(
    "flashasc::decode",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor kv_lens, Tensor? block_table, "
    "Tensor? alibi_slopes, Tensor? sinks, float scale, float? softcap, bool causal, "
    "SymInt? window_left, SymInt? window_right, str layout, str precision, ScalarType out_dtype, "
    "bool with_lse, SymInt most_keys, str impl) -> (Tensor, Tensor)",
)
def decode_op(*args: Any) -> tuple[Tensor, Tensor]:
    """Attention to a cache: out in the layout's order; lse, or an empty [0]."""
    call = DecodeCall(*args)
    problem = call.problem()
    plan = plan_decode(problem, call.impl, call.page)
    out, lse = _empty_outputs(call)
    out_view = heads_first(out, call.layout)
    if plan.route == "reference":
        result, result_lse = reference.decode(
            call.q, call.k, call.v, problem, call.extras, call.block_table
        )
        out_view.copy_(result)
        if call.with_lse:
            lse.copy_(result_lse)
        return out, lse
    from .kernels.split_launch import Pages, launch_attention_split

    assert plan.split is not None and plan.target is not None
    table = call.block_table
    launch_attention_split(
        call.q,
        call.k,
        call.v,
        out_view,
        lse if call.with_lse else None,
        problem,
        call.extras,
        plan.split,
        plan.target,
        plan.route,
        last_key=True,
        pages=None if table is None else Pages(table, call.page),
    )
    return out, lse


@decode_op.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor]:
    return _empty_outputs(DecodeCall(*args))


@torch.library.custom_op(
    "flashasc::append_kv",
    mutates_args=("k", "v"),
    schema="(Tensor(a!) k, Tensor(b!) v, Tensor new_k, Tensor new_v, Tensor kv_lens, "
    "Tensor? block_table, str impl) -> ()",
)
def append_op(
    k: Tensor,
    v: Tensor,
    new_k: Tensor,
    new_v: Tensor,
    kv_lens: Tensor,
    block_table: Tensor | None,
    impl: Impl,
) -> None:
    """Write new keys and values into a cache, behind those that each sequence has."""
    if not (new_k.numel() and k.numel()):
        return
    in_torch = impl == "reference" or (
        impl == "auto" and (k.device.type == "cpu" or k.dtype == torch.float64)
    )
    if in_torch:
        reference.append(k, v, new_k, new_v, kv_lens, block_table)
        return
    from .kernels.append import launch_append_kv

    launch_append_kv(
        k, v, new_k, new_v, kv_lens, block_table, target_of(k.device), kernel_route(k.device)
    )


@append_op.register_fake
def _(*args: Any) -> None:
    return None

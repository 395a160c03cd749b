"""The public call: fused scaled-dot-product attention."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from . import _ops
from ._arguments import Arguments, Window, prepare
from ._dispatch import Impl
from ._problem import Layout, Precision, heads_first
from ._repeat import Memo, Repeat, alike_unobserved

__all__ = ["attention"]

_repeats: Memo[Repeat] = Memo()
"""How calls are made again that were found right before."""


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: Layout = ...,
    causal: bool = ...,
    causal_align: Literal["bottom_right", "top_left"] = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    mask: Tensor | None = ...,
    bias: Tensor | None = ...,
    alibi_slopes: Tensor | None = ...,
    sinks: Tensor | None = ...,
    cu_seqlens_q: Tensor | None = ...,
    cu_seqlens_k: Tensor | None = ...,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    kv_lens: Tensor | None = ...,
    precision: Precision = ...,
    out_dtype: torch.dtype | None = ...,
    return_lse: Literal[False] = ...,
    impl: Impl = ...,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: Layout = ...,
    causal: bool = ...,
    causal_align: Literal["bottom_right", "top_left"] = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    mask: Tensor | None = ...,
    bias: Tensor | None = ...,
    alibi_slopes: Tensor | None = ...,
    sinks: Tensor | None = ...,
    cu_seqlens_q: Tensor | None = ...,
    cu_seqlens_k: Tensor | None = ...,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    kv_lens: Tensor | None = ...,
    precision: Precision = ...,
    out_dtype: torch.dtype | None = ...,
    return_lse: Literal[True],
    impl: Impl = ...,
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: Layout = "BNSD",
    causal: bool = False,
    causal_align: Literal["bottom_right", "top_left"] = "bottom_right",
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    kv_lens: Tensor | None = None,
    precision: Precision = "compensated",
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
    impl: Impl = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale * q @ k^T) @ v, fused, with an error that does not grow with the keys.

    Args:
        q: [B, Hq, Sq, D] (or [B, Sq, Hq, D], or packed [tokens, Hq, D]: see `layout`) float16,
            bfloat16, float32 or float64, any strides. Queries.
        k: [B, Hk, Sk, D] of the same dtype and device. Keys. Hq must be a multiple of Hk: query
            head h reads key/value head h // (Hq // Hk).
        v: [B, Hk, Sk, Dv]. Values; Dv may differ from D.
        layout: "BNSD" ([batch, heads, sequence, head]), "BSND" ([batch, sequence, heads, head]) or
            "TND" ([tokens, heads, head]: sequences packed one after another, see `cu_seqlens_q`).
        causal: hide the keys after each query.
        causal_align: which query and key are aligned when Sq != Sk: "bottom_right", the last of
            each (query i with key i + off, off = Sk - Sq), or "top_left", the first of each
            (off = 0), as in `F.scaled_dot_product_attention`. Holds for `causal`, `window` and
            `alibi_slopes`; packed sequences align each by its own lengths.
        scale: factor of q @ k^T; None means 1 / sqrt(D).
        window: (left, right): query i sees the keys from i + off - left to i + off + right; None in
            either place is no bound.
        softcap: scores s become softcap * tanh(s / softcap), after `scale`, before `bias`.
        mask: bool, broadcasts to [B, Hq, Sq, Sk] whatever the layout; True where a query may see a
            key.
        bias: any float dtype, broadcasts to [B, Hq, Sq, Sk]. Added to scale * q @ k^T. A finite
            one beyond 2.3e38 in size counts as that. -inf gives its key no weight; what a key
            holds that is not to be touched at all, NaN say, a `mask` keeps out.
        alibi_slopes: [Hq] or [B, Hq], any float dtype. Subtracts slope * |i + off - j| from the
            score of query i and key j.
        sinks: [Hq], any float dtype. One more logit for each row of a head, as it is (not scaled),
            in the denominator alone.
        cu_seqlens_q, cu_seqlens_k: [B + 1] int32 or int64, on q's device, for layout "TND":
            sequence b has the queries cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1, and so for keys.
        max_seqlen_q, max_seqlen_k: the longest packed sequence, or more. Given, nothing waits for
            the device; None reads it from there.
        kv_lens: [B] int32 or int64, on q's device. How many keys of each sequence are valid in a
            right-padded batch. Hides the others and does not move the diagonal: off is Sk - Sq.
        precision: how sums over keys are kept. "compensated": Kahan, so the error stays flat as Sk
            grows, and 16-bit weights are normalised as rounded. "standard": plain float32, as in
            FlashAttention. "high", for 16-bit inputs: "compensated", with weights of twice 16 bits
            (in the reference, of 32), so that the output is correctly rounded almost always.
        out_dtype: dtype of the output: q's (None) or torch.float32.
        return_lse: also return the log-sum-exp of each row's scores, the sink among them.
        impl: "auto": the kernel on an accelerator, the reference for CPU tensors and float64.
            "triton": the kernel; for CPU tensors it runs as lowered for Ascend, natively (see
            `flashasc.native` for what that models). "reference": plain PyTorch. An explicit choice
            is never replaced.

    Returns:
        out: contiguous in the layout's order, [B, Hq, Sq, Dv], [B, Sq, Hq, Dv] or
        [tokens, Hq, Dv]; or (out, lse) with lse [B, Hq, Sq] ([Hq, tokens] for "TND") float32
        (float64 for float64 input), natural logarithm.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it and the way out.
        NotImplementedError: an option, dtype, head size or device that the kernel does not serve,
            never silently replaced by something slower; `mask`, `bias` or `kv_lens` with packed
            sequences; precision "high" for float32 and float64.
        ImportError: a kernel is needed and no Triton is installed.
        RuntimeError: a kernel is needed and the Triton installed is the wrong one, or damaged.

    A row with no key to see, or whose scores are all -inf, has output 0 and log-sum-exp -inf, or
    its sink. NaN and inf in what a row sees reach that row; keys that no row of a tile sees do not,
    whatever they hold. Empty sizes are allowed. What lengths on the device hold is not checked:
    they are clamped to the tensors, and tokens of no sequence get 0 and -inf (see `check`).
    Under autocast q, k and v are cast as in `F.scaled_dot_product_attention`. Gradients of q, k, v,
    bias, alibi_slopes and sinks, through both outputs, are computed in plain PyTorch, a tile at a
    time; second derivatives, forward mode and `torch.func` but for vmap are not. The same call
    gives the same bits each time.
    """
    call = Arguments(
        q,
        k,
        v,
        layout,
        causal,
        causal_align,
        scale,
        window,
        softcap,
        mask,
        bias,
        alibi_slopes,
        sinks,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        kv_lens,
        precision,
        out_dtype,
        return_lse,
        impl,
    )
    key = alike_unobserved((q, k, v, *call.extras[:-1]), call.options)
    if key is not None and (repeat := _repeats.get(key)):
        made = repeat(_ops.pointers(q, k, v, *call.extras[:-1]))
        return (made["out_ptr"], made["lse_ptr"]) if return_lse else made["out_ptr"]
    call, problem = prepare(call)
    args = _ops.Call(
        heads_first(call.q, layout),
        heads_first(call.k, layout),
        heads_first(call.v, layout),
        # without the diagonals, which parts of sequences bring
        *call.extras[:-1],
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
        None if max_seqlen_q is None else problem.Sq,
        None if max_seqlen_k is None else problem.Sk,
        impl,
    )
    if key is None:
        out, lse = _ops.attention_fwd(*args)
    else:
        out, lse = _ops.forward(*args)
        _repeats.keep(key, _ops.known(args))
    return (out, lse) if return_lse else out

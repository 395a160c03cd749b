"""The public call: fused scaled-dot-product attention."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from . import _ops
from ._dispatch import Plan, plan_attention
from ._problem import Layout, Precision
from ._validate import validate_attention

__all__ = ["attention", "explain"]


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
    precision: Precision = ...,
    out_dtype: torch.dtype | None = ...,
    return_lse: Literal[False] = ...,
    impl: Literal["auto", "triton", "reference"] = ...,
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
    precision: Precision = ...,
    out_dtype: torch.dtype | None = ...,
    return_lse: Literal[True],
    impl: Literal["auto", "triton", "reference"] = ...,
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
    precision: Precision = "compensated",
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
    impl: Literal["auto", "triton", "reference"] = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale * q @ k^T) @ v, fused, with an error that does not grow with the keys.

    Args:
        q: [B, Hq, Sq, D] (or [B, Sq, Hq, D], see `layout`) float16, bfloat16, float32 or float64,
            any strides. Queries.
        k: [B, Hk, Sk, D] of the same dtype and device. Keys. Hq must be a multiple of Hk: query
            head h reads key/value head h // (Hq // Hk).
        v: [B, Hk, Sk, Dv]. Values; Dv may differ from D.
        layout: "BNSD" ([batch, heads, sequence, head]) or "BSND" ([batch, sequence, heads, head]).
        causal: hide the keys after each query.
        causal_align: which query and key are aligned when Sq != Sk: "bottom_right", the last of
            each (key j is seen by query i where j <= i + Sk - Sq), or "top_left", the first of each
            (j <= i), as in `F.scaled_dot_product_attention`.
        scale: factor of q @ k^T; None means 1 / sqrt(D).
        precision: how sums over keys are kept. "compensated": Kahan, so the error stays flat as Sk
            grows, and 16-bit weights are normalised as rounded. "standard": plain float32, as in
            FlashAttention.
        out_dtype: dtype of the output: q's (None) or torch.float32.
        return_lse: also return the log-sum-exp of each row's scores.
        impl: "auto": the kernel on an accelerator, the reference for CPU tensors and float64.
            "triton": the kernel; for CPU tensors it runs as lowered for Ascend, natively (see
            `flashasc.native` for what that models). "reference": plain PyTorch. An explicit choice
            is never replaced.

    Returns:
        out: contiguous in the layout's order, [B, Hq, Sq, Dv] or [B, Sq, Hq, Dv]; or
        (out, lse) with lse [B, Hq, Sq] float32 (float64 for float64 input), natural logarithm.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it and the way out.
        NotImplementedError: an option, dtype, head size or device that the kernel does not serve;
            never silently replaced by something slower.
        ImportError: a kernel is needed and no fitting Triton is installed.

    A row with no key to see, or whose scores are all -inf, has output 0 and log-sum-exp -inf.
    NaN and inf in what a row sees reach that row; keys that no row of a tile sees do not, whatever
    they hold. Empty sizes are allowed.
    Under autocast q, k and v are cast as in `F.scaled_dot_product_attention`. Gradients of q, k and
    v, through both outputs, are computed in plain PyTorch, a tile at a time; second derivatives are
    not. The same call gives the same bits each time.
    """
    q, k, v = (_autocast(tensor) for tensor in (q, k, v))
    problem = validate_attention(
        q,
        k,
        v,
        layout=layout,
        causal=causal,
        causal_align=causal_align,
        scale=scale,
        precision=precision,
        out_dtype=out_dtype,
        return_lse=return_lse,
        impl=impl,
    )
    if layout == "BSND":
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    out, lse = _ops.attention_fwd(
        q,
        k,
        v,
        problem.scale,
        problem.causal,
        problem.diagonal,
        problem.layout,
        problem.precision,
        problem.out_dtype,
        problem.with_lse,
        impl,
    )
    return (out, lse) if return_lse else out


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: Layout = "BNSD",
    causal: bool = False,
    causal_align: Literal["bottom_right", "top_left"] = "bottom_right",
    scale: float | None = None,
    precision: Precision = "compensated",
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
    impl: Literal["auto", "triton", "reference"] = "auto",
) -> Plan:
    """What `attention` would run for these arguments, and why. Computes nothing.

    Args:
        q, k, v, layout, ...: as for `attention`.

    Returns:
        The plan: route, reason, target, and the row of the tile table. `print` it.

    Raises:
        What `attention` would raise.
    """
    q, k, v = (_autocast(tensor) for tensor in (q, k, v))
    problem = validate_attention(
        q,
        k,
        v,
        layout=layout,
        causal=causal,
        causal_align=causal_align,
        scale=scale,
        precision=precision,
        out_dtype=out_dtype,
        return_lse=return_lse,
        impl=impl,
    )
    return plan_attention(problem, impl)


def _autocast(tensor: Tensor) -> Tensor:
    """The tensor in autocast's dtype where autocast is on; float64 is left alone, as by SDPA."""
    if not isinstance(tensor, Tensor) or tensor.dtype == torch.float64:
        return tensor
    device_type = tensor.device.type
    if not tensor.is_floating_point() or device_type == "meta":
        return tensor
    if not torch.is_autocast_enabled(device_type):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device_type))

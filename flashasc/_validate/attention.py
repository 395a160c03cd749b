"""The check of a whole call.

Looks at types, shapes, dtypes, devices and strides only, never at values: it runs on meta and fake
tensors and under torch.compile. Only `check_values` reads any.
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from .._problem import AttentionProblem, Layout, Precision, attention_problem, heads_first
from . import tensors as check
from .arguments import Arguments
from .derivatives import no_transforms
from .scalars import flag, length_of, one_of, out_dtype_of, scale_of, softcap_of, window_of

_AXES = {"BNSD": "[B, H, S, D]", "BSND": "[B, S, H, D]", "TND": "[tokens, H, D]"}
_DIFFERENTIABLE = (
    "F.scaled_dot_product_attention under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
)
_CU_SEQLENS = "[B + 1] cumulative lengths with a leading 0"


def validate_attention(call: Arguments) -> AttentionProblem:
    """Check the arguments of `flashasc.attention` and return the facts of the call.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it, what was expected, what
            was given, and the way out.
        NotImplementedError: an argument is right but not supported.
    """
    one_of("impl", call.impl, ("auto", "triton", "reference"))
    one_of("causal_align", call.causal_align, ("bottom_right", "top_left"))
    flag("causal", call.causal)
    flag("return_lse", call.return_lse)
    one_of("layout", call.layout, get_args(Layout))
    one_of("precision", call.precision, get_args(Precision))
    left, right = window_of(call.window)
    _heads(call)
    if call.precision == "high" and call.q.dtype not in (torch.float16, torch.bfloat16):
        raise NotImplementedError(
            f'precision="high" is for float16 and bfloat16 inputs; got {call.q.dtype}, whose '
            'weights are not rounded before they are multiplied. Use precision="compensated"'
        )
    _options(call)
    scale = scale_of(call.scale, call.q.shape[-1], call.q.dtype)
    asking = (call.q, call.k, call.v, call.bias, call.alibi_slopes, call.sinks)
    no_transforms("flashasc.attention", _DIFFERENTIABLE, *asking)
    needs_grad = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in asking)
    q, k, v = (heads_first(x, call.layout) for x in (call.q, call.k, call.v))
    return attention_problem(
        q,
        k,
        v,
        call.extras,
        scale=scale,
        softcap=softcap_of(call.softcap, scale, call.q.dtype),
        # a window with nothing to the right is a causal one
        causal=call.causal or right == 0,
        bottom_right=call.causal_align == "bottom_right",
        window_left=left,
        window_right=None if call.causal or right == 0 else right,
        layout=call.layout,
        precision=call.precision,
        out_dtype=out_dtype_of(call.out_dtype, call.q.dtype),
        with_lse=call.return_lse or needs_grad,
        max_seqlen_q=length_of("max_seqlen_q", call.max_seqlen_q),
        max_seqlen_k=length_of("max_seqlen_k", call.max_seqlen_k),
    )


def _heads(call: Arguments) -> None:
    """q, k and v: each a tensor of the right kind, and of one mind about their sizes."""
    q, k, v, layout = call.q, call.k, call.v, call.layout
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check.strided(name, tensor)
        dims = len(_AXES[layout].split(","))
        if tensor.dim() != dims:
            raise ValueError(
                f"{name} must have {dims} dimensions, {_AXES[layout]} in layout {layout}; got "
                f"{tensor.dim()}: {tuple(tensor.shape)}. {_dimensions_hint(layout)}"
            )
        check.floating(name, tensor)
    for name, tensor in (("k", k), ("v", v)):
        _alike("dtype", name, tensor.dtype, q.dtype, "cast all three to one dtype")
        _alike("device", name, tensor.device, q.device, "move all three to one device")
    (*B, Hq, _, D), (*Bk, Hk, Sk, Dk), (*Bv, Hv, Sv, Dv) = (
        heads_first(x, layout).shape for x in (q, k, v)
    )
    # the text is made where it is raised: shapes may be symbols under torch.compile, and printing
    # one fixes its value
    if not B == Bk == Bv:
        raise ValueError(
            f"q, k and v must have one batch size; got {_shapes(call)}. Expand the "
            "smaller one: a batch of stride 0 costs no memory"
        )
    if Dk != D:
        raise ValueError(
            f"q and k must have one head size: D = {D} and {Dk}; got {_shapes(call)}. "
            "Only v may have another one"
        )
    if (Hk, Sk) != (Hv, Sv):
        raise ValueError(
            f"k and v must have the same heads and keys: {Hk} x {Sk} and {Hv} x {Sv}; got "
            f"{_shapes(call)}. {_layout_hint(layout)}"
        )
    if D < 1 or Dv < 1:
        raise ValueError(f"head sizes must be at least 1: D = {D}, Dv = {Dv}; got {_shapes(call)}")
    if (Hk == 0 and Hq > 0) or (Hk > 0 and Hq % Hk):
        raise ValueError(
            f"the query heads must be a multiple of the key/value heads: Hq = {Hq}, Hk = {Hk}; got "
            f"{_shapes(call)}. {_layout_hint(layout)}"
        )


def _options(call: Arguments) -> None:
    """The other tensors, in the shapes that q and k ask for."""
    q, packed = call.q, call.layout == "TND"
    if packed:
        B, Sq, Sk = _packed(call), 0, 0
    else:
        for name in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"):
            if getattr(call, name) is not None:
                raise ValueError(
                    f'{name} belongs to packed sequences, layout="TND"; got layout='
                    f'"{call.layout}". Lengths of a padded batch are kv_lens=...'
                )
        B, _, Sq, _ = heads_first(q, call.layout).shape
        Sk = heads_first(call.k, call.layout).shape[2]
    Hq = heads_first(q, call.layout).shape[-3]
    if call.mask is not None:
        check.mask_tensor(call.mask, q, (B, Hq, Sq, Sk))
    if call.bias is not None:
        check.bias_tensor(call.bias, q, (B, Hq, Sq, Sk))
    if call.alibi_slopes is not None:
        check.slopes_tensor(call.alibi_slopes, q, B, Hq)
    if call.sinks is not None:
        check.sinks_tensor(call.sinks, q, Hq)
    if call.kv_lens is not None:
        check.lengths_tensor("kv_lens", call.kv_lens, q, B, "[B] lengths, one a sequence")


def _packed(call: Arguments) -> int:
    """The number of packed sequences."""
    for name in ("mask", "bias", "kv_lens"):
        if getattr(call, name) is not None:
            raise NotImplementedError(
                f'{name} is not supported with packed sequences, layout="TND"; pad the batch and '
                'use layout="BSND"'
            )
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        if getattr(call, name) is None:
            raise ValueError(
                f'{name} must be given with packed sequences, layout="TND": {_CU_SEQLENS}; got '
                "None. For self-attention pass the same tensor as cu_seqlens_q and cu_seqlens_k"
            )
    check.lengths_tensor("cu_seqlens_q", call.cu_seqlens_q, call.q, None, _CU_SEQLENS)
    edges: int = call.cu_seqlens_q.shape[0]
    what = f"{_CU_SEQLENS}, like cu_seqlens_q"
    check.lengths_tensor("cu_seqlens_k", call.cu_seqlens_k, call.q, edges, what)
    return edges - 1


def _alike(what: str, name: str, got: object, expected: object, fix: str) -> None:
    if got != expected:
        error = TypeError if what == "dtype" else ValueError
        raise error(f"{name} must have q's {what}, {expected}; got {got}: {fix}")


def _shapes(call: Arguments) -> str:
    tensors: dict[str, Tensor] = {"q": call.q, "k": call.k, "v": call.v}
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
    return f"{shapes} in layout {call.layout} {_AXES[call.layout]}"


def _dimensions_hint(layout: str) -> str:
    if layout == "TND":
        return 'A padded batch is layout="BSND" or "BNSD"'
    return 'Add the missing ones with unsqueeze; packed sequences are layout="TND"'


def _layout_hint(layout: str) -> str:
    if layout == "TND":
        return "Transpose tensors that are [H, tokens, D]"
    other = "BSND" if layout == "BNSD" else "BNSD"
    return f'If the tensors are {_AXES[other]}, pass layout="{other}"'

"""Everything a caller can get wrong, checked before anything is computed.

Looks at types, shapes, dtypes, devices and strides only, never at values: it runs on meta and fake
tensors and under torch.compile.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, get_args

import torch

from ._problem import AttentionProblem, Layout, Precision, columns_adjacent

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_AXES = {"BNSD": "[B, H, S, D]", "BSND": "[B, S, H, D]"}


def validate_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    layout: Any,
    causal: Any,
    causal_align: Any,
    scale: Any,
    precision: Any,
    out_dtype: Any,
    return_lse: Any,
    impl: Any,
) -> AttentionProblem:
    """Check the arguments of `flashasc.attention` and return the facts of the call.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it, what was expected, what
            was given, and the way out.
        NotImplementedError: an argument is right but not supported.
    """
    _one_of("impl", impl, ("auto", "triton", "reference"))
    _one_of("causal_align", causal_align, ("bottom_right", "top_left"))
    _flag("causal", causal)
    _flag("return_lse", return_lse)
    if layout == "TND":
        raise NotImplementedError(
            'layout="TND" (packed sequences) is not supported yet; pad the batch and use "BSND"'
        )
    _one_of("layout", layout, get_args(Layout))
    if precision == "high":
        raise NotImplementedError(
            'precision="high" is not supported yet; use precision="compensated"'
        )
    _one_of("precision", precision, get_args(Precision))

    tensors = {"q": q, "k": k, "v": v}
    for name, tensor in tensors.items():
        _tensor(name, tensor, layout)
    for name in ("k", "v"):
        _alike("dtype", name, tensors[name].dtype, q.dtype, "cast all three to one dtype")
        _alike("device", name, tensors[name].device, q.device, "move all three to one device")

    B, Hq, Sq, D = _sizes(q, layout)
    Bk, Hk, Sk, Dk = _sizes(k, layout)
    Bv, Hv, Sv, Dv = _sizes(v, layout)
    # the text is made where it is raised: shapes may be symbols under torch.compile, and printing
    # one fixes its value
    if not B == Bk == Bv:
        raise ValueError(
            f"q, k and v must have one batch size; got {_shapes(tensors, layout)}. Expand the "
            "smaller one: a batch of stride 0 costs no memory"
        )
    if Dk != D:
        raise ValueError(
            f"q and k must have one head size: D = {D} and {Dk}; got {_shapes(tensors, layout)}. "
            "Only v may have another one"
        )
    if (Hk, Sk) != (Hv, Sv):
        raise ValueError(
            f"k and v must have the same heads and keys: {Hk} x {Sk} and {Hv} x {Sv}; got "
            f"{_shapes(tensors, layout)}. {_layout_hint(layout)}"
        )
    if D < 1 or Dv < 1:
        raise ValueError(
            f"head sizes must be at least 1: D = {D}, Dv = {Dv}; got {_shapes(tensors, layout)}"
        )
    if (Hk == 0 and Hq > 0) or (Hk > 0 and Hq % Hk):
        raise ValueError(
            f"the query heads must be a multiple of the key/value heads: Hq = {Hq}, Hk = {Hk}; got "
            f"{_shapes(tensors, layout)}. {_layout_hint(layout)}"
        )

    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())
    return AttentionProblem(
        B=B,
        Hq=Hq,
        Hk=Hk,
        Sq=Sq,
        Sk=Sk,
        D=D,
        Dv=Dv,
        dtype=q.dtype,
        out_dtype=_out_dtype(out_dtype, q.dtype),
        device=q.device,
        layout=layout,
        causal=causal,
        diagonal=Sk - Sq if causal_align == "bottom_right" else 0,
        scale=_scale(scale, D, q.dtype),
        precision=precision,
        with_lse=return_lse or needs_grad,
        adjacent_columns=columns_adjacent(q, k, v),
    )


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {allowed}; got {value!r}")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}; got {value!r}")


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False; got {type(value).__name__} {value!r}")


def _tensor(name: str, tensor: Any, layout: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor; got {type(tensor).__name__}. torch.as_tensor makes "
            "one of an array"
        )
    if tensor.is_nested:
        raise TypeError(
            f"{name} must be a strided (dense) tensor; got a nested one. "
            "torch.nested.to_padded_tensor makes it dense"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"{name} must be a strided (dense) tensor; got {tensor.layout}. Call .to_dense() on it"
        )
    if tensor.dim() != 4:
        raise ValueError(
            f"{name} must have 4 dimensions, {_AXES[layout]} in layout {layout}; got "
            f"{tensor.dim()}: {tuple(tensor.shape)}. Add the missing ones with unsqueeze"
        )
    if tensor.dtype not in _DTYPES:
        raise TypeError(
            f"{name} must be float16, bfloat16, float32 or float64; got {tensor.dtype}. Cast it "
            "first"
        )


def _alike(what: str, name: str, got: object, expected: object, fix: str) -> None:
    if got != expected:
        error = TypeError if what == "dtype" else ValueError
        raise error(f"{name} must have q's {what}, {expected}; got {got}: {fix}")


def _sizes(tensor: torch.Tensor, layout: str) -> tuple[int, int, int, int]:
    batch, second, third, head_size = tensor.shape
    heads, length = (second, third) if layout == "BNSD" else (third, second)
    return batch, heads, length, head_size


def _shapes(tensors: dict[str, torch.Tensor], layout: str) -> str:
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
    return f"{shapes} in layout {layout} {_AXES[layout]}"


def _layout_hint(layout: str) -> str:
    other = "BSND" if layout == "BNSD" else "BNSD"
    return f'If the tensors are {_AXES[other]}, pass layout="{other}"'


def _scale(scale: Any, D: int, dtype: torch.dtype) -> float:
    if scale is None:
        return 1.0 / math.sqrt(D)
    if isinstance(scale, torch.Tensor):
        raise TypeError(
            "scale must be a Python number; got a tensor, whose value would have to be fetched "
            "from its device. Multiply q by it, or pass scale.item()"
        )
    if isinstance(scale, bool) or not isinstance(
        scale, (numbers.Real, torch.SymFloat, torch.SymInt)
    ):
        raise TypeError(f"scale must be a number or None; got {type(scale).__name__} {scale!r}")
    # products of scores and scale are float32, float64 for float64 inputs; with scale go log2 units
    largest = torch.finfo(torch.promote_types(dtype, torch.float32)).max * math.log(2.0)
    # compared as given: an int may be too large to become a float
    value: Any = scale
    if not -largest <= value <= largest:
        raise ValueError(
            f"scale must be finite and at most {largest:.3g} in size for {dtype} inputs; got "
            f"{_short(scale)}. Scale q instead"
        )
    return float(value)


def _short(number: Any) -> str:
    text = repr(number)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _out_dtype(out_dtype: Any, dtype: torch.dtype) -> torch.dtype:
    if out_dtype is None:
        return dtype
    if not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"out_dtype must be a torch.dtype or None; got {out_dtype!r}")
    if out_dtype not in (dtype, torch.float32):
        choices = "torch.float32" if dtype == torch.float32 else f"torch.float32 or {dtype}"
        raise ValueError(
            f"out_dtype must be {choices} where q is {dtype}; got {out_dtype}. Cast the output "
            "instead"
        )
    return out_dtype

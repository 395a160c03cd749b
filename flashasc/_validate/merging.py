"""The check of a call of `flashasc.merge_attention_states`."""

from __future__ import annotations

from typing import Any, get_args

import torch

from .._problem import Layout, heads_first
from . import tensors as check
from .scalars import one_of, out_dtype_of

_DIMENSIONS = {"BNSD": 4, "BSND": 4, "TND": 3}


def validate_merge(
    out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, layout: Any, out_dtype: Any
) -> tuple[torch.dtype, torch.dtype]:
    """Check the arguments; return the dtype of the output, and the one to compute in.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """
    one_of("layout", layout, get_args(Layout))
    for name, tensor in (("out_a", out_a), ("out_b", out_b), ("lse_a", lse_a), ("lse_b", lse_b)):
        check.strided(name, tensor)
        check.floating(name, tensor)
    if out_a.dim() != _DIMENSIONS[layout]:
        raise ValueError(
            f"out_a must have {_DIMENSIONS[layout]} dimensions in layout {layout}; got "
            f"{tuple(out_a.shape)}. Pass the layout that the outputs are in"
        )
    working = torch.promote_types(out_a.dtype, torch.float32)
    rows = heads_first(out_a, layout).shape[:-1]
    for name, tensor, shape, dtype in (
        ("out_b", out_b, out_a.shape, out_a.dtype),
        ("lse_a", lse_a, rows, working),
        ("lse_b", lse_b, rows, working),
    ):
        if tensor.shape != shape:
            raise ValueError(
                f"{name} must be {tuple(shape)} beside out_a {tuple(out_a.shape)} in layout "
                f"{layout}; got {tuple(tensor.shape)}. Both pairs are results for the same queries"
            )
        if tensor.dtype != dtype:
            raise TypeError(
                f"{name} must be {dtype} beside out_a in {out_a.dtype}; got {tensor.dtype}: cast "
                "it, or keep what attention returned"
            )
        if tensor.device != out_a.device:
            raise ValueError(
                f"{name} must be on out_a's device, {out_a.device}; got {tensor.device}: move it"
            )
    return out_dtype_of(out_dtype, out_a.dtype), working

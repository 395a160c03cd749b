"""Exact results to measure by: the same function in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def golden(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function returns when everything in it is float64.

    Args:
        fn: any function of tensors that computes in the dtype of what it is given; of a module a
            copy in float64 is called.
        *args, **kwargs: its arguments, in the dtype that the result to be judged came from.
            Floating tensors, also nested ones, are converted to float64, and floating dtypes
            become `torch.float64`; integers, bool and the rest stay.

    Returns:
        What `fn` returns. Pass it to `compare` as it is: it is rounded there, once.

    Raises:
        ValueError: a floating tensor came back in another dtype: the function rounds inside, and
            what it returns is not exact.

    For attention see `golden_attention`.
    """
    if isinstance(fn, torch.nn.Module):
        fn = copy.deepcopy(fn).double()
    result = fn(*pytree.tree_map(_widen, args), **pytree.tree_map(_widen, kwargs))
    for path, leaf in pytree.tree_flatten_with_path(result)[0]:
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64:
            where = pytree.keystr(path)
            raise ValueError(
                f"fn: its result{where} is {leaf.dtype} for float64 inputs, so it converts inside; "
                "give a function that computes in its inputs' dtype"
            )
    return result


def golden_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, **options: Any
) -> Any:
    """Attention of these very inputs in float64, by flashasc's plain PyTorch reference.

    Its memory grows with queries and keys, not with their product; `flashasc.testing` has an
    independent one by the definition, `exact_attention`.

    Args:
        q, k, v: as for `flashasc.attention`.
        return_lse: return (out, lse) instead of out.
        **options: those of `flashasc.attention` that say what is computed, from `layout` to
            `max_seqlen_k`. What says how (`precision`, `impl`, `out_dtype`) is a TypeError.

    Returns:
        out, or (out, lse), float64.
    """
    from ..attention import attention

    if how := sorted(options.keys() & {"precision", "impl", "out_dtype"}):
        raise TypeError(f"{how[0]}: says how to compute, which for a golden result is float64")
    return golden(attention, q, k, v, impl="reference", return_lse=return_lse, **options)


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().double()
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value

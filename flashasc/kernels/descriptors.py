"""Keys and values by tensor descriptor: memory that NVIDIA's sm_90 reads whole tiles of."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._configs import TileConfig
from .._problem import AttentionProblem
from .launch import Route

LEAST_KEYS = 2048
"""Fewer take less time to attend to than the host takes to encode two descriptors."""


def key_descriptors(
    k: Tensor, v: Tensor, problem: AttentionProblem, config: TileConfig, route: Route
) -> tuple[Any, Any] | None:
    """Descriptors of the keys and values, or None where they are read by pointers alone.

    Either way the numbers come out the same.

    Args:
        k: [B, Hk, Sk, D], or [Hk, tokens, D] where packed; any strides.
        v: [B, Hk, Sk, Dv], or [Hk, tokens, Dv] where packed; any strides.
        problem: the facts of the call.
        config: its row says whether descriptors pay.
        route: where the kernel runs.
    """
    if not config.descriptors or route != "device" or problem.Sk < LEAST_KEYS:
        return None
    if problem.packed:
        k, v = k.unsqueeze(0), v.unsqueeze(0)
    if not (describable(k) and describable(v)):
        return None
    return (
        describe(k, config.block_n, config.columns(problem.D)),
        describe(v, config.block_n, config.value_columns(problem.Dv)),
    )


def describable(tensor: Tensor) -> bool:
    """Whether the hardware can address a tensor [batches, heads, rows, columns] by descriptor.

    Source: CUDA driver API, cuTensorMapEncodeTiled.
    """
    *outer, last = tensor.stride()
    return (
        last == 1
        and tensor.data_ptr() % 16 == 0
        and all(
            size == 1 or (0 < stride < 2**32 and stride * tensor.element_size() % 16 == 0)
            for size, stride in zip(tensor.shape, outer, strict=False)
        )
    )


def describe(tensor: Tensor, rows: int, columns: int) -> Any:
    """A descriptor of [batches, heads, rows, columns], in tiles of [1, 1, rows, columns]."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    *outer, last = tensor.stride()
    # where there is one of a kind, its stride is never taken, but has to be one that could be
    strides = [16 if size == 1 else stride for size, stride in zip(tensor.shape, outer)]
    return TensorDescriptor(tensor, list(tensor.shape), [*strides, last], [1, 1, rows, columns])

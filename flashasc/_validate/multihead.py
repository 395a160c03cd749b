"""The check of a call of `torch.nn.MultiheadAttention`."""

from __future__ import annotations

import torch
from torch import Tensor


def validate_multihead(
    module: torch.nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor
) -> None:
    """Check query, key and value of a call.

    Raises:
        TypeError, ValueError: one is no tensor, or of a wrong shape.
        NotImplementedError: one is nested.
    """
    widths = {"query": module.embed_dim, "key": module.kdim, "value": module.vdim}
    tensors = {"query": query, "key": key, "value": value}
    order = "[N, length, features]" if module.batch_first else "[length, N, features]"
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor; got {type(x).__name__}")
        if x.is_nested:
            raise NotImplementedError(
                f"{name} is a nested tensor, which is not supported; pad it with "
                "torch.nested.to_padded_tensor and pass key_padding_mask"
            )
        if x.dim() != query.dim() or x.dim() not in (2, 3):
            raise ValueError(
                f"query, key and value must all be {order} or all [length, features]; got "
                f"{name} {tuple(x.shape)} with query {tuple(query.shape)}"
            )
        if x.shape[-1] != widths[name]:
            raise ValueError(
                f"{name} must have {widths[name]} features, {order}; got {tuple(x.shape)}"
            )
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            "key and value must have the same length and batch; got "
            f"{tuple(key.shape)} and {tuple(value.shape)}"
        )
    axis = 0 if module.batch_first else 1
    if query.dim() == 3 and query.shape[axis] != key.shape[axis]:
        raise ValueError(
            f"query and key must have one batch size, {order}; got {tuple(query.shape)} and "
            f"{tuple(key.shape)}. The module has batch_first={module.batch_first}"
        )

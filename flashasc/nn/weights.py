"""The matrix of attention weights, for who asks for it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["attention_weights"]


def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, *, average: bool
) -> Tensor:
    """softmax(q @ k^T / sqrt(D)), in float32 or more, whole.

    Args:
        q: [N, L, heads, D]. Queries.
        k: [N, S, heads, D]. Keys.
        mask: bool, broadcasts to [N, heads, L, S]; True where a query may see a key.
        bias: float, broadcasts likewise; added to the scores.
        average: the mean over the heads, of which one at a time is held.

    Returns:
        [N, heads, L, S], or [N, L, S] where averaged, of q's dtype. A row that sees no key is 0.
    """
    heads = q.shape[2]
    if not average:
        return _weights(q, k, mask, bias).to(q.dtype)
    total = None
    for head in range(heads):
        one = slice(head, head + 1)
        of_head = [x[:, one] if x is not None and _has_heads(x) else x for x in (mask, bias)]
        weights = _weights(q[:, :, one], k[:, :, one], *of_head)
        total = weights if total is None else total + weights
    assert total is not None
    return (total[:, 0] / heads).to(q.dtype)


def _has_heads(x: Tensor) -> bool:
    return x.dim() == 4 and x.shape[1] > 1


def _weights(q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    wide = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        scores = q.transpose(1, 2).to(wide) @ k.permute(0, 2, 3, 1).to(wide)
        scores = scores / math.sqrt(q.shape[-1])
        if bias is not None:
            scores = scores + bias.to(wide)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        if not scores.shape[-1]:
            return scores
        unseen = scores.amax(-1, keepdim=True) == -math.inf
        return scores.masked_fill(unseen, 0.0).softmax(-1).masked_fill(unseen, 0.0)

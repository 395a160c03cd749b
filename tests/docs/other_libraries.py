"""Dense float64 models of other libraries' attention, written from their documentation.

flash-attn: the docstrings in flash_attn/flash_attn_interface.py. npu_fusion_attention: op-plugin's
docs/context/torch_npu-npu_fusion_attention.md and, for pse_type, aclnnFlashAttentionScoreV2.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def _attend(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, visible: Tensor) -> Tensor:
    """[B, H, S, D]; rows without a key are 0."""
    scores = scores.masked_fill(~visible, float("-inf"))
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
) -> Tensor:
    assert dropout_p == 0.0
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    Sq, Sk = q.shape[2], k.shape[2]
    at = torch.arange(Sq)[:, None] + Sk - Sq
    j = torch.arange(Sk)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if softcap > 0.0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[:, None, None] * (at - j).abs()
    left, right = window_size
    visible = torch.ones(Sq, Sk, dtype=torch.bool)
    if causal:
        visible = visible & (j <= at)
    if left >= 0:
        visible = visible & (j >= at - left)
    if right >= 0:
        visible = visible & (j <= at + right)
    return _attend(q, k, v, scores, visible).transpose(1, 2)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    assert max_seqlen_q >= cu_seqlens_q.diff().max() and max_seqlen_k >= cu_seqlens_k.diff().max()
    parts = []
    pairs = zip(
        itertools.pairwise(cu_seqlens_q.tolist()), itertools.pairwise(cu_seqlens_k.tolist())
    )
    for (q0, q1), (k0, k1) in pairs:
        parts.append(flash_attn_func(q[None, q0:q1], k[None, k0:k1], v[None, k0:k1], causal=causal))
    return torch.cat(parts, 1)[0]


def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    pse_type: int = 1,
) -> Tensor:
    """The first output of both versions; only version 2 has `pse_type`."""
    if input_layout == "TND":
        assert actual_seq_qlen is not None and actual_seq_kvlen is not None
        parts = []
        pairs = zip(
            itertools.pairwise([0, *actual_seq_qlen]), itertools.pairwise([0, *actual_seq_kvlen])
        )
        for (q0, q1), (k0, k1) in pairs:
            one = (query[None, q0:q1], key[None, k0:k1], value[None, k0:k1])
            options = {"atten_mask": atten_mask, "scale": scale, "sparse_mode": sparse_mode}
            parts.append(npu_fusion_attention(*one, head_num, "BSND", **options))  # type: ignore[arg-type]
        return torch.cat(parts, 1)[0]
    if input_layout == "BSH":
        split = (x.unflatten(2, (head_num, -1)) for x in (query, key, value))
        options = {"atten_mask": atten_mask, "scale": scale, "sparse_mode": sparse_mode}
        return npu_fusion_attention(*split, head_num, "BSND", **options).flatten(2)  # type: ignore[arg-type]
    q, k, v = (x.transpose(1, 2) if input_layout == "BSND" else x for x in (query, key, value))
    Sq, Sk = q.shape[2], k.shape[2]
    i, j = torch.arange(Sq)[:, None], torch.arange(Sk)
    scores = q @ k.mT
    if pse is None:
        scores = scale * scores
    else:
        scores = scale * (scores + pse) if pse_type == 1 else scale * scores + pse
    visible = torch.ones(Sq, Sk, dtype=torch.bool)
    if atten_mask is not None and sparse_mode == 0:
        visible = ~atten_mask
    elif atten_mask is not None:
        # the modes that stand for a triangle want it whole, compressed to 2048 x 2048
        assert atten_mask.shape == (2048, 2048)
        off = 0 if sparse_mode == 2 else Sk - Sq
        right = next_tockens if sparse_mode == 4 else 0
        left = pre_tockens if sparse_mode == 4 else Sk + Sq
        visible = (j <= i + off + right) & (j >= i + off - left)
    out = _attend(q, k, v, scores, visible)
    return out.transpose(1, 2) if input_layout == "BSND" else out

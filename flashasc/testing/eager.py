"""Attention by its definition: every score at once, in plain PyTorch, in any dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

Product = Callable[[Tensor, Tensor], Tensor]


class Result(NamedTuple):
    """Output in the layout of the inputs, and natural-log sum-exp [B, Hq, Sq] ([Hq, tokens])."""

    out: Tensor
    lse: Tensor


@dataclass(frozen=True)
class Options:
    """Options of `flashasc.attention` that say what is computed, under the same names."""

    layout: str = "BNSD"
    causal: bool = False
    causal_align: str = "bottom_right"
    scale: float | None = None
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    alibi_slopes: Tensor | None = None
    sinks: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    kv_lens: Tensor | None = None


def dense(
    q: Tensor, k: Tensor, v: Tensor, options: Options, multiply: Product = torch.matmul
) -> Result:
    """Attention in the dtype of q, k and v, whose products `multiply` computes."""
    match options.layout:
        case "TND":
            return _packed(q, k, v, options, multiply)
        case "BSND":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            out, lse = _padded(q, k, v, options, multiply)
            return Result(out.transpose(1, 2), lse)
    return _padded(q, k, v, options, multiply)


def visible_keys(options: Options, B: int, Sq: int, Sk: int, device: torch.device) -> Tensor:
    """Who sees whom: bool, [B or 1, Hq or 1, Sq, Sk]."""
    distance = _distance(options, Sq, Sk, device)
    visible = torch.ones(1, 1, Sq, Sk, dtype=torch.bool, device=device)
    left, right = options.window or (None, None)
    if options.causal:
        visible = visible & (distance >= 0)
    if left is not None:
        visible = visible & (distance <= left)
    if right is not None:
        visible = visible & (-distance <= right)
    if options.kv_lens is not None:
        valid = torch.arange(Sk, device=device) < options.kv_lens[:, None]
        visible = visible & valid[:, None, None, :]
    if options.mask is not None:
        visible = visible & options.mask
    return visible


def _distance(options: Options, Sq: int, Sk: int, device: torch.device) -> Tensor:
    """How far to the left of the key that it is aligned with a query finds a key."""
    offset = Sk - Sq if options.causal_align == "bottom_right" else 0
    i, j = torch.arange(Sq, device=device), torch.arange(Sk, device=device)
    return i[:, None] + offset - j


def _padded(q: Tensor, k: Tensor, v: Tensor, options: Options, multiply: Product) -> Result:
    B, Hq, Sq, D = q.shape
    Hk, Sk = k.shape[1:3]
    visible = visible_keys(options, B, Sq, Sk, q.device)
    group = Hq // Hk if Hk else 1
    k, v = (x.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2) for x in (k, v))
    unseen = ~visible.any(2)[..., None]
    k, v = k.masked_fill(unseen, 0.0), v.masked_fill(unseen, 0.0)
    scores = multiply(q, k.mT) * (D**-0.5 if options.scale is None else options.scale)
    if options.softcap is not None:
        scores = options.softcap * (scores / options.softcap).tanh()
    scores = _add_terms(scores, options).masked_fill(~visible, -math.inf)
    sinks = scores.new_full((1, Hq, 1, 1), -math.inf)
    if options.sinks is not None:
        sinks = options.sinks.to(q.dtype).view(1, Hq, 1, 1)
    # the sink is a key like any other, whose value is 0
    scores = torch.cat([scores, sinks.expand(B, Hq, Sq, 1)], dim=-1)
    v = torch.cat([v, v.new_zeros(B, Hq, 1, v.shape[3])], dim=2)
    # rows of -inf have no softmax
    blind = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(blind, 0.0)
    if multiply is torch.matmul:
        weights = torch.softmax(scores, dim=-1).masked_fill(blind, 0.0)
        out = weights @ v
    else:
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        sums = multiply(weights, torch.cat([v, torch.ones_like(v[..., :1])], dim=-1))
        out = (sums[..., :-1] / sums[..., -1:]).masked_fill(blind, 0.0)
    return Result(out, scores.logsumexp(-1).masked_fill(blind[..., 0], -math.inf))


def _add_terms(scores: Tensor, options: Options) -> Tensor:
    """Bias and slopes join in float32 at least: rounded first, a long distance would drown all."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    Sq, Sk = scores.shape[2:]
    added = scores.to(wide)
    if options.bias is not None:
        added = added + options.bias.to(wide)
    if options.alibi_slopes is not None:
        slopes = options.alibi_slopes.to(wide)[..., None, None]
        added = added - slopes * _distance(options, Sq, Sk, scores.device).abs()
    return added.to(scores.dtype)


def _packed(q: Tensor, k: Tensor, v: Tensor, options: Options, multiply: Product) -> Result:
    """Each sequence alone; the tokens behind the last one attend to nothing."""
    assert options.cu_seqlens_q is not None and options.cu_seqlens_k is not None
    edges_q, edges_k = options.cu_seqlens_q.tolist(), options.cu_seqlens_k.tolist()
    Hq, Dv = q.shape[1], v.shape[2]
    outs, lses = [], []
    for b in range(len(edges_q) - 1):
        slopes = options.alibi_slopes
        if slopes is not None and slopes.dim() == 2:
            slopes = slopes[b : b + 1]
        one = replace(
            options, layout="BNSD", alibi_slopes=slopes, cu_seqlens_q=None, cu_seqlens_k=None
        )
        rows, keys = slice(edges_q[b], edges_q[b + 1]), slice(edges_k[b], edges_k[b + 1])
        q_b, k_b, v_b = (x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
        out, lse = _padded(q_b, k_b, v_b, one, multiply)
        outs.append(out[0].transpose(0, 1))
        lses.append(lse[0])
    rest = q.shape[0] - (edges_q[-1] if len(edges_q) > 1 else 0)
    outs.append(q.new_zeros(rest, Hq, Dv))
    lses.append(q.new_full((Hq, rest), -math.inf))
    return Result(torch.cat(outs), torch.cat(lses, dim=1))

"""Attention by its definition, one pair of query and key at a time as it were: float64, dense.

Shares no code with the package and none with `flashasc.testing`, so that they cannot err together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.calls import Call

Rounding = Callable[[Tensor], Tensor]

LARGEST_LOG2 = torch.finfo(torch.float32).max * math.log(2.0)
"""Scores beyond it overflow float32 in log2 units; a finite bias beyond it counts as it."""


@dataclass(frozen=True)
class Expected:
    """What a call has to return."""

    out: Tensor
    """[B, Hq, Sq, Dv] in the dtype asked for; where `free`, anything may stand."""
    lse: Tensor
    """[B, Hq, Sq]."""
    free: Tensor
    """[B, Hq, Sq, Dv] bool. A NaN of a value that another row sees may be here, a score is beyond
    float32's range, or the caller wrote lengths that contradict each other."""
    free_lse: Tensor
    """[B, Hq, Sq] bool."""


def expected(
    call: Call,
    dtype: torch.dtype,
    order: torch.Generator | None = None,
    weights_as: Rounding | None = None,
) -> Expected:
    """Attention of a call's inputs, computed in `dtype`.

    Args:
        call: the call.
        dtype: torch.float64 for the exact result; lower ones for what plain PyTorch makes of it.
        order: adds up one by one: the columns of each score in an order of its own, weights and
            weighted values in that of the keys. What a library does depends on where in its tiles
            a key lies: equal keys need not have equal scores, and an order common to all keys would
            hide what that costs. Nor are weights relative to the largest score, which makes those
            of equal keys 1, and their sums exact. Seeded with a multiple of 4 it adds weights in
            pairs: where both sums take one way, a constant value comes out exact, which nothing
            that works tile by tile can promise.
        weights_as: rounds weights before the second product, but not their sum, as
            FlashAttention does.

    Returns:
        The result in [B, H, S, D] order; [1, H, tokens, D] for packed sequences.
    """
    if call.options.get("layout") != "TND":
        layout = call.options.get("layout", "BNSD")
        q, k, v = (x.transpose(1, 2) if layout == "BSND" else x for x in (call.q, call.k, call.v))
        return _padded(q, k, v, call.options, dtype, order, weights_as)
    return _packed(call, dtype, order, weights_as)


def _packed(
    call: Call,
    dtype: torch.dtype,
    order: torch.Generator | None,
    weights_as: Rounding | None,
) -> Expected:
    q, k, v = (x.transpose(0, 1)[None] for x in (call.q, call.k, call.v))
    tokens_q, tokens_k = q.shape[2], k.shape[2]
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=dtype)
    lse = torch.full(q.shape[:3], -math.inf, dtype=dtype)
    free = torch.zeros_like(out, dtype=torch.bool)
    free_lse = torch.zeros_like(lse, dtype=torch.bool)
    edges_q, edges_k = (call.options[f"cu_seqlens_{x}"].tolist() for x in "qk")
    slopes = call.options.get("alibi_slopes")
    rest = {n: x for n, x in call.options.items() if n not in ("layout", "alibi_slopes")}
    for b in range(len(edges_q) - 1):
        rows = _clamped(edges_q[b], edges_q[b + 1], tokens_q)
        keys = _clamped(edges_k[b], edges_k[b + 1], tokens_k)
        own = slopes[b] if slopes is not None and slopes.dim() == 2 else slopes
        options = rest if own is None else {**rest, "alibi_slopes": own}
        one = _padded(
            q[:, :, rows], k[:, :, keys], v[:, :, keys], options, dtype, order, weights_as
        )
        out[:, :, rows], lse[:, :, rows] = one.out, one.lse
        free[:, :, rows] |= one.free
        free_lse[:, :, rows] |= one.free_lse
    shared = tokens_of_two(call)
    free |= shared[:, None]
    free_lse |= shared
    return Expected(out, lse, free, free_lse)


def tokens_of_two(call: Call) -> Tensor:
    """Which query tokens of packed sequences several of them claim: lengths that fall.

    Only `flashasc.check` finds these. On a GPU each sequence writes them, and any may be the last.
    """
    edges = call.options["cu_seqlens_q"].tolist()
    times = torch.zeros(len(call.q), dtype=torch.int64)
    for start, stop in pairwise(edges):
        times[_clamped(start, stop, len(call.q))] += 1
    return times > 1


def _clamped(start: int, stop: int, tokens: int) -> slice:
    start, stop = (min(max(x, 0), tokens) for x in (start, stop))
    return slice(start, max(start, stop))


def _visible(options: dict[str, Any], B: int, Hq: int, Sq: int, Sk: int) -> tuple[Tensor, Tensor]:
    """Who sees whom, bool [B, Hq, Sq, Sk]; and key number minus that of the aligned one."""
    bottom_right = options.get("causal_align", "bottom_right") == "bottom_right"
    i, j = torch.arange(Sq)[:, None], torch.arange(Sk)[None, :]
    ahead = j - (i + (Sk - Sq if bottom_right else 0))
    seen = torch.ones(B, Hq, Sq, Sk, dtype=torch.bool)
    left, right = options.get("window") or (None, None)
    if options.get("causal", False):
        seen &= ahead <= 0
    if left is not None:
        seen &= ahead >= -left
    if right is not None:
        seen &= ahead <= right
    if options.get("mask") is not None:
        seen &= options["mask"]
    if options.get("kv_lens") is not None:
        seen &= (j < options["kv_lens"][:, None])[:, None, None, :]
    return seen, ahead


def _scores(
    q: Tensor, k: Tensor, options: dict[str, Any], ahead: Tensor, order: torch.Generator | None
) -> Tensor:
    """[B, Hq, Sq, Sk] in q's dtype."""
    scale = options.get("scale")
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    products = q @ k.mT if order is None else _in_any_order(q, k, order)
    if options.get("softcap") is None:
        scores = products * scale
    else:
        scores = torch.tanh(products * (scale / options["softcap"])) * options["softcap"]
    # terms join in float32 at least: no 16-bit score could take them up
    wide = torch.promote_types(scores.dtype, torch.float32)
    joined = scores.to(wide)
    if options.get("bias") is not None:
        bias = options["bias"]
        if q.dtype != torch.float64 or options["working"] != torch.float64:
            single = bias.float()
            limited = single.clamp(-LARGEST_LOG2, LARGEST_LOG2)
            bias = torch.where(bias.isinf(), single, limited)
        joined = joined + bias.to(wide)
    if options.get("alibi_slopes") is not None:
        slopes = options["alibi_slopes"].to(wide)[..., None, None]
        joined = joined - slopes * ahead.abs().to(wide)
    return joined.to(scores.dtype)


def _in_any_order(q: Tensor, k: Tensor, order: torch.Generator) -> Tensor:
    """q @ k^T, each key's products added up one by one in an order of its own."""
    columns = torch.rand(k.shape[-2:], generator=order).argsort(-1)
    total = q.new_zeros(*q.shape[:-1], k.shape[-2])
    for picked in columns.T:
        mine = k.gather(-1, picked[:, None].expand(*k.shape[:-1], 1))[..., 0]
        total = total + q[..., picked] * mine[..., None, :]
    return total


def _padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: dict[str, Any],
    dtype: torch.dtype,
    order: torch.Generator | None,
    weights_as: Rounding | None,
) -> Expected:
    B, Hq, Sq, _ = q.shape
    Hk, Sk, Dv = v.shape[1:]
    if 0 in (B, Hq, Sq):
        nothing = torch.zeros(B, Hq, Sq, Dv, dtype=dtype)
        return Expected(nothing, nothing[..., 0], nothing > 0, nothing[..., 0] > 0)
    options = {**options, "working": q.dtype}
    heads = torch.arange(Hq) // (Hq // Hk)
    k, v = (x[:, heads].to(dtype) for x in (k, v))
    seen, ahead = _visible(options, B, Hq, Sq, Sk)
    scores = _scores(q.to(dtype), k, options, ahead, order)
    beyond = ~(scores.abs() < LARGEST_LOG2 / 2) & seen
    scores = torch.where(seen, scores, -math.inf)

    sinks = options.get("sinks")
    sink = torch.full((1, Hq, 1), -math.inf) if sinks is None else sinks.float()[None, :, None]
    sink = sink.to(dtype).expand(B, Hq, Sq)
    top = torch.maximum(scores.amax(-1), sink) if Sk else sink
    top = torch.where(top == -math.inf, 0.0, top)
    if order is not None:
        top = top + torch.rand((), generator=order).to(dtype)
    weights = torch.where(seen, (scores - top[..., None]).exp(), 0.0)
    ones = torch.ones_like(v[..., :1])
    if order is None or order.initial_seed() % 4 == 0:
        total = weights.sum(-1)
    else:
        total = _product(weights, ones, one_by_one=True)[..., 0]
    total = total + (sink - top).exp()
    if weights_as is not None:
        weights = weights_as(weights).to(dtype)
    # a value times an unseen key's weight of 0 is no term of the sum at all; one that is not finite
    # is put in afterwards
    finite = v.isfinite()
    sums = _product(weights, torch.where(finite, v, 0.0), one_by_one=order is not None)
    poison = torch.where(finite, 0, 1).to(torch.float64)
    # a score of -inf may count as hidden
    reached = ((seen & (scores != -math.inf)).double() @ poison) > 0
    blind = ~((scores > -math.inf) | scores.isnan()).any(-1)
    nothing = total == 0
    out = sums / torch.where(nothing, 1.0, total)[..., None]
    out = torch.where(reached, math.nan, out)
    out = torch.where(blind[..., None], 0.0, out)
    lse = torch.where(nothing, -math.inf, top + torch.where(nothing, 1.0, total).log())

    overflow = (beyond & ~_must_spread(q, k, seen)).any(-1)
    elsewhere = _seen_by_group(seen, Hk).double() @ poison > 0
    free = (elsewhere & ~reached) | overflow[..., None]
    return Expected(out, lse, free, overflow)


def _product(weights: Tensor, values: Tensor, *, one_by_one: bool) -> Tensor:
    """weights @ values; one_by_one: added up in the order of the keys."""
    if not one_by_one:
        return weights @ values
    total = weights.new_zeros(*weights.shape[:-1], values.shape[-1])
    for j in range(weights.shape[-1]):
        total = total + weights[..., j, None] * values[..., None, j, :]
    return total


def _must_spread(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """Scores [B, Hq, Sq, Sk] that are NaN since a vector holds one."""
    return (q.isnan().any(-1)[..., None] | k.isnan().any(-1)[:, :, None, :]) & seen


def _seen_by_group(seen: Tensor, Hk: int) -> Tensor:
    """Keys that some row of the same key/value head sees, [B, Hq, 1, Sk]."""
    B, Hq, _, Sk = seen.shape
    some = seen.any(2).view(B, Hk, Hq // Hk, Sk).any(2)
    return some.repeat_interleave(Hq // Hk, dim=1)[:, :, None, :]

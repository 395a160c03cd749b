"""The backward pass over a batch of sequences of one length."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._problem import AttentionProblem, Extras
from .forward import grouped, sink_rows, ungrouped
from .products import working_dtype
from .scores import (
    Terms,
    cut,
    distances,
    grouped_view,
    hidden_from,
    key_tiles,
    row_tiles,
    score_tile,
    seen_keys,
    terms_of,
)


class Needs(NamedTuple):
    """Which gradients are asked for."""

    q: bool = True
    k: bool = True
    v: bool = True
    bias: bool = False
    alibi_slopes: bool = False
    sinks: bool = False


class Gradients(NamedTuple):
    """Gradients of a call's inputs; None where nobody asks."""

    q: Tensor | None
    k: Tensor | None
    v: Tensor | None
    bias: Tensor | None
    alibi_slopes: Tensor | None
    sinks: Tensor | None

    @classmethod
    def zeros(cls, like: tuple[Tensor | None, ...], needs: Needs, dtype: torch.dtype) -> Gradients:
        """Contiguous zeros in the shapes of the inputs that ask."""
        return cls(
            *(
                torch.zeros(x.shape, dtype=dtype, device=x.device)
                if need and x is not None
                else None
                for x, need in zip(like, needs, strict=True)
            )
        )


def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    problem: AttentionProblem,
    extras: Extras,
    needs: Needs,
    terms: Terms | None = None,
    *,
    some_keys: bool = False,
) -> Gradients:
    """Gradients in the working dtype.

    Args:
        grad_out, out: [B, Hq, Sq, Dv].
        grad_lse, lse: [B, Hq, Sq].
        q, k, v: [B, H, S, D] any strides.
        terms: what joins the scores, where the caller knows better than `extras`.
        some_keys: lse is over more keys than these.

    Source: Dao, arXiv:2307.08691 (2023), algorithm 2.
    """
    working = working_dtype(problem.dtype)
    inputs = (q, k, v, extras.bias, extras.alibi_slopes, extras.sinks)
    grads = Gradients.zeros(inputs, needs, working)
    if not out.numel():
        return grads
    terms = terms or terms_of(problem, extras)
    heads = (problem.Hk, problem.group)
    d_bias = None if grads.bias is None else grouped_view(grads.bias, problem)
    d_slopes = None if grads.alibi_slopes is None else grads.alibi_slopes.view(-1, *heads)
    d_sinks = None if grads.sinks is None else grads.sinks.view(heads)
    for rows in row_tiles(problem):
        q_tile = grouped(q[:, :, rows], problem).to(working)
        sinks = sink_rows(terms, rows)
        if some_keys:
            row_max, row_sum, blind = _whole_rows(grouped(lse[:, :, rows], problem)[..., None])
        else:
            row_max, row_sum, blind = _row_statistics(q_tile, k, problem, terms, rows, sinks)
        # a row that saw nothing passes nothing on, whatever it holds: 0 * NaN would
        q_shown = q_tile.masked_fill(blind, 0.0)
        grad_tile, out_tile = (
            grouped(x[:, :, rows], problem).to(working).masked_fill(blind, 0.0)
            for x in (grad_out, out)
        )
        # softmax's Jacobian: ds = p * (dp - delta), and an lse gradient enters as p * grad_lse
        delta = (grad_tile * out_tile).sum(-1, keepdim=True)
        if grad_lse is not None:
            nothing = lse[:, :, rows] == -math.inf
            grad_lse_tile = grad_lse[:, :, rows].to(working).masked_fill(nothing, 0.0)
            delta = delta - grouped(grad_lse_tile, problem)[..., None]
        if d_sinks is not None:
            assert sinks is not None
            shares = (sinks[..., None] - row_max).exp() / row_sum
            d_sinks -= (shares * delta).unflatten(2, (problem.group, -1)).sum((0, 3, 4))
        dq_tile = torch.zeros_like(q_tile)
        for keys in key_tiles(problem, terms, rows):
            hidden = hidden_from(problem, terms, rows, keys, q.device)
            k_tile, v_tile = (seen_keys(x[:, :, keys].to(working), hidden) for x in (k, v))
            scores, derivative = score_tile(
                q_tile, k_tile, problem, terms, rows, keys, hidden, with_derivative=True
            )
            weights = _zero(scores.sub_(row_max).exp_().div_(row_sum), hidden, blind, problem)
            if grads.v is not None:
                grads.v[:, :, keys] += weights.mT @ grad_tile
            ds = (grad_tile @ v_tile.mT).sub_(delta).mul_(weights)
            ds = _zero(ds, hidden, blind, problem)
            by_head = ds.unflatten(2, (problem.group, -1))
            if d_bias is not None:
                part = cut(d_bias, rows, keys)
                part += by_head.sum_to_size(part.shape)
            if d_slopes is not None:
                by_distance = by_head * distances(terms, rows, keys, ds)
                d_slopes -= by_distance.sum((3, 4)).sum_to_size(d_slopes.shape)
            if derivative is not None:
                ds.mul_(derivative)
                ds = _zero(ds, hidden, blind, problem)
            ds.mul_(problem.scale)
            dq_tile += ds @ k_tile
            if grads.k is not None:
                grads.k[:, :, keys] += ds.mT @ q_shown
        if grads.q is not None:
            grads.q[:, :, rows] = ungrouped(dq_tile, problem)
    return grads


def _row_statistics(
    q_tile: Tensor,
    k: Tensor,
    problem: AttentionProblem,
    terms: Terms,
    rows: slice,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Largest score of each row, sum of exp(score - largest), and whether it saw nothing.

    All [..., M, 1]; the first two count the sink. Computed again rather than taken from the saved
    log-sum-exp: that is rounded, and where scores are large its rounding would be a factor on every
    weight.
    """
    row_max = q_tile.new_full((*q_tile.shape[:-1], 1), -math.inf)
    row_sum = torch.zeros_like(row_max)
    for keys in key_tiles(problem, terms, rows):
        hidden = hidden_from(problem, terms, rows, keys, k.device)
        k_tile = k[:, :, keys].to(q_tile.dtype)
        scores, _ = score_tile(q_tile, k_tile, problem, terms, rows, keys, hidden)
        raised = torch.maximum(row_max, scores.amax(-1, keepdim=True))
        base = torch.where(raised == -math.inf, 0.0, raised)
        tile_sum = scores.sub_(base).exp_().sum(-1, keepdim=True)
        row_sum = row_sum * (row_max - base).exp() + tile_sum
        row_max = raised
    blind = row_sum == 0
    if sinks is not None:
        raised = torch.maximum(row_max, sinks[..., None])
        base = torch.where(raised == -math.inf, 0.0, raised)
        row_sum = row_sum * (row_max - base).exp() + (sinks[..., None] - base).exp()
        row_max = raised
    # rows with no weight at all: exp(-inf - 0) / 1
    nothing = row_sum == 0
    return torch.where(nothing, 0.0, row_max), torch.where(nothing, 1.0, row_sum), blind


def _whole_rows(lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of rows that see more keys than are at hand, from their log-sum-exp."""
    blind = lse == -math.inf
    return torch.where(blind, 0.0, lse), torch.ones_like(lse), blind


def _zero(x: Tensor, hidden: Tensor | None, blind: Tensor, problem: AttentionProblem) -> Tensor:
    """Write 0 where a row may not see a key, and in rows that saw nothing: it may be 0 * NaN."""
    if hidden is not None:
        x.unflatten(2, (problem.group, -1)).masked_fill_(hidden, 0.0)
    return x.masked_fill_(blind, 0.0)

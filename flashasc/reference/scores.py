"""The scores of a tile, and who may see what: one formula for the forward and the backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .._problem import AttentionProblem, Extras
from .products import working_dtype

KEYS_PER_TILE = 512
SCORES_PER_TILE = 1 << 20
"""Scores held at once, over batch and heads: 4 MiB in float32, about what a CPU cache holds."""


@dataclass(frozen=True)
class Terms:
    """What joins scale * q @ k^T, shaped to broadcast against scores [B, Hk, group, Sq, Sk]."""

    mask: Tensor | None
    bias: Tensor | None
    slopes: Tensor | None
    """[B or 1, Hk, group, 1, 1] in the working dtype."""
    sinks: Tensor | None
    """[1, Hk, group, 1, 1] in the working dtype, natural-log units."""
    diagonal: int | Tensor
    """Query i is aligned with key i + diagonal. A tensor, [1] or [B, 1, 1, 1, 1], where the host
    doesn't know."""
    q_len: Tensor | None
    """[1]: queries from there on are padding; None: none is."""
    kv_lens: Tensor | None
    """[B or 1, 1, 1, 1, 1]: keys from there on are hidden."""
    end: int
    """As far as the host knows, no query sees a key from here on."""


def terms_of(problem: AttentionProblem, extras: Extras) -> Terms:
    """The terms of a call that is not packed."""
    working = working_dtype(problem.dtype)
    heads = (problem.Hk, problem.group)
    slopes, sinks, kv_lens = extras.alibi_slopes, extras.sinks, extras.kv_lens
    diagonal: int | Tensor = problem.diagonal
    if extras.diagonals is not None:
        diagonal = extras.diagonals.clamp(-(2**29), 2**29).to(torch.int32).view(-1, 1, 1, 1, 1)
    end = problem.Sk
    if kv_lens is not None:
        kv_lens = kv_lens.clamp(0, problem.Sk)
        # on a CPU a look at the values costs nothing; on a device it would wait for it
        if kv_lens.device.type == "cpu" and kv_lens.numel():
            end = int(kv_lens.max())
        kv_lens = kv_lens.view(-1, 1, 1, 1, 1)
    return Terms(
        mask=None if extras.mask is None else grouped_view(extras.mask, problem),
        bias=None if extras.bias is None else grouped_view(extras.bias, problem),
        # not -1: where there are no heads, any number of batches would do
        slopes=None
        if slopes is None
        else slopes.to(working).reshape(len(slopes) if slopes.dim() == 2 else 1, *heads, 1, 1),
        sinks=None if sinks is None else sinks.to(working).reshape(1, *heads, 1, 1),
        diagonal=diagonal,
        q_len=None,
        kv_lens=kv_lens,
        end=end,
    )


def grouped_view(x: Tensor, problem: AttentionProblem) -> Tensor:
    """View [b, hk, g, m, n] of what broadcasts to [B, Hq, Sq, Sk]; sizes of 1 stay 1."""
    x = x[(None,) * (4 - x.dim())]
    if x.shape[1] == 1:
        return x.unsqueeze(2)
    result: Tensor = x.unflatten(1, (problem.Hk, problem.group))
    return result


def cut(x: Tensor, rows: slice, keys: slice) -> Tensor:
    """The part of a grouped view that belongs to a tile."""
    return x[..., _along(rows, x.shape[-2]), _along(keys, x.shape[-1])]


def _along(part: slice, size: int) -> slice:
    return part if size > 1 else slice(None)


def row_tiles(problem: AttentionProblem) -> Iterator[slice]:
    """Tiles of queries, as many rows as `SCORES_PER_TILE` allows."""
    heads = problem.B * problem.Hq
    size = max(64, SCORES_PER_TILE // (heads * max(1, min(KEYS_PER_TILE, problem.Sk))))
    for start in range(0, problem.Sq, size):
        yield slice(start, min(start + size, problem.Sq))


def key_tiles(problem: AttentionProblem, terms: Terms, rows: slice) -> Iterator[slice]:
    """Tiles of the keys that some of the rows may see, anchored at key 0."""
    start, end = 0, terms.end
    if isinstance(terms.diagonal, int):
        left, right = problem.window_left, problem.reach_right
        if right is not None:
            end = min(end, rows.stop + terms.diagonal + right)
        if left is not None:
            start = max(rows.start + terms.diagonal - left, 0) // KEYS_PER_TILE * KEYS_PER_TILE
    for start in range(start, end, KEYS_PER_TILE):  # noqa: B020
        yield slice(start, min(start + KEYS_PER_TILE, end))


def hidden_from(
    problem: AttentionProblem, terms: Terms, rows: slice, keys: slice, device: torch.device
) -> Tensor | None:
    """Where a row may not see a key: bool, broadcasts to [B, Hk, group, M, N]; None: nowhere."""
    hidden: list[Tensor] = []
    i = torch.arange(rows.start, rows.stop, device=device)[:, None]
    j = torch.arange(keys.start, keys.stop, device=device)
    diagonal, left, right = terms.diagonal, problem.window_left, problem.reach_right
    known = isinstance(diagonal, int)
    if right is not None and not (known and keys.stop <= rows.start + diagonal + right + 1):
        hidden.append(j > i + (diagonal + right))
    if left is not None and not (known and keys.start >= rows.stop - 1 + diagonal - left):
        hidden.append(j < i + (diagonal - left))
    if terms.q_len is not None:
        hidden.append(i >= terms.q_len)
    if terms.kv_lens is not None:
        hidden.append(j >= terms.kv_lens)
    if terms.mask is not None:
        hidden.append(~cut(terms.mask, rows, keys))
    if not hidden:
        return None
    together = hidden[0]
    for more in hidden[1:]:
        together = together | more
    return together[(None,) * (5 - together.dim())]


def seen_keys(x: Tensor, hidden: Tensor | None) -> Tensor:
    """A tile of keys or values [B, Hk, N, C] with 0 in place of what no row of the tile sees."""
    if hidden is None:
        return x
    unseen = hidden.all(dim=3).all(dim=2)
    return x.masked_fill(unseen[..., None], 0.0)


def distances(terms: Terms, rows: slice, keys: slice, like: Tensor) -> Tensor:
    """|i + diagonal - j| as [M, N] of the dtype and device of `like`."""
    i = torch.arange(rows.start, rows.stop, device=like.device, dtype=torch.int32)[:, None]
    j = torch.arange(keys.start, keys.stop, device=like.device, dtype=torch.int32)
    diagonal = terms.diagonal
    aligned = i + (diagonal if isinstance(diagonal, int) else diagonal.to(torch.int32))
    return (aligned - j).abs_().to(like.dtype)


def score_tile(
    q_tile: Tensor,
    k_tile: Tensor,
    problem: AttentionProblem,
    terms: Terms,
    rows: slice,
    keys: slice,
    hidden: Tensor | None,
    *,
    with_derivative: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Scores of a tile, natural units, -inf where a row may not see a key.

    Args:
        q_tile: [B, Hk, group * M, D] working dtype.
        k_tile: [B, Hk, N, D] working dtype.
        hidden: what `hidden_from` says of this tile.
        with_derivative: also d(capped score) / d(score) where scores are capped.

    Returns:
        (scores, derivative): [B, Hk, group * M, N]; the second None unless asked for and not 1.
    """
    scores = q_tile @ k_tile.mT
    derivative = None
    if problem.softcap is None:
        scores.mul_(problem.scale)
    else:
        scores.mul_(problem.scale / problem.softcap).tanh_()
        if with_derivative:
            derivative = 1.0 - scores.square()
        scores.mul_(problem.softcap)
    if problem.Hk == 0 or not scores.numel():
        return scores, derivative
    grouped = scores.unflatten(2, (problem.group, -1))
    if terms.bias is not None:
        grouped.add_(_finite(cut(terms.bias, rows, keys), scores.dtype))
    if terms.slopes is not None:
        grouped.addcmul_(terms.slopes, distances(terms, rows, keys, scores), value=-1.0)
    if hidden is not None:
        grouped.masked_fill_(hidden, -math.inf)
    return scores, derivative


def _finite(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """The bias in another dtype, where a finite number is finite still in log2 units.

    `torch.finfo(dtype).min` is what many write for a hidden key: a row full of it is no row of
    -inf.
    """
    largest = torch.finfo(dtype).max * math.log(2.0)
    cast = bias.to(dtype)
    return torch.where(bias.isinf(), cast, cast.clamp(-largest, largest))

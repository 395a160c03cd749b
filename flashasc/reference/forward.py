"""The forward pass over a batch of sequences of one length."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from .._problem import AttentionProblem, Extras
from .products import working_dtype
from .scores import Terms, hidden_from, key_tiles, row_tiles, score_tile, seen_keys, terms_of
from .softmax import State


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: AttentionProblem,
    extras: Extras,
    terms: Terms | None = None,
) -> tuple[Tensor, Tensor]:
    """Output [B, Hq, Sq, Dv] and log-sum-exp [B, Hq, Sq], both in the working dtype.

    Args:
        q, k, v: [B, H, S, D] any strides.
        terms: what joins the scores, where the caller knows better than `extras`.

    Source: Milakov, Gimelshein, arXiv:1805.02867 (2018); Kahan, CACM 8 (1965), 40.
    """
    working = working_dtype(problem.dtype)
    out = q.new_zeros(problem.B, problem.Hq, problem.Sq, problem.Dv, dtype=working)
    lse = q.new_full((problem.B, problem.Hq, problem.Sq), -math.inf, dtype=working)
    if not out.numel():
        return out, lse
    terms = terms or terms_of(problem, extras)
    for rows, state in row_states(q, k, v, problem, terms):
        out_tile, lse_tile = state.finalize(sink_rows(terms, rows))
        out[:, :, rows] = ungrouped(out_tile, problem)
        lse[:, :, rows] = ungrouped(lse_tile, problem)
    return out, lse


def row_states(
    q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, terms: Terms
) -> Iterator[tuple[slice, State]]:
    """Tiles of query rows, and the softmax state of each after all its keys."""
    working = working_dtype(problem.dtype)
    for rows in row_tiles(problem):
        q_tile = grouped(q[:, :, rows], problem).to(working)
        state = State(q_tile, problem)
        for keys in key_tiles(problem, terms, rows):
            hidden = hidden_from(problem, terms, rows, keys, q.device)
            k_tile = k[:, :, keys].to(working)
            v_tile = seen_keys(v[:, :, keys].to(working), hidden)
            scores, _ = score_tile(q_tile, k_tile, problem, terms, rows, keys, hidden)
            state.update(scores, v_tile)
        yield rows, state


def grouped(x: Tensor, problem: AttentionProblem) -> Tensor:
    """[B, Hq, M, ...] -> [B, Hk, group * M, ...]: query heads that share keys, one below the other.

    Their products with a tile of keys are one product then.
    """
    result: Tensor = x.unflatten(1, (problem.Hk, problem.group)).flatten(2, 3)
    return result


def ungrouped(x: Tensor, problem: AttentionProblem) -> Tensor:
    """[B, Hk, group * M, ...] -> [B, Hq, M, ...]."""
    result: Tensor = x.unflatten(2, (problem.group, -1)).flatten(1, 2)
    return result


def sink_rows(terms: Terms, rows: slice) -> Tensor | None:
    """The sink of each row, [1, Hk, group * M]."""
    if terms.sinks is None:
        return None
    per_row: Tensor = terms.sinks[..., 0].expand(-1, -1, -1, rows.stop - rows.start).flatten(2, 3)
    return per_row

"""Packed sequences: one after another, each a call of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._problem import AttentionProblem, Extras
from . import backward as dense_backward
from . import forward as dense_forward
from . import states as dense_states
from .backward import Gradients, Needs
from .products import working_dtype
from .scores import Terms, terms_of


def forward(
    q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, extras: Extras
) -> tuple[Tensor, Tensor]:
    """Output [Hq, tokens, Dv] and log-sum-exp [Hq, tokens] of packed sequences.

    Args:
        q, k, v: [H, tokens, D] any strides.

    Tokens of no sequence have output 0 and log-sum-exp -inf.
    """
    working = working_dtype(problem.dtype)
    # one token more, for what padding computes
    out = q.new_zeros(problem.Hq, problem.tokens_q + 1, problem.Dv, dtype=working)
    lse = q.new_full((problem.Hq, problem.tokens_q + 1), -math.inf, dtype=working)
    for one in _sequences(problem, extras):
        tensors = (one.queries.take(q), one.keys.take(k), one.keys.take(v))
        out_one, lse_one = dense_forward.forward(*tensors, one.problem, one.extras, one.terms)
        one.queries.put(out, out_one)
        one.queries.put(lse, lse_one)
    return out[:, :-1], lse[:, :-1]


def state(
    q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem, extras: Extras
) -> tuple[Tensor, Tensor]:
    """Raw states, rows [Hq, tokens, 5] and acc [Hq, tokens, 2, Dv], of packed sequences."""
    working = working_dtype(problem.dtype)
    rows = q.new_zeros(problem.Hq, problem.tokens_q + 1, 5, dtype=working)
    rows[..., 0] = -math.inf
    acc = q.new_zeros(problem.Hq, problem.tokens_q + 1, 2, problem.Dv, dtype=working)
    for one in _sequences(problem, extras):
        tensors = (one.queries.take(q), one.keys.take(k), one.keys.take(v))
        rows_one, acc_one = dense_states.state(*tensors, one.problem, one.extras, one.terms)
        one.queries.put(rows, rows_one)
        one.queries.put(acc, acc_one)
    return rows[:, :-1], acc[:, :-1]


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
    *,
    some_keys: bool = False,
) -> Gradients:
    """Gradients in the working dtype, of tensors as in `forward`.

    With `some_keys` lse is over more keys than these.
    """
    working = working_dtype(problem.dtype)
    options = (None, None, None, None, extras.alibi_slopes, extras.sinks)
    grads = Gradients.zeros(options, needs, working)
    padded = [
        x.new_zeros(x.shape[0], x.shape[1] + 1, x.shape[2], dtype=working) if need else None
        for x, need in zip((q, k, v), needs[:3], strict=True)
    ]
    for number, one in enumerate(_sequences(problem, extras)):
        places = (one.queries, one.keys, one.keys)
        q_one, k_one, v_one = (at.take(x) for at, x in zip(places, (q, k, v), strict=True))
        found = dense_backward.backward(
            one.queries.take(grad_out),
            None if grad_lse is None else one.queries.take(grad_lse),
            q_one,
            k_one,
            v_one,
            one.queries.take(out),
            one.queries.take(lse, padding=-math.inf),
            one.problem,
            one.extras,
            needs,
            one.terms,
            some_keys=some_keys,
        )
        for at, target, part in zip(places, padded, found[:3], strict=True):
            if target is not None and part is not None:
                at.put(target, part)
        if grads.alibi_slopes is not None and found.alibi_slopes is not None:
            slopes = grads.alibi_slopes
            (slopes[number] if slopes.dim() == 2 else slopes).add_(found.alibi_slopes.view(-1))
        if grads.sinks is not None and found.sinks is not None:
            grads.sinks.add_(found.sinks)
    dq, dk, dv = (None if g is None else g[:, :-1].contiguous() for g in padded)
    return grads._replace(q=dq, k=dk, v=dv)


@dataclass(frozen=True)
class _Part:
    """Where the tokens of one sequence lie, where the host knows."""

    start: int
    length: int

    def take(self, x: Tensor, padding: float | None = None) -> Tensor:
        """[1, H, length, ...] of [H, tokens, ...]; what pads it is `padding`, or anything."""
        return x[:, self.start : self.start + self.length][None]

    def put(self, target: Tensor, value: Tensor) -> None:
        """Write [1, H, length, ...] to its place in [H, tokens + 1, ...]."""
        target[:, self.start : self.start + self.length] = value[0]


class _PartOnDevice:
    """The same where the host does not: padded to a length that it does know."""

    def __init__(self, start: Tensor, length: Tensor, padded: int, tokens: int) -> None:
        offset = torch.arange(padded, device=start.device)
        self.length = length
        self.source = (start + offset).clamp(max=max(tokens - 1, 0))
        # what belongs to padding goes behind the last token
        self.padding = offset >= length
        self.target = torch.where(self.padding, tokens, self.source)

    def take(self, x: Tensor, padding: float | None = None) -> Tensor:
        taken = x.index_select(1, self.source)[None]
        return taken if padding is None else taken.masked_fill(self.padding, padding)

    def put(self, target: Tensor, value: Tensor) -> None:
        target.index_copy_(1, self.target, value[0])


@dataclass(frozen=True)
class _Sequence:
    """One sequence as a call of its own, a batch of one."""

    queries: _Part | _PartOnDevice
    keys: _Part | _PartOnDevice
    problem: AttentionProblem
    extras: Extras
    terms: Terms | None


def _sequences(problem: AttentionProblem, extras: Extras) -> Iterator[_Sequence]:
    """The sequences of a packed batch; lengths on a device stay there.

    Cumulative lengths are clamped to the tokens there are, and lengths to those announced.
    """
    assert extras.cu_seqlens_q is not None and extras.cu_seqlens_k is not None
    starts_q, lengths_q = _clamped(extras.cu_seqlens_q, problem.tokens_q, problem.Sq)
    starts_k, lengths_k = _clamped(extras.cu_seqlens_k, problem.tokens_k, problem.Sk)
    if not problem.tokens_q:
        return
    Sq, Sk = min(problem.Sq, problem.tokens_q), min(problem.Sk, problem.tokens_k)
    dense = replace(problem, B=1, Sq=Sq, Sk=Sk, layout="BNSD", tokens_q=0, tokens_k=0)
    slopes = extras.alibi_slopes
    on_host = _on_host(problem.device)
    own: list[int] | None = None
    if on_host:
        numbers = (x.tolist() for x in (starts_q, lengths_q, starts_k, lengths_k))
        start_q, length_q, start_k, length_k = numbers
        own = None if extras.diagonals is None else extras.diagonals.tolist()
    for b in range(problem.B):
        slopes_one = slopes[b : b + 1] if slopes is not None and slopes.dim() == 2 else slopes
        extras_one = Extras(alibi_slopes=slopes_one, sinks=extras.sinks)
        if on_host:
            n, m = length_q[b], length_k[b]
            diagonal = m - n if problem.bottom_right else 0
            if own is not None:
                diagonal = own[b]
            yield _Sequence(
                _Part(start_q[b], n),
                _Part(start_k[b], m),
                replace(dense, Sq=n, Sk=m, diagonal=diagonal),
                extras_one,
                None,
            )
            continue
        queries = _PartOnDevice(starts_q[b], lengths_q[b], Sq, problem.tokens_q)
        keys = _PartOnDevice(starts_k[b], lengths_k[b], Sk, problem.tokens_k)
        offset = keys.length - queries.length if problem.bottom_right else 0 * keys.length
        if extras.diagonals is not None:
            offset = extras.diagonals[b].clamp(-(2**29), 2**29)
        terms = replace(
            terms_of(dense, extras_one),
            diagonal=offset.view(1),
            q_len=queries.length.view(1),
            kv_lens=keys.length.view(1, 1, 1, 1, 1),
        )
        yield _Sequence(queries, keys, dense, extras_one, terms)


def _on_host(device: torch.device) -> bool:
    """Whether reading a tensor's values waits for nobody."""
    return device.type == "cpu"


def _clamped(cumulative: Tensor, tokens: int, longest: int) -> tuple[Tensor, Tensor]:
    """(starts, lengths) [B] int64 that stay within the tokens, whatever the caller wrote."""
    edges = cumulative.to(torch.int64).clamp(0, tokens)
    return edges[:-1], (edges[1:] - edges[:-1]).clamp(0, longest)

"""What one rank computes: its queries against one block of keys after another.

No communication here: the same code runs on one card with blocks that it holds itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain, islice

import torch
from torch import Tensor

from .. import reference
from .._dispatch import Impl
from .._problem import AttentionProblem, Extras
from .._states import AttentionState, attention_state, finalize_state, merge_states
from ._call import Geometry
from ._placement import Piece
from ._queues import on_device


@dataclass(frozen=True)
class Pair:
    """A piece of this rank's queries and one of a block of keys, as a call of its own."""

    queries: slice
    keys: slice
    problem: AttentionProblem
    extras: Extras

    def cut(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The parts of [..., S, D] views that belong to it."""
        return q[..., self.queries, :], k[..., self.keys, :], v[..., self.keys, :]


class BlockAttention:
    """Attention of one rank's queries to all keys, a rank's block of keys at a time.

    Args:
        problem: the facts of the call; its sizes do not matter.
        extras: sinks, if there are any.
        impl: as for `flashasc.attention`.
        geometry: where all queries and keys lie.
        rank: whose queries.
    """

    def __init__(
        self,
        problem: AttentionProblem,
        extras: Extras,
        impl: Impl,
        geometry: Geometry,
        rank: int,
    ) -> None:
        self.problem = problem
        self.extras = extras
        self.impl = impl
        self.geometry = geometry
        self.rank = rank
        self.states: list[AttentionState | None] = [None] * len(geometry.q[rank])
        self._begun: dict[int, Iterator[tuple[int, Pair]]] = {}

    def add(self, q: Tensor, k: Tensor, v: Tensor, source: int) -> None:
        """Attend to the keys of a rank: all of them, or those that `begin` left.

        Args:
            q: [B, Hq, S, D] or [Hq, tokens, D], this rank's queries.
            k, v: the same of `source`'s keys and values.
        """
        calls = self._begun.pop(source, None) or self._calls(source, q.device)
        for number, pair in calls:
            self._attend(q, k, v, number, pair)

    def begin(self, source: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Make the first call of those that a rank's keys take, unless it is the only one."""
        calls = self._calls(source, q.device)
        some = list(islice(calls, 2))
        if len(some) == 2:
            self._attend(q, k, v, *some.pop(0))
        self._begun[source] = chain(some, calls)

    def _calls(self, source: int, device: torch.device) -> Iterator[tuple[int, Pair]]:
        """(number of a piece of queries, call) of all that these see of a rank's keys."""
        for number in range(len(self.states)):
            for pair in self.pairs(number, source, device):
                yield number, pair

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, number: int, pair: Pair) -> None:
        found = attention_state(*pair.cut(q, k, v), pair.problem, pair.extras, impl=self.impl)
        before = self.states[number]
        self.states[number] = found if before is None else self.merge(before, found)

    def merge(self, a: AttentionState, b: AttentionState) -> AttentionState:
        """Join what two blocks gave."""
        return merge_states(a, b)

    def finish(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Output [..., S, Dv] and log-sum-exp [..., S], heads first.

        Args:
            q, k, v: this rank's.
        """
        found = []
        slices = _slices(self.geometry.q[self.rank])
        for number, (part, state) in enumerate(zip(slices, self.states, strict=True)):
            if state is None:
                # these queries see no key anywhere
                piece = self.geometry.q[self.rank][number]
                nothing = Piece(piece.starts, (0,) * len(piece.lengths))
                problem, extras = self._facts(self.problem, piece, nothing, q.device)
                state = attention_state(
                    q[..., part, :], k[..., :0, :], v[..., :0, :], problem, extras, impl=self.impl
                )
            found.append(self.finalize(state))
        if len(found) == 1:
            return found[0]
        return torch.cat([out for out, _ in found], -2), torch.cat([lse for _, lse in found], -1)

    def finalize(self, state: AttentionState) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of rows that have seen all; sinks count here, once."""
        return finalize_state(state, self.extras.sinks, self.problem.out_dtype)

    def pairs(self, number: int, source: int, device: torch.device) -> Iterator[Pair]:
        """What a piece of this rank's queries can see of a rank's keys, as calls.

        Args:
            number: of the piece.
            source: whose keys.
            device: of the tensors.
        """
        piece = self.geometry.q[self.rank][number]
        queries = list(_slices(self.geometry.q[self.rank]))[number]
        blocks = list(zip(self.geometry.k[source], _slices(self.geometry.k[source]), strict=True))
        seen = [(key, part, self.visibility(piece, key)) for key, part in blocks]
        if not self.problem.packed and all(v == "all" for *_, v in seen):
            # with nothing hidden, the order of keys does not matter: one call
            whole = Piece((0,), (sum(key.tokens for key, *_ in seen),))
            seen = [(whole, slice(0, whole.tokens), "all")]
        for key, part, visible in seen:
            if visible == "none":
                continue
            problem = _unbounded(self.problem) if visible == "all" else self.problem
            yield Pair(queries, part, *self._facts(problem, piece, key, device))

    def diagonals(self, queries: Piece, keys: Piece) -> tuple[int, ...]:
        """Query i of a piece is aligned with key i + diagonal of the other, for each sequence."""
        offsets = self.geometry.offsets
        return tuple(
            start + offset - first
            for start, offset, first in zip(queries.starts, offsets, keys.starts, strict=True)
        )

    def visibility(self, queries: Piece, keys: Piece) -> str:
        """How much of the keys the queries see: "none", "some" or "all"."""
        left, right = self.problem.window_left, self.problem.reach_right
        some, everything = False, True
        for n, m, diagonal in zip(
            queries.lengths, keys.lengths, self.diagonals(queries, keys), strict=True
        ):
            if n == 0 or m == 0:
                continue
            below = right is not None and n - 1 + diagonal + right < 0
            above = left is not None and diagonal - left > m - 1
            some |= not (below or above)
            everything &= right is None or diagonal + right >= m - 1
            everything &= left is None or n - 1 + diagonal - left <= 0
        return "none" if not some else "all" if everything else "some"

    def _facts(
        self, problem: AttentionProblem, queries: Piece, keys: Piece, device: torch.device
    ) -> tuple[AttentionProblem, Extras]:
        """The problem of a pair of pieces, and its tensors; without sinks."""
        diagonals = self.diagonals(queries, keys)
        if not problem.packed:
            (n,), (m,), (diagonal,) = queries.lengths, keys.lengths, diagonals
            return _padded(problem, n, m, diagonal), Extras()
        problem = replace(
            problem,
            Sq=max(queries.lengths, default=0),
            Sk=max(keys.lengths, default=0),
            tokens_q=queries.tokens,
            tokens_k=keys.tokens,
            has_sinks=False,
            has_diagonals=True,
        )
        return problem, Extras(
            cu_seqlens_q=_edges(queries.lengths, device),
            cu_seqlens_k=_edges(keys.lengths, device),
            diagonals=on_device(torch.tensor(diagonals, dtype=torch.int64), device),
        )

    def gradients(
        self,
        grad_out: Tensor,
        grad_lse: Tensor | None,
        tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
        source: int,
        grads: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """Add what a rank's keys contribute to dq, dk and dv.

        Args:
            grad_out, grad_lse: heads first, of this rank's queries.
            tensors: q, k, v, out, lse, heads first: k and v of `source`, the log-sum-exp over all
                keys and sinks.
            source: whose keys.
            grads: dq, dk and dv, in the working dtype, to be added to.
        """
        q, k, v, out, lse = tensors
        dq, dk, dv = grads
        for number in range(len(self.states)):
            for pair in self.pairs(number, source, q.device):
                rows, keys = pair.queries, pair.keys
                q_part, k_part, v_part = (x.to(dq.dtype) for x in pair.cut(q, k, v))
                found = reference.attention_bwd(
                    grad_out[..., rows, :],
                    None if grad_lse is None else grad_lse[..., rows],
                    q_part,
                    k_part,
                    v_part,
                    out[..., rows, :],
                    lse[..., rows],
                    replace(pair.problem, dtype=dq.dtype),
                    pair.extras,
                    some_keys=True,
                )
                assert found.q is not None and found.k is not None and found.v is not None
                dq[..., rows, :] += found.q
                dk[..., keys, :] += found.k
                dv[..., keys, :] += found.v


@lru_cache
def _unbounded(problem: AttentionProblem) -> AttentionProblem:
    """The same where queries see all keys."""
    return replace(problem, causal=False, window_left=None, window_right=None)


@lru_cache
def _padded(problem: AttentionProblem, n: int, m: int, diagonal: int) -> AttentionProblem:
    """The same of so many queries and keys, without sinks."""
    return replace(problem, Sq=n, Sk=m, diagonal=diagonal, has_sinks=False)


def _slices(shard: Sequence[Piece]) -> Iterator[slice]:
    """Where each piece lies in a rank's memory."""
    edges = [0, *accumulate(piece.tokens for piece in shard)]
    return (slice(start, stop) for start, stop in zip(edges, edges[1:]))  # noqa: RUF007


def _edges(lengths: Sequence[int], device: torch.device) -> Tensor:
    return on_device(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), device)

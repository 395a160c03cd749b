"""From a rank's arguments to its result: agree with the others, exchange, compute.

The public functions and the checks of `verify` both come through here; the latter bring transports
and arithmetic that have faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from .._arguments import Arguments
from .._problem import heads_first
from ..attention import attention
from ._agreement import OWN, Facts, agree
from ._blocks import BlockAttention
from ._call import Geometry, LocalCall
from ._placement import Placement, Shard, stream_index
from ._queues import on_device
from ._ring import Blocks, Ring
from ._transport import Transport, require_backend
from ._ulysses import HeadExchange

if TYPE_CHECKING:
    # and imported where it is used: most calls do without
    from ._return import PeerMemory

Result = Tensor | tuple[Tensor, Tensor]


def run_ring(
    arguments: Arguments,
    placement: Placement,
    transport: Transport,
    blocks: Blocks = BlockAttention,
) -> Result:
    """`ring_attention` of a rank that has its transport."""
    call, (facts,) = _agreed("ring_attention", arguments, placement, [transport])
    geometry = Geometry.of(call, _counts(facts, "Sq"), _counts(facts, "Sk"))
    ring = Ring(transport, call.problem, arguments.impl, geometry, blocks)
    out, lse = ring.attend(call.q, call.k, call.v, call.arguments.sinks)
    return _result(call, out, lse)


def run_ulysses(
    arguments: Arguments,
    placement: Placement,
    transport: Transport,
    exchange: type[HeadExchange] = HeadExchange,
    memory: type[PeerMemory] | None = None,
) -> Result:
    """`ulysses_attention` of a rank that has its transport.

    memory: where the attention kernel itself stores output with peers; None: it is exchanged.
    """
    call, (facts,) = _agreed(
        "ulysses_attention",
        arguments,
        placement,
        [transport],
        head_ranks=transport.world,
        extra=lambda call: _way_back(call, transport, memory),
    )
    counts = _counts(facts, "Sq"), _counts(facts, "Sk")
    geometry = Geometry.of(call, *counts)
    heads = exchange(transport, *counts, call.problem.Hq, call.problem.Hk)
    q, k, v = _all_tokens(call, heads)
    if placement != "contiguous":
        order_q = _order(geometry.q, call.lengths_q or (sum(counts[0]),), q.device)
        order_k = _order(geometry.k, call.lengths_k or (sum(counts[1]),), q.device)
        q = q.index_select(2, order_q.argsort())
        k, v = (x.index_select(2, order_k.argsort()) for x in (k, v))
    if memory is not None:
        from ._fused import run_fused

        return run_fused(call, transport, memory, geometry.q, (q, k, v), _own_sinks(call, heads))
    out, lse = _attend_locally(call, heads, q, k, v)
    if placement != "contiguous":
        out = out.index_select(2, order_q)
        lse = None if lse is None else lse.index_select(2, order_q)
    return _sent_back(call, heads, out, lse)


def _way_back(call: LocalCall, transport: Transport, memory: type[PeerMemory] | None) -> Facts:
    """What ranks must agree about to get their output back."""
    if memory is None:
        return {"fused": False}
    from ._fused import fused_facts

    return fused_facts(call, transport, memory)


def run_hybrid(
    arguments: Arguments,
    placement: Placement,
    ring_transport: Transport,
    head_transport: Transport,
    blocks: Blocks = BlockAttention,
    exchange: type[HeadExchange] = HeadExchange,
) -> Result:
    """`hybrid_attention` of a rank that has its transports."""
    # of the group that exchanges heads, and of the blocks that go round
    call, (inner, outer) = _agreed(
        "hybrid_attention",
        arguments,
        placement,
        [head_transport, ring_transport],
        head_ranks=head_transport.world,
    )
    counts = _counts(inner, "Sq"), _counts(inner, "Sk")
    heads = exchange(head_transport, *counts, call.problem.Hq, call.problem.Hk)
    geometry = Geometry.of(call, _counts(outer, "Sq"), _counts(outer, "Sk"))
    q, k, v = _all_tokens(call, heads)
    problem = replace(call.problem, Hq=heads.heads, Hk=k.shape[1], Sq=q.shape[2], Sk=k.shape[2])
    if call.problem.packed:
        q, k, v = (x[0] for x in (q, k, v))
    ring = Ring(ring_transport, problem, arguments.impl, geometry, blocks)
    out, lse = ring.attend(q, k, v, _own_sinks(call, heads))
    if call.problem.packed:
        out, lse = out[None], lse[None]
    return _sent_back(call, heads, out, lse if arguments.return_lse else None)


def _agreed(
    operator: str,
    arguments: Arguments,
    placement: Placement,
    transports: Sequence[Transport],
    *,
    head_ranks: int = 1,
    extra: Callable[[LocalCall], Facts] = lambda call: {},
) -> tuple[LocalCall, list[list[Facts]]]:
    """Check this rank's call, and that all ranks make the same one.

    Args:
        transports: groups that together connect all ranks, one exchange in each. After the first
            a rank speaks for all ranks of that group.
        head_ranks: how many ranks share the query heads.
        extra: what else ranks must agree about.

    Returns:
        (call, facts): the facts of the members of each group; for the second group "Sq" and "Sk"
        are those of all members of a member's first group together.

    Raises:
        What was wrong, on every rank.
    """
    checked: list[LocalCall] = []

    def describe() -> Facts:
        call = LocalCall.checked(arguments, placement)
        require_backend(dist.get_backend_config(transports[0].group), call.q.device)
        if call.problem.Hq % head_ranks:
            raise ValueError(
                f"the query heads must be a multiple of the {head_ranks} ranks that share them; "
                f"got Hq = {call.problem.Hq}. Use ring_attention, which leaves heads together, or "
                "hybrid_attention with fewer ranks for the heads"
            )
        facts = {**call.facts(), **extra(call)}
        checked.append(call)
        return facts

    found = exchanged(operator, describe, transports)
    return checked[0], found


def refuse(operator: str, error: Exception, transports: Sequence[Transport]) -> NoReturn:
    """Raise an error on this rank, and on all others, which make the call, a PeerError.

    Args:
        operator: what the others call.
        error: what this rank cannot do.
        transports: as for `_agreed`.
    """

    def describe() -> Facts:
        raise error

    exchanged(operator, describe, transports)
    raise error


def exchanged(
    operator: str, describe: Callable[[], Facts], transports: Sequence[Transport]
) -> list[list[Facts]]:
    """The facts of the members of each group, see `_agreed`.

    Raises:
        What `describe` raises, or what is wrong with a timeout, on every rank.
    """
    found: list[list[Facts]] = []
    error: Exception | None = None

    def of_rank() -> Facts:
        for transport in transports:
            if transport.refused is not None:
                raise transport.refused
        return describe()

    def of_group() -> Facts:
        if error is not None:
            raise error
        return {name: _together(name, found[-1]) for name in found[-1][0]}

    for transport in transports:
        facts, error = agree(transport, of_group if found else of_rank, operator=operator)
        found.append(facts)
    if error is not None:
        raise error
    return found


def _together(name: str, facts: Sequence[Facts]) -> Any:
    """A fact of all members of a group, who agree on those that are not their own."""
    return sum(_counts(facts, name)) if name in OWN else facts[0][name]


def _counts(facts: Sequence[Facts], name: str) -> tuple[int, ...]:
    return tuple(theirs[name] for theirs in facts)


def _order(shards: Sequence[Shard], lengths: Sequence[int], device: torch.device) -> Tensor:
    """[tokens]: place in the sequence of each token in the order of ranks."""
    return on_device(torch.cat([stream_index(shard, lengths) for shard in shards]), device)


def _all_tokens(call: LocalCall, heads: HeadExchange) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [B, heads, tokens, D] of this rank's heads, tokens in the order of ranks."""
    q, k, v = call.q, call.k, call.v
    if call.problem.packed:
        q, k, v = q[None], k[None], v[None]
    return heads.all_tokens(q, k, v)


def _own_sinks(call: LocalCall, heads: HeadExchange) -> Tensor | None:
    sinks: Tensor | None = call.arguments.sinks
    first = heads.transport.rank * heads.heads
    return None if sinks is None else sinks[first : first + heads.heads]


def _attend_locally(
    call: LocalCall, heads: HeadExchange, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Output [B, heads, tokens, Dv] and log-sum-exp of this rank's heads, where asked for."""
    given, packed = call.arguments, call.problem.packed
    if packed:
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
    options = {
        name: getattr(given, name)
        for name in ("causal", "causal_align", "scale", "window", "softcap", "precision", "impl")
    }
    found = attention(
        q,
        k,
        v,
        layout="TND" if packed else "BNSD",
        sinks=_own_sinks(call, heads),
        cu_seqlens_q=given.cu_seqlens_q,
        cu_seqlens_k=given.cu_seqlens_k,
        max_seqlen_q=max(call.lengths_q, default=0) if packed else None,
        max_seqlen_k=max(call.lengths_k, default=0) if packed else None,
        out_dtype=call.problem.out_dtype,
        return_lse=given.return_lse,
        **options,
    )
    out, lse = found if isinstance(found, tuple) else (found, None)
    if packed:
        out, lse = out.transpose(0, 1)[None], None if lse is None else lse[None]
    return out, lse


def _sent_back(call: LocalCall, heads: HeadExchange, out: Tensor, lse: Tensor | None) -> Result:
    """This rank's tokens of all heads, from all tokens of its own heads."""
    out, lse = heads.back(out, lse)
    if call.problem.packed:
        out, lse = out[0], None if lse is None else lse[0]
    return _result(call, out, lse)


def _result(call: LocalCall, out: Tensor, lse: Tensor | None) -> Result:
    """What the caller gets, from tensors with heads first."""
    out = heads_first(out, call.problem.layout).contiguous()
    if not call.arguments.return_lse:
        return out
    assert lse is not None
    return out, lse.contiguous()

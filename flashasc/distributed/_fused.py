"""Ulysses whose way back is inside the attention kernel: which calls it takes, and one of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .._arguments import Arguments
from ._agreement import Facts
from ._call import LocalCall
from ._parcel import Parcel, Pieces
from ._placement import Shard
from ._return import UNFUSED, PeerMemory, return_path
from ._transport import Transport


def fused_facts(call: LocalCall, transport: Transport, memory: type[PeerMemory] | None) -> Facts:
    """What ranks must agree about for a fused call; for another that it is none.

    Raises:
        NotImplementedError: this rank cannot take part.
        CommunicationError: an earlier call of the group went wrong.
    """
    if memory is None:
        return {"fused": False}
    if call.problem.packed:
        raise NotImplementedError(f'fused=True takes no packed sequences (layout "TND"): {UNFUSED}')
    if call.asks_gradients:
        raise NotImplementedError(
            "fused=True computes no gradients, and q, k, v or sinks ask for one: compute under "
            f"torch.no_grad(), or {UNFUSED}"
        )
    facts = memory.check(call.problem.device)
    return_path(transport, memory).check()
    return {"fused": True, **facts}


def run_fused(
    call: LocalCall,
    transport: Transport,
    memory: type[PeerMemory],
    held: Sequence[Shard],
    tokens: tuple[Tensor, Tensor, Tensor],
    sinks: Tensor | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of this rank's heads, each row of which goes to the rank that holds it.

    Args:
        held: which queries each rank holds.
        tokens: q, k and v [B, heads, tokens of all ranks, D], in the order of the sequence.
        sinks: of these heads.

    Returns:
        out, or (out, lse): as `ulysses_attention`.
    """
    q, k, v = tokens
    given = call.arguments
    arguments = Arguments(
        q,
        k,
        v,
        causal=given.causal,
        causal_align=given.causal_align,
        scale=given.scale,
        window=given.window,
        softcap=given.softcap,
        sinks=sinks,
        precision=given.precision,
        out_dtype=call.problem.out_dtype,
        return_lse=given.return_lse,
        impl=given.impl,
    )
    path = return_path(transport, memory)
    out, lse = path.attend(
        arguments,
        Parcel(
            B=q.shape[0],
            heads=q.shape[1],
            world=transport.world,
            Dv=v.shape[3],
            dtype=call.problem.out_dtype,
            with_lse=bool(given.return_lse),
            heads_first=call.problem.layout == "BNSD",
            pieces=Pieces.of(held),
            block_m=memory.tile_rows(arguments),
        ),
        transport,
        q.device,
    )
    if lse is None:
        return out
    return out, lse

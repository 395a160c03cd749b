"""Attention to a sequence that lies on several ranks of torch.distributed.

    from flashasc.distributed import ring_attention, shard_sequence

    q, k, v = (shard_sequence(x, dim=2, placement="zigzag") for x in (q, k, v))
    out = ring_attention(q, k, v, placement="zigzag", causal=True)

On whatever backend the group has: HCCL, NCCL, gloo. docs/context-parallel.md shows placements, and
how to verify a machine: `torchrun --nproc_per_node=N -m flashasc verify`.
"""

from ._agreement import PeerError
from ._transport import CommunicationError, Transfers, count_transfers
from .hybrid import hybrid_attention
from .parallel import ContextParallel
from .ring import ring_attention
from .sharding import own_positions, shard_positions, shard_sequence, unshard_sequence
from .ulysses import ulysses_attention

__all__ = [
    "CommunicationError",
    "ContextParallel",
    "PeerError",
    "Transfers",
    "count_transfers",
    "hybrid_attention",
    "own_positions",
    "ring_attention",
    "shard_positions",
    "shard_sequence",
    "ulysses_attention",
    "unshard_sequence",
]

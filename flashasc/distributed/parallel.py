"""How a sequence lies on the ranks, as one object: what a module or a model keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ._groups import Group
from ._placement import Placement
from ._run import Result
from .attention import hybrid_attention, ring_attention, ulysses_attention
from .sharding import shard_positions, shard_sequence, unshard_sequence

__all__ = ["ContextParallel"]


@dataclass(frozen=True)
class ContextParallel:
    """Context parallelism of one kind, over one set of ranks.

    Attributes:
        group: a process group, a mesh of one dimension, or None for all ranks; for "hybrid" a mesh
            of two dimensions, ring and heads.
        mode: "ring", "ulysses" or "hybrid".
        placement: of sequences, see `shard_sequence`.
        timeout: see `ring_attention`.

    Raises:
        ValueError: the mode is none of these.
    """

    group: Group = None
    mode: Literal["ring", "ulysses", "hybrid"] = "ring"
    placement: Placement = "contiguous"
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("ring", "ulysses", "hybrid"):
            raise ValueError(f'mode must be "ring", "ulysses" or "hybrid"; got {self.mode!r}')

    def attention(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Result:
        """Attention of this rank's queries to the whole sequence.

        Args:
            q, k, v, **options: as for `ring_attention`, without what this object holds.
        """
        options = {"placement": self.placement, "timeout": self.timeout, **options}
        if self.mode == "hybrid":
            return hybrid_attention(q, k, v, mesh=self.group, **options)  # type: ignore[arg-type]
        run = ring_attention if self.mode == "ring" else ulysses_attention
        return run(q, k, v, group=self.group, **options)

    def shard(self, x: Tensor, dim: int, cu_seqlens: Tensor | None = None) -> Tensor:
        """This rank's part of what lies along `dim`: see `shard_sequence`."""
        return shard_sequence(
            x, self.group, dim=dim, placement=self.placement, cu_seqlens=cu_seqlens
        )

    def unshard(self, x: Tensor, dim: int, cu_seqlens: Tensor | None = None) -> Tensor:
        """The whole again, on every rank: see `unshard_sequence`."""
        return unshard_sequence(
            x, self.group, dim=dim, placement=self.placement, cu_seqlens=cu_seqlens
        )

    def positions(self, length: int, cu_seqlens: Tensor | None = None) -> Tensor:
        """Positions of this rank's tokens: see `shard_positions`."""
        return shard_positions(length, self.group, placement=self.placement, cu_seqlens=cu_seqlens)

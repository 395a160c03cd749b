"""How a sequence lies on the ranks, as one object: what a module or a model keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, overload

from torch import Tensor

from ._groups import Group, group_of, mesh_groups
from ._placement import PLACEMENTS, Placement
from ._run import refuse
from ._transport import Transport, timeout_error
from .hybrid import hybrid_attention
from .ring import ring_attention
from .sharding import own_positions, shard_positions, shard_sequence, unshard_sequence
from .ulysses import ulysses_attention

__all__ = ["ContextParallel", "require_context"]


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
        ValueError: the mode or the placement is none of these; the timeout is none.

    A copy, deep or not, is the same ranks. With a group of its own it cannot be pickled, nor a
    module that holds it: a group exists in its process alone. With group None, all ranks of
    whichever process loads it are meant.
    """

    group: Group = None
    mode: Literal["ring", "ulysses", "hybrid"] = "ring"
    placement: Placement = "contiguous"
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("ring", "ulysses", "hybrid"):
            raise ValueError(f'mode must be "ring", "ulysses" or "hybrid"; got {self.mode!r}')

        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement must be one of {PLACEMENTS}; got {self.placement!r}")
        if error := timeout_error(self.timeout):
            raise error

    @overload
    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = ..., **options: Any
    ) -> Tensor: ...

    @overload
    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **options: Any
    ) -> tuple[Tensor, Tensor]: ...

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, **options: Any
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention of this rank's queries to the whole sequence.

        Args:
            q, k, v, return_lse, **options: as for `ring_attention`, without what this object holds.
        """
        group = {"mesh" if self.mode == "hybrid" else "group": self.group}
        held = {"placement": self.placement, "timeout": self.timeout, **group}
        calls: dict[str, Callable[..., Tensor | tuple[Tensor, Tensor]]] = {
            "ring": ring_attention,
            "ulysses": ulysses_attention,
            "hybrid": hybrid_attention,
        }
        return calls[self.mode](q, k, v, return_lse=return_lse, **held, **options)

    def refuse(self, error: Exception) -> NoReturn:
        """In place of `attention`, where this rank cannot go on: all ranks raise, none waits.

        Args:
            error: raised here. The others raise a PeerError that names this rank and the error.
        """
        if self.mode == "hybrid":
            ring, heads = mesh_groups(self.group)
            refuse("hybrid_attention", error, [Transport(g, self.timeout) for g in (heads, ring)])
        transport = Transport(group_of("group", self.group), self.timeout)
        refuse(f"{self.mode}_attention", error, [transport])

    @contextmanager
    def all_raise(self) -> Iterator[None]:
        """What is raised inside is raised on all ranks, see `refuse`: for what precedes a call."""
        try:
            yield
        except Exception as error:
            self.refuse(error)

    def shard(self, x: Tensor, dim: int, cu_seqlens: Tensor | None = None) -> Tensor:
        """This rank's part of what lies along `dim`: see `shard_sequence`."""
        return shard_sequence(
            x, self.group, dim=dim, placement=self.placement, cu_seqlens=cu_seqlens
        )

    def unshard(self, x: Tensor, dim: int, cu_seqlens: Tensor | None = None) -> Tensor:
        """The whole again, on every rank: see `unshard_sequence`."""
        return unshard_sequence(
            x,
            self.group,
            dim=dim,
            placement=self.placement,
            cu_seqlens=cu_seqlens,
            timeout=self.timeout,
        )

    def positions(self, length: int, cu_seqlens: Tensor | None = None) -> Tensor:
        """Positions of this rank's tokens: see `shard_positions`."""
        return shard_positions(length, self.group, placement=self.placement, cu_seqlens=cu_seqlens)

    def own_positions(self, tokens: int) -> Tensor:
        """Positions of this rank's tokens, however many each rank has: see `own_positions`."""
        return own_positions(tokens, self.group, placement=self.placement, timeout=self.timeout)

    def __copy__(self) -> ContextParallel:
        return self

    def __deepcopy__(self, memo: object) -> ContextParallel:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.group is not None:
            raise TypeError(
                "a ContextParallel of a process group or a mesh cannot be pickled: the group "
                "exists in this process alone. Save module.state_dict(); or set module.cp = None "
                "before, and module.cp = ContextParallel(...) where it was loaded"
            )
        return ContextParallel, (None, self.mode, self.placement, self.timeout)


def require_context(cp: object) -> None:
    """Refuse what is neither None nor a ContextParallel.

    Raises:
        TypeError: it is something else.
    """
    if cp is not None and not isinstance(cp, ContextParallel):
        raise TypeError(
            "cp must be a flashasc.distributed.ContextParallel, such as ContextParallel(group), or "
            f"None; got {type(cp).__name__}"
        )

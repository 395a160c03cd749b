"""Modules whose sequences lie on several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..distributed import ContextParallel

__all__ = ["all_raise", "check_context", "reject"]


def check_context(cp: Any) -> None:
    """Refuse what is neither None nor a ContextParallel.

    Raises:
        TypeError: it is something else.
    """
    if cp is None:
        return
    from ..distributed import ContextParallel

    if not isinstance(cp, ContextParallel):
        raise TypeError(
            "cp must be a flashasc.distributed.ContextParallel, such as ContextParallel(group), or "
            f"None; got {type(cp).__name__}"
        )


@contextmanager
def all_raise(cp: ContextParallel | None) -> Iterator[None]:
    """What is raised inside is raised on every rank of `cp`: the others would wait."""
    try:
        yield
    except Exception as error:
        if cp is None:
            raise
        cp.refuse(error)


def reject(module: object, **given: object) -> None:
    """Refuse arguments that are not for sequences on several ranks.

    Raises:
        NotImplementedError: one is not None.
    """
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise NotImplementedError(
            f"{type(module).__name__} with cp= takes no {', '.join(names)}: its keys lie on "
            "several ranks. Use causality and windows, and packed sequences (cu_seqlens, which the "
            "host reads) in place of padding; or gather the sequence, and set module.cp = None"
        )

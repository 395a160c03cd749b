"""Modules whose sequences lie on several ranks."""

from __future__ import annotations

__all__ = ["check_context", "reject"]


def check_context(cp: object) -> None:
    """Refuse what is neither None nor a ContextParallel.

    Raises:
        TypeError: it is something else.
    """
    if cp is not None:
        from ..distributed.parallel import require_context

        require_context(cp)


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

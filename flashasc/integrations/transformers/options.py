"""What Transformers passes along, sorted: honoured, harmless, and everything else, which raises."""

from __future__ import annotations

from typing import Any

__all__ = ["HARMLESS", "reject_others"]

HARMLESS = frozenset(
    {
        # attention has nothing to do with these, or the mask holds what they say
        "cache_position",
        "deterministic",
        "logits_to_keep",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "seq_idx",
        "shift_labels",
        "use_cache",
    }
)
"""Arguments that change nothing about attention: eager attention in Transformers ignores them too,
and gives the same numbers whatever they are."""


def reject_others(options: dict[str, Any], module: object) -> None:
    """Raise for an option of a model that is not known.

    Args:
        options: the keyword arguments that are not honoured. None means that an option is not in
            use.
        module: the attention layer, to be named.

    Raises:
        NotImplementedError: one is neither harmless nor None.
    """
    if options.get("output_attentions"):
        raise NotImplementedError(
            "output_attentions=True: the matrix of weights is never formed. Use "
            'attn_implementation="eager" to look at weights'
        )
    unknown = [
        name
        for name, value in options.items()
        if value is not None and name not in HARMLESS and name != "output_attentions"
    ]
    if unknown:
        raise NotImplementedError(
            f"{type(module).__name__} asks attention for {', '.join(sorted(unknown))}, which "
            'flashasc does not support; use attn_implementation="sdpa" or "eager" for this model'
        )

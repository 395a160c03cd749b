"""`attn_implementation="asc_attention"` in Hugging Face Transformers.

    from flashasc.integrations import transformers as asc

    asc.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="asc_attention")

or `model.set_attn_implementation(asc.register())` for a model that is there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..._dispatch import Impl
from ..._problem import Precision
from ..._validate.scalars import choices
from .forward import attention_forward
from .served import attention_mask
from .sharded import ShardedAttention, shard_batch

if TYPE_CHECKING:
    from ...distributed import ContextParallel

__all__ = ["attention_forward", "register", "shard_batch"]


def register(
    name: str = "asc_attention",
    *,
    precision: Precision = "compensated",
    impl: Impl = "auto",
    cp: ContextParallel | None = None,
) -> str:
    """Make flashasc's attention known to Transformers, and the masks it takes.

    Args:
        name: what to call it. Registering a name again replaces what it stood for.
        precision, impl: as for `flashasc.attention`; registered under several names, several of
            them can be compared.
        cp: a `flashasc.distributed.ContextParallel`: each rank has its tokens of the sequence, as
            `shard_batch` gives them to it, and attention sees the keys of all. To read or train on
            long sequences: what needs a cache, or a mask beyond causality and windows, raises.

    Returns:
        The name, for `attn_implementation=` and `set_attn_implementation`.

    Raises:
        ImportError: Transformers is not installed, or too old.
        TypeError: the name is no str; cp is no ContextParallel; precision or impl is no str.
        ValueError: the name is taken by Transformers, or contains "flash", "sdpa" or "flex";
            precision or impl is none of its choices.

    A model that computes its attention itself, such as MPNet or Bloom, raises NotImplementedError
    when it asks for a mask.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"name must be a str, such as the default 'asc_attention'; got {type(name).__name__} "
            f"{name!r}"
        )
    choices(precision, impl)
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            "flashasc.integrations.transformers needs Transformers 5 or newer; "
            "run: pip install 'flashasc[hf]'",
            name="transformers",
        ) from error
    # Transformers reads such parts of a name as its own implementations of that kind: it asks for a
    # FlashAttention package, or takes another kernel without a word
    taken = ("flash", "sdpa", "flex", "eager", "paged", "/")
    if not name or any(part in name for part in taken):
        raise ValueError(
            f"name must not be empty nor contain any of {taken}, by which Transformers knows "
            f"implementations of its own; got {name!r}. The default is 'asc_attention'"
        )
    forward: Callable[..., Any] = functools.partial(
        attention_forward, precision=precision, impl=impl
    )
    # Without a mask function of its own a name gets no masks at all: padding and windows would be
    # dropped. This one returns None where causality alone says everything, and raises for a model
    # that would add it to scores of its own.
    mask: Callable[..., Any] = attention_mask
    if cp is not None:
        from ...distributed.parallel import require_context

        require_context(cp)
        forward = ShardedAttention(cp, precision, impl)
        mask = forward.mask
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, mask)
    return name

"""Which models of Transformers hand their attention over, and which compute it themselves."""

from __future__ import annotations

import functools
import inspect
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

__all__ = ["attention_mask", "require_interface"]

# Transformers' own answer goes by the text of the module. Here one class of it asks the interface,
# and another, of the encoder, adds the same kind of mask to scores of its own.
_IN_PART = tuple(
    f"transformers.models.{name}.modeling_{name}" for name in ("bigbird_pegasus", "informer")
)


def attention_mask(*args: Any, config: Any = None, **options: Any) -> Tensor | None:
    """`sdpa_mask` of Transformers, for models that hand it on to attention.

    Args:
        args, options: as there.
        config: of the model that asks.

    Returns:
        As there: bool, True where a query may see a key; None where causality alone says it.

    Raises:
        NotImplementedError: as by `require_interface`.
    """
    from transformers.masking_utils import sdpa_mask

    require_interface(config)
    mask: Tensor | None = sdpa_mask(*args, **options)
    return mask


def require_interface(config: Any) -> None:
    """Raise for a model that computes its attention itself.

    Such a model would add a mask of bool to its scores, or none where causality was all that it
    said, and return wrong numbers without a word.

    Args:
        config: of the model that asks for a mask.

    Raises:
        NotImplementedError: its attention does not go through Transformers' AttentionInterface.

    A model whose class or text cannot be found, as in a notebook, is taken at its word.
    """
    own = None if config is None else _own_attention(type(config))
    if own is not None:
        raise NotImplementedError(
            f"{own} computes its own attention, in part at least, and never asks Transformers' "
            "AttentionInterface, so that flashasc cannot serve it; load it with "
            'attn_implementation="eager"'
        )


# constant under torch.compile, which could not trace reading a module's text
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _own_attention(config: type) -> str | None:
    return _look(config)


@functools.cache
def _look(config: type) -> str | None:
    """Name of the model's class where it computes attention itself, else None."""
    model = _model_of(config)
    if model is None:
        return None
    module = sys.modules.get(model.__module__)
    if module is None or not (text := _text(module)):
        return None
    if model.__module__ in _IN_PART:
        return str(model.__name__)
    # models outside Transformers may ask the interface in another way than its own do
    if model._can_set_attn_implementation() or "ALL_ATTENTION_FUNCTIONS" in text:
        return None
    return str(model.__name__)


def _model_of(config: type) -> Any:
    """The class of models that a config stands for: beside it, else the one AutoModel makes."""
    from transformers import MODEL_MAPPING

    exact = [
        kind
        for module in _beside(config.__module__)
        for kind in _models_in(module)
        if kind.config_class is config
    ]
    if exact:
        # all of a module inherit its PreTrainedModel's, which comes first
        named = (kind for kind in exact if not kind.__name__.endswith("PreTrainedModel"))
        return next(named, exact[0])
    try:
        found = MODEL_MAPPING[config]
    except KeyError:
        # a part of a composite model, which names the whole's config
        whole = sys.modules.get(config.__module__.replace(".configuration_", ".modeling_"))
        return next(iter(_models_in(whole)), None)
    return found[0] if isinstance(found, list | tuple) else found


def _beside(name: str) -> list[ModuleType]:
    """The module of a config, and the loaded ones of models in the same package."""
    start = f"{name.rpartition('.')[0]}.modeling_"
    return [
        module
        for other, module in list(sys.modules.items())
        if other == name or other.startswith(start)
    ]


def _models_in(module: ModuleType | None) -> list[Any]:
    from transformers import PreTrainedModel

    return [
        kind
        for kind in list(vars(module or ModuleType("")).values())
        if isinstance(kind, type)
        and issubclass(kind, PreTrainedModel)
        and kind.__module__ == getattr(module, "__name__", None)
    ]


def _text(module: ModuleType) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""

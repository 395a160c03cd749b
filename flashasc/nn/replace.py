"""Put flashasc's attention into a model that is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .._dispatch import Impl
from .._problem import Precision
from .multihead import MultiheadAttention

if TYPE_CHECKING:
    from ..distributed import ContextParallel

__all__ = ["replace_attention"]


def replace_attention(
    model: torch.nn.Module,
    *,
    precision: Precision = "compensated",
    impl: Impl = "auto",
    cp: ContextParallel | None = None,
) -> list[str]:
    """Replace every `torch.nn.MultiheadAttention` in a model, in place, parameters shared.

    Args:
        model: any module that contains some, such as `torch.nn.Transformer`.
        precision, impl, cp: as for `MultiheadAttention`.

    A `torch.nn.TransformerEncoder` goes on with padded tensors where it would have made nested ones
    of them in eval: its output is then not 0 at padding.

    Returns:
        The names of the modules that were replaced. Modules of a subclass are not: what they add is
        not known.

    Raises:
        ValueError: the model is itself such a module, or has none.
        NotImplementedError: one has hooks, which would be lost. Nothing is replaced then.
    """
    kind = torch.nn.MultiheadAttention
    if type(model) is kind:
        raise ValueError(
            "model is itself a torch.nn.MultiheadAttention, and cannot be replaced in place; use "
            "flashasc.nn.MultiheadAttention.from_torch(model)"
        )
    found = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module) is kind
    }
    if not found:
        raise ValueError(
            f"model has no torch.nn.MultiheadAttention to replace; got {type(model).__name__}. "
            "For code that calls F.scaled_dot_product_attention there is flashasc.route_sdpa"
        )
    for name, module in found.items():
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
            raise NotImplementedError(
                f"{name} has hooks, which would be lost; remove them and register them anew on the "
                "new module"
            )
    # one that stands in several places stays one
    new = {
        id(module): MultiheadAttention.from_torch(module, precision=precision, impl=impl, cp=cp)
        for module in found.values()
    }
    for name, module in found.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, new[id(module)])
    for container in model.modules():
        if isinstance(container, torch.nn.TransformerEncoder):
            # decided when it was made, for PyTorch's fused layers
            container.use_nested_tensor = False
    return list(found)

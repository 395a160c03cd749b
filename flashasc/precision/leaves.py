"""Trees of tensors, as an operator returns them, taken apart by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def leaves(tree: Any, name: str) -> dict[str, Tensor]:
    """The tensors of nested tuples, lists and dicts, by their path: "['out'][0]"; "" for one.

    Args:
        tree: of tensors, NumPy arrays and numbers; None stays away.
        name: of the argument, for errors.

    Raises:
        TypeError: a leaf is none of these.
    """
    found = {}
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        where = pytree.keystr(path)
        if leaf is None:
            continue
        if isinstance(leaf, Tensor):
            found[where] = leaf.detach()
        elif isinstance(leaf, np.ndarray | np.generic | bool | int | float):
            found[where] = torch.from_numpy(np.array(leaf))
        else:
            raise TypeError(
                f"{name}{where}: expected a tensor, an array or a number, got {type(leaf).__name__}"
            )
    return found


def same_leaves(actual: dict[str, Tensor], other: dict[str, Tensor], name: str) -> None:
    """Make sure that two trees have the same tensors by name, of the same shapes.

    Raises:
        ValueError: one is missing or of another shape; the message names it.
    """
    for where in [*actual, *other]:
        for there, title in ((actual, "actual"), (other, name)):
            if where not in there:
                alone = "a tensor alone"
                listed = [[path or alone for path in tree] for tree in (actual, other)]
                raise ValueError(
                    f"actual and {name} are built differently: {title} has no {where or alone}; "
                    f"actual has {listed[0]}, {name} has {listed[1]}"
                )
        if actual[where].shape != other[where].shape:
            raise ValueError(
                f"shapes differ: actual{where} is {tuple(actual[where].shape)}, "
                f"{name}{where} is {tuple(other[where].shape)}"
            )

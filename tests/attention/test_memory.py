"""The reference's memory: a tile of scores, never all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import flashasc
from flashasc.testing import Case, normal


class LargestTensor(TorchDispatchMode):
    """Remembers the largest storage that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                elements = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.elements = max(self.elements, elements)
        return result


@pytest.mark.parametrize("causal", [False, True])
def test_no_tensor_holds_all_scores(causal: bool) -> None:
    from flashasc import reference

    case = Case(Hq=2, Sq=3000, Sk=3000, D=16, causal=causal)
    q, k, v = (x.requires_grad_() for x in normal(case))
    with LargestTensor() as largest:
        flashasc.attention(q, k, v, causal=causal, impl="reference").sum().backward()
    scores = case.Hq * case.Sq * case.Sk
    assert 0 < largest.elements <= reference.SCORES_PER_TILE < scores / 10

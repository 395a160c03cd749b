"""The reference's memory: O(Sq * tile), never O(Sq * Sk)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashasc import reference
from flashasc._validate import Arguments, validate_attention
from flashasc.testing import Case, normal
from tests.conftest import RunPython


class LargestTensor(TorchDispatchMode):
    """Remember the largest storage that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


def largest(case: Case, backward: bool) -> int:
    """Bytes of the largest tensor of a pass."""
    q, k, v = normal(case)
    problem = validate_attention(Arguments(q, k, v, **case.options, return_lse=True))
    out, lse = reference.attention_fwd(q, k, v, problem)
    with LargestTensor() as seen:
        if backward:
            reference.attention_bwd(out, lse, q, k, v, out, lse, problem)
        else:
            reference.attention_fwd(q, k, v, problem)
    return seen.bytes


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_largest_tensor_does_not_grow_with_the_keys(causal: bool, backward: bool) -> None:
    """Beyond a tile of scores, there is nothing larger than the inputs themselves."""
    case = Case(Hq=1, Sq=2048, Sk=2048, D=8, causal=causal)
    tile = 4 * reference.SCORES_PER_TILE
    inputs = 4 * 16384 * 8
    assert inputs < tile
    for Sk in (2048, 16384):
        assert largest(case.but(Sk=Sk), backward) <= tile
        assert 4 * case.Sq * Sk > tile


def test_the_tile_shrinks_as_heads_are_added() -> None:
    """They are computed together; the limit is on all of them."""
    for heads in (1, 8, 64):
        case = Case(Hq=heads, Sq=2048, Sk=4096, D=8)
        inputs = 4 * heads * 4096 * 8
        # at least 64 rows are handled at once
        least = 4 * heads * 64 * reference.KEYS_PER_TILE
        assert largest(case, False) <= max(inputs, least, 4 * reference.SCORES_PER_TILE)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_peak_memory_of_a_process(run_python: RunPython, backward: bool) -> None:
    """16384 x 16384 scores would take 1 GiB in float32."""
    done = run_python(
        """
import resource, sys, torch, flashasc
backward = sys.argv[1] == "True"
x = torch.randn(1, 1, 16384, 32)

def run(x):
    x = x.clone().requires_grad_(backward)
    out = flashasc.attention(x, x, x, causal=True)
    if backward:
        out.sum().backward()

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(x[:, :, :600])
before = peak()
run(x)
print((peak() - before) // 1024)
""",
        str(backward),
    )
    assert int(done.stdout) < 150, "MiB"

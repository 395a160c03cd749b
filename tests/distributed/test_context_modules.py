"""Modules and Transformers models on two ranks, against one process."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import pytest

from flashasc.distributed import ContextParallel
from flashasc.nn import Attention, GroupedQueryAttention
from tests.distributed import module_cases
from tests.distributed.ranks import on_ranks, returned


def test_modules_as_in_one_process() -> None:
    for figures in returned(on_ranks(2, module_cases.distances)):
        for name, distance in figures.items():
            assert distance <= 1e-5, (name, distance)


def raised_together(results: list[Any], name: str, kind: str, message: str) -> None:
    """Rank 1 raises what is wrong there, and rank 0 says so."""
    assert results[1][name][0] == kind, results[1][name]
    assert results[0][name][0] == "PeerError", results[0][name]
    for rank in range(2):
        assert re.search(message, results[rank][name][1]), (rank, results[rank][name])


def test_wrong_calls_of_modules_raise_on_all_ranks() -> None:
    results = returned(on_ranks(2, module_cases.wrong_results))
    for name, (kind, message) in module_cases.WRONG.items():
        raised_together(results, name, kind, message)
    for found in results:
        assert found["pickle"][0] == "TypeError" and "state_dict()" in found["pickle"][1]
        # of no group of its own
        assert "mode='ring', placement='contiguous', timeout=5.0" in found["pickle of all ranks"][1]


def test_what_is_no_context() -> None:
    for make in (Attention, lambda cp: GroupedQueryAttention(16, 2, cp=cp)):
        with pytest.raises(TypeError, match=r"cp must be a .*ContextParallel.*got str"):
            make(cp="ring")
    module = GroupedQueryAttention(16, 2)
    with pytest.raises(TypeError, match="cp must be"):
        module.cp = 2  # type: ignore[assignment]
    with pytest.raises(ValueError, match="placement must be one of"):
        ContextParallel(placement="zig")  # type: ignore[arg-type]


@lru_cache
def models() -> list[Any]:
    pytest.importorskip("transformers")
    return returned(on_ranks(2, module_cases.models))


def test_models_as_in_one_process() -> None:
    """Grouped heads, windows, softcap, sinks; logits, the ranks' shares of the loss, gradients."""
    for figures, _ in models():
        for name, (logits, loss, grad) in figures.items():
            assert logits <= 1e-5, (name, figures)
            assert loss <= 1e-5, (name, figures)
            assert grad <= 1e-4, (name, figures)


def test_wrong_calls_of_models_raise_on_all_ranks() -> None:
    results = [raised for _, raised in models()]
    for name, (kind, message) in module_cases.WRONG_MODELS.items():
        raised_together(results, name, kind, message)
    for found in results:
        # wrong on both ranks
        assert "pass an attention_mask of ones" in found["no mask"][1]
        assert "9 keys for 1 queries" in found["cache"][1]
        assert "is given no position_ids" in found["encoder"][1]
        assert found["right"] == ("nothing", "")

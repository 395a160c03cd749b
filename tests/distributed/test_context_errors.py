"""Wrong calls raise on every rank, and say what is wrong; nobody hangs."""

from __future__ import annotations

import re
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashasc.distributed import ContextParallel, ring_attention
from flashasc.distributed._transport import require_backend
from tests.distributed import wrong_calls
from tests.distributed.ranks import on_ranks, returned
from tests.distributed.wrong_calls import CALLS


@lru_cache
def raised() -> list[Any]:
    return returned(on_ranks(2, wrong_calls.all_wrong))


@pytest.mark.parametrize("name", CALLS)
def test_both_ranks_raise(name: str) -> None:
    wrong = CALLS[name]
    for rank, found in enumerate(raised()):
        kind, message = found[name]
        assert kind == wrong.errors[rank], (rank, kind, message)
        assert re.search(wrong.message, message), (rank, message)
        if kind == "PeerError":
            assert f"rank {1 - rank} cannot take part" in message


def test_a_collective_names_whom_it_waits_for() -> None:
    found = returned(on_ranks(3, wrong_calls.late_peers))[0]
    assert found == (
        "CommunicationError: rank 0: facts of ring_attention: not done within 0.5 s, waiting for "
        "ranks 1, 2"
    )


def test_a_whole_mesh_raises() -> None:
    """One rank in four is wrong, in no group with its opposite."""
    for rank, (kind, message) in enumerate(returned(on_ranks(4, wrong_calls.wrong_in_a_mesh))):
        assert kind in ("ValueError", "PeerError"), (rank, kind, message)
        # numbers of ranks are those among all, also where two of them found it
        wrong = "dtype must be the same .* rank 2 has 'torch.float32', rank 3 has 'torch.float64'"
        assert re.search(wrong, message), message


@pytest.mark.parametrize(
    ("config", "device", "message"),
    [
        ("cpu:gloo,cuda:gloo", "cuda:0", 'init_process_group("nccl")'),
        ("cuda:nccl", "cpu", 'init_process_group("gloo")'),
        ("cpu:gloo", "npu:1", 'init_process_group("hccl")'),
    ],
)
def test_tensors_that_the_backend_does_not_move(config: str, device: str, message: str) -> None:
    where = SimpleNamespace(type=device.partition(":")[0])
    with pytest.raises(NotImplementedError, match=re.escape(message)):
        require_backend(config, where)  # type: ignore[arg-type]
    require_backend("cpu:gloo,cuda:nccl,npu:hccl", where)  # type: ignore[arg-type]


def test_without_a_process_group() -> None:
    q = torch.ones(1, 1, 4, 8)
    with pytest.raises(RuntimeError, match="init_process_group"):
        ring_attention(q, q, q)
    with pytest.raises(TypeError, match="mask"):
        ring_attention(q, q, q, mask=None)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="mode must be"):
        ContextParallel(mode="star")  # type: ignore[arg-type]
    for wrong in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout must be seconds"):
            ContextParallel(timeout=wrong)

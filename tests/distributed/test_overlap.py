"""The share of communication that a profile shows as hidden."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench.overlap import summary


def event(name: str, start: float, end: float) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        device_type=SimpleNamespace(name="CUDA"),
        time_range=SimpleNamespace(start=start, end=end),
    )


def test_hidden_and_exposed() -> None:
    found = summary(
        [
            event("attention_fwd_kernel", 0, 10),
            event("merge", 9, 12),
            event("ncclDevKernel_SendRecv", 2, 6),
            event("ncclDevKernel_SendRecv", 11, 15),
            event("attention_fwd_kernel", 20, 30),
            event("nccl:send 0->1", 0, 100),
        ]
    )
    assert found == {
        "communication": 8,
        "compute": 22,
        "both": 5,
        "exposed": 3,
        "span": 30,
        "hidden": 5 / 8,
    }
    with pytest.raises(RuntimeError, match="no kernel"):
        summary([])

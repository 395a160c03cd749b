"""How long a call takes on a device, with cold caches, and how fast the machine could be.

Times on a GPU or NPU are those of the device alone: events before and after the call, recorded
while the device is still busy with what cools its caches. What a call costs the host is the subject
of `bench.host_time`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

FLUSHED = 256 << 20
"""Bytes written before each call: several times the largest L2 cache."""
BUSY_CYCLES = 2_000_000
"""Clock cycles, about a millisecond, for which a GPU waits so that the host has time to launch."""
MATMUL_SIZE = {"cuda": 8192, "npu": 8192, "cpu": 1024}
REPEATS = {"cuda": 20, "npu": 20, "cpu": 5}
"""Of what gives the roofs."""
COPIED = {"cuda": 4 << 30, "npu": 4 << 30, "cpu": 256 << 20}
"""Bytes."""


def missing(device: str) -> str | None:
    """Why nothing can be measured on "cpu", "cuda" or "npu"; None where it can."""
    if device == "cuda" and not torch.cuda.is_available():
        return "no GPU here"
    if device == "npu" and not (hasattr(torch, "npu") and torch.npu.is_available()):
        return "no NPU here"
    return None


class Moment:
    """A point in a device's queue; `later - earlier` waits for it and gives seconds."""

    def __init__(self, device: str) -> None:
        self._event: Any = getattr(torch, device).Event(enable_timing=True)
        self._event.record()

    def __sub__(self, earlier: Moment) -> float:
        self._event.synchronize()
        milliseconds: float = earlier._event.elapsed_time(self._event)
        return milliseconds / 1e3


def cuda_clock() -> Moment:
    """Now, in the queue of the GPU."""
    return Moment("cuda")


def npu_clock() -> Moment:
    """Now, in the queue of the NPU."""
    return Moment("npu")


CLOCKS: dict[str, Callable[[], Any]] = {
    "cpu": time.perf_counter,
    "cuda": cuda_clock,
    "npu": npu_clock,
}


def cool(device: str) -> None:
    """Make the device's caches cold, and keep it busy for as long as a launch takes."""
    if device == "cpu":
        return
    _scratch(device).zero_()
    if device == "cuda":
        torch.cuda._sleep(BUSY_CYCLES)


@functools.cache
def _scratch(device: str) -> Tensor:
    return torch.empty(FLUSHED, dtype=torch.uint8, device=device)


def median_time(
    run: Callable[[], object], repeats: int = 50, device: str = "cuda", warmup: int = 5
) -> float:
    """Median seconds of a call on the device, the caches cold before each."""
    for _ in range(warmup):
        run()
    times = []
    for _ in range(repeats):
        cool(device)
        start = CLOCKS[device]()
        run()
        times.append(CLOCKS[device]() - start)
    return float(sorted(times)[repeats // 2])


@functools.cache
def copy_bandwidth(device: str = "cuda") -> float:
    """Bytes a second, read and written, of copying a large tensor."""
    source = torch.zeros(COPIED[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / median_time(lambda: target.copy_(source), REPEATS[device], device)


@functools.cache
def matmul_rate(dtype: torch.dtype, device: str = "cuda") -> float:
    """FLOP/s of the library's product of two large square matrices of one dtype."""
    size = MATMUL_SIZE[device]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / median_time(lambda: a @ b, REPEATS[device], device)

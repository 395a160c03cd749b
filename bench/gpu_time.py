"""How long a GPU takes for a call, and compilations ahead of many timings."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Literal, NamedTuple

import torch

CALLS = 10
"""Calls that are timed together."""
REPLAYS = 7


class Timed(NamedTuple):
    """Time of a call on the GPU, without the host's part, and how it was measured."""

    seconds: float
    how: Literal["graph", "events"]
    """CALLS captured as a graph, or started one by one and timed by events around them."""


def gpu_time(run: Callable[[], object]) -> Timed:
    """The shorter of two medians: of calls in a graph, and of calls started one by one.

    A graph leaves the host's part out, where that is longer than the GPU's. But a copy within the
    device is another thing there: a node for a copy engine, which moves less than the kernel that
    an eager copy starts.
    """
    run()
    torch.cuda.synchronize()
    eager = _median(lambda: [run() for _ in range(CALLS)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    graph.replay()
    captured = _median(graph.replay)
    # a graph keeps memory of its own
    del graph
    torch.cuda.empty_cache()
    return min(Timed(captured, "graph"), Timed(eager, "events"))


def _median(calls: Callable[[], object]) -> float:
    """Seconds of one of CALLS calls: median of REPLAYS."""
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        calls()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / CALLS)
    return float(sorted(times)[len(times) // 2])


def host_seconds(run: Callable[[], object]) -> float:
    """Time until a call returns, the GPU's work still under way: median of CALLS."""
    times = []
    torch.cuda.synchronize()
    for _ in range(CALLS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return sorted(times)[len(times) // 2]


Build = Callable[[], Sequence[Callable[[], object]]]


def precompile(build: Build, processes: int | None = None) -> None:
    """Run what is going to be timed once in processes side by side: Triton keeps what they compile.

    Args:
        build: a module's function that returns the calls, the same in every process.
        processes: how many; None: as many as there are CPUs, 16 at most.
    """
    count = processes or min(16, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_run_some, [build] * count, range(count), [count] * count))


def _run_some(build: Build, first: int, step: int) -> None:
    for run in build()[first::step]:
        # one that fails will fail again where it is timed, and be reported there
        with contextlib.suppress(Exception):
            run()

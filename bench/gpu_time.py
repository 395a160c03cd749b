"""How long a GPU takes for a call, and compilations ahead of many timings."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import torch

CALLS = 10
"""Calls in a graph."""
REPLAYS = 7


def gpu_seconds(run: Callable[[], object]) -> float:
    """Median time of a call on the GPU: a graph of CALLS, replayed, without the host's part."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / CALLS)
    # a graph keeps memory of its own
    del graph
    torch.cuda.empty_cache()
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

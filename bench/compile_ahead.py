"""Compilations ahead of many timings, in processes side by side."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

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

"""How much of the time that a device communicates it computes too: from a profile's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

Interval = tuple[float, float]
"""Start and end, in microseconds."""


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time, in intervals that do not touch, in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def total(intervals: Iterable[Interval]) -> float:
    """Length of intervals that do not touch."""
    return sum(end - start for start, end in intervals)


def common(a: list[Interval], b: list[Interval]) -> float:
    """How long both are at once; each as `joined` returns it."""
    found, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        found += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return found


def profiled(run: Callable[[], object], trace: Path | None = None) -> dict[str, float]:
    """Run once under the profiler, on this rank's GPU.

    Args:
        run: what to profile; it has run before.
        trace: where to write the trace, for chrome://tracing or Perfetto.

    Returns:
        Microseconds: communication, compute, both (at once), exposed (communication alone), span
        (from the first kernel to the last); and hidden, the share of communication beside which
        something was computed.
    """
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        run()
        torch.cuda.synchronize()
    if trace is not None:
        profile.export_chrome_trace(str(trace))
    return summary(profile.events() or [])


def summary(events: Iterable[Any]) -> dict[str, float]:
    """The figures of `profiled`, from a profile's events."""
    kernels = [
        (event.name, (event.time_range.start, event.time_range.end))
        for event in events
        if event.device_type.name == "CUDA"
        # user annotations and copies have no kernel's name
        and not event.name.startswith(("Memcpy", "Memset", "nccl:", "ProfilerStep"))
    ]
    if not kernels:
        raise RuntimeError("the profile has no kernel: was anything computed on the GPU?")
    moves = joined(at for name, at in kernels if "nccl" in name.lower())
    work = joined(at for name, at in kernels if "nccl" not in name.lower())
    both = common(moves, work)
    spans = [*moves, *work]
    return {
        "communication": total(moves),
        "compute": total(work),
        "both": both,
        "exposed": total(moves) - both,
        "span": max(end for _, end in spans) - min(start for start, _ in spans),
        "hidden": both / total(moves) if moves else 1.0,
    }

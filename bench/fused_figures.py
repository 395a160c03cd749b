"""What times and profiles say of the way back: what of the exchange is hidden; see `fused_time`."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

from .overlap import joined, total

BASES = ("compute", "in step")
PARTS = {
    "attention": "attention",
    "elementwise": "transposes",
    "nccl": "NCCL",
    "meet_kernel": "signal and wait",
    "take_kernel": "copy",
}
"""What a kernel with such a name does."""
WAITING = ("NCCL", "signal and wait")
"""In these a rank also waits for a peer that is late."""

Kernel = tuple[str, float, float]
"""Name, start and end in microseconds."""


def hidden(events: dict[str, list[float]], base: str) -> dict[str, Any]:
    """What is exposed of the communication, in milliseconds, and hidden, of paired rounds.

    Returns:
        communication, exposed: medians of the rounds' differences; hidden: from these, with the
        middle 95 % of 1000 draws of rounds as its range; quartiles: of each round's own.
    """
    pairs = [
        (u - b, f - b)
        for b, u, f in zip(events[base], events["unfused"], events["fused"], strict=True)
    ]
    chance = random.Random(0)
    drawn = sorted(_share(chance.choices(pairs, k=len(pairs))) for _ in range(1000))
    each = [1 - f / u for u, f in pairs if u]
    return {
        "communication": statistics.median(u for u, _ in pairs),
        "exposed": statistics.median(f for _, f in pairs),
        "hidden": _share(pairs),
        "range": [drawn[25], drawn[974]],
        "quartiles": statistics.quantiles(each, n=4) if len(each) > 1 else each * 3,
    }


def _share(pairs: Sequence[tuple[float, float]]) -> float:
    return share(statistics.median(u for u, _ in pairs), statistics.median(f for _, f in pairs))


def share(communication: float, exposed: float) -> float:
    """What is hidden of the communication; 0 where there is none."""
    return 1 - exposed / communication if communication else 0.0


def of_calls(kernels: Sequence[Kernel], calls: int) -> list[list[Kernel]]:
    """The kernels of each call, of those in a profile that begins with a sleep and a signal.

    Raises:
        RuntimeError: calls are not alike.
    """
    first = next((i for i, kernel in enumerate(kernels) if "meet_kernel" in kernel[0]), None)
    if first is None:
        raise RuntimeError("the profile has no signal before the calls")
    named = [(_part(name), start, end) for name, start, end in kernels[first + 1 :]]
    each, rest = divmod(len(named), calls)
    found = [named[i * each : (i + 1) * each] for i in range(calls)]
    if rest or not each or any([k[0] for k in c] != [k[0] for k in found[0]] for c in found):
        raise RuntimeError(f"{len(named)} kernels in {calls} calls: {[k[0] for k in named[:12]]}")
    return found


def _part(name: str) -> str:
    for word, part in PARTS.items():
        if word in name.lower():
            return part
    return name.partition("<")[0].partition("(")[0][:40]


def per_call(ranks: Sequence[Sequence[Sequence[Kernel]]]) -> list[dict[str, float]]:
    """Mean microseconds of a call on each rank, all but the first.

    Args:
        ranks: of each rank, of each call, its kernels in the order of their starts.

    Returns:
        Each part; gaps, where none of them runs; span, from the end of the call before to its own;
        and late, of the parts, what more a wait took than the shortest one of all ranks and calls:
        a peer was late.
    """
    shortest: dict[str, float] = {}
    for calls in ranks:
        for name, start, end in (kernel for call in calls for kernel in call):
            if name in WAITING:
                shortest[name] = min(shortest.get(name, end - start), end - start)
    found = []
    for calls in ranks:
        ends = [max(end for _, _, end in call) for call in calls]
        # of a single call there is no call before
        later = calls[1:] or calls
        span = (ends[-1] - (ends[0] if len(calls) > 1 else calls[0][0][1])) / len(later)
        means: dict[str, float] = {}
        for name, start, end in (kernel for call in later for kernel in call):
            means[name] = means.get(name, 0.0) + (end - start) / len(later)
        busy = total(joined((start, end) for call in later for _, start, end in call))
        late = sum(means[name] - least for name, least in shortest.items())
        found.append({**means, "gaps": span - busy / len(later), "span": span, "late": late})
    return found


def lines(S: int, found: dict[str, Any]) -> list[str]:
    """The table of one length."""
    medians = {name: statistics.median(each) for name, each in found["milliseconds"].items()}
    told = [f"{S:>7}  " + "  ".join(f"{name} {ms:.3f}" for name, ms in medians.items()) + " ms"]
    for base, of in found["hidden"].items():
        low, high = of["range"]
        quarter, _, three = of["quartiles"]
        told.append(
            f"{'':9}against {base}: communication {1000 * of['communication']:.0f}, exposed "
            f"{1000 * of['exposed']:.0f} us; hidden {of['hidden']:.0%} (95 %: {low:.0%} to "
            f"{high:.0%}; rounds' quartiles {quarter:.0%}, {three:.0%}); in the profile "
            f"{found['hidden in the profile'][base]:.0%}"
        )
    for name, ranks in found["profile"].items():
        for rank, parts in enumerate(ranks):
            told.append(
                f"{'':9}{name} {rank}: "
                + ", ".join(f"{part} {us:.1f}" for part, us in parts.items())
                + " us"
            )
    return told

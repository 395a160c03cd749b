"""Has anything become slower than its peers? Ratios within a run, against those of a baseline.

    python -m bench.check out.json [BASELINE.json] [--slack 0.1]
    python -m bench.check out.json [BASELINE.json] --update

A ratio says how many times as fast an implementation of this package is as a peer, in one run of
`pytest bench/ --benchmark-json=out.json`; it moves less from machine to machine than a time. Exit
status 1 if a ratio has fallen by more than the slack, or a case of the baseline that was to be
timed has no time any more. The baseline of a device is bench/results/baseline_DEVICE.json unless
another is named.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .machine import RESULTS
from .suite import OURS

Ratios = dict[str, dict[str, float]]
"""Benchmark -> peer -> how many times as fast as the peer."""


def main() -> None:
    """Compare, or write the baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("baseline", type=Path, nargs="?")
    parser.add_argument("--slack", type=float, default=0.1, help="fall of a ratio that is let pass")
    parser.add_argument("--update", action="store_true", help="write the baseline")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    file = arguments.baseline or RESULTS / f"baseline_{device(results)}.json"
    if arguments.update:
        baseline = {"machine": results["flashasc"]["machine"], "ratios": ratios(results)}
        file.write_text(json.dumps(baseline, indent=1) + "\n")
        return
    baseline = json.loads(file.read_text())
    faults = fallen(ratios(results), baseline["ratios"], arguments.slack)
    print("\n".join(faults) or "no ratio has fallen")
    sys.exit(bool(faults))


def device(results: dict[str, Any]) -> str:
    """The device that a result file is of.

    Raises:
        ValueError: it holds none, or several, whose ratios no one baseline has.
    """
    found = {one["extra_info"]["device"] for one in results["benchmarks"]}
    if len(found) != 1:
        raise ValueError(
            f"one device's results are compared with its baseline, got {sorted(found)}: choose one "
            'with pytest bench/ -k "cuda", or name the baseline'
        )
    return str(*found)


def ratios(results: dict[str, Any]) -> Ratios:
    """This package's implementations over their peers, of a result file."""
    found = {}
    for one in results["benchmarks"]:
        info = one["extra_info"]
        peers = {
            name: ratio for name, ratio in info["speed_over"].items() if not name.startswith(OURS)
        }
        if info["implementation"].startswith(OURS) and peers:
            found[one["name"]] = peers
    return found


def fallen(now: Ratios, before: Ratios, slack: float) -> list[str]:
    """What is worse than it was, a line each.

    Args:
        now, before: ratios of two runs. A peer that only one of them has is left out.
        slack: share of the old ratio that the new one may lack.
    """
    lines = []
    for name, peers in before.items():
        if name not in now:
            lines.append(f"{name}: was timed, is not any more")
            continue
        for peer, old in peers.items():
            new = now[name].get(peer)
            if new is not None and new < (1 - slack) * old:
                lines.append(f"{name}: {new:.3f} x {peer}, was {old:.3f}")
    return lines


if __name__ == "__main__":
    main()

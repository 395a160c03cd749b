"""What came of a run, as a page: counts by file and by operator, and each survivor's reason."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tests.mutation.mutants import Mutant
from tests.mutation.survivors import reason

_PACKAGES = ("cosmic-ray", "triton-ascend", "triton", "torch", "numpy", "pytest")


def report(
    drawn: Sequence[Mutant],
    mutants: Sequence[Mutant],
    known: Mapping[str, Mapping[str, Any]],
    command: Sequence[str],
) -> tuple[str, int]:
    """Write a run down.

    Args:
        drawn: the mutants that were asked for.
        mutants: those they were drawn from.
        known: key -> outcome, of those that were judged.
        command: the arguments of the run.

    Returns:
        (text, how many survived without a reason).
    """
    judged = [mutant for mutant in drawn if mutant.key in known]
    kinds = {mutant.key: str(known[mutant.key]["kind"]) for mutant in judged}
    survivors = sorted(
        (m for m in judged if kinds[m.key].startswith("survived")),
        key=lambda m: (m.file, m.line, m.new),
    )
    unexplained = [mutant for mutant in survivors if not reason(mutant)]
    explained = len(survivors) - len(unexplained)
    counts = Counter(kinds.values())
    caught = counts["killed"] + counts["timeout"]
    lines = [
        f"python -m tests.mutation {' '.join(command)}",
        f"Python {platform.python_version()}, {', '.join(_versions())}",
        "Judged by the tests of a mutant's own file (OWN in tests/mutation/runner.py), in Triton's",
        "interpreter"
        + ("." if "--own" in command else ", and then by the others of tests/blocks."),
        "",
        f"{len(judged)} of {len(mutants)} mutants judged"
        + ("" if len(judged) == len(drawn) else f", {len(drawn) - len(judged)} asked for are not"),
        f"{caught} caught: {counts['killed']} by a test that failed, {counts['timeout']} by time",
        f"{len(survivors)} survived: {explained} change nothing, or nothing that is promised, "
        f"{len(unexplained)} are unexplained",
        f"{_share(caught, len(judged))} caught; of those that are no equivalents "
        f"{_share(caught, len(judged) - explained)}",
        "",
        *_counts("file", judged, kinds, lambda mutant: mutant.file),
        "",
        *_counts("operator", judged, kinds, lambda mutant: mutant.operator),
        "",
        "Survivors",
    ]
    for mutant in survivors:
        why = reason(mutant) or "UNEXPLAINED"
        lines += [f"{mutant.file}:{mutant.line} {mutant.function}, {mutant.operator}",
                  f"  - {mutant.old}", f"  + {mutant.new}", f"  {why}"]  # fmt: skip
    return "\n".join(lines) + "\n", len(unexplained)


def _versions() -> list[str]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def _counts(
    title: str,
    judged: Sequence[Mutant],
    kinds: Mapping[str, str],
    group: Callable[[Mutant], str],
) -> list[str]:
    lines = [f"{title:<42}{'mutants':>9}{'caught':>9}{'equivalent':>12}{'unexplained':>13}"]
    for name in sorted({group(mutant) for mutant in judged}):
        members = [mutant for mutant in judged if group(mutant) == name]
        alive = [mutant for mutant in members if kinds[mutant.key].startswith("survived")]
        told = sum(bool(reason(mutant)) for mutant in alive)
        lines.append(
            f"{name:<42}{len(members):>9}{len(members) - len(alive):>9}{told:>12}"
            f"{len(alive) - told:>13}"
        )
    return lines

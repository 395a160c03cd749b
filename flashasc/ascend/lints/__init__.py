"""Read a lowered kernel for what the Ascend compiler gets wrong, or slow, without saying so.

A rule is a function over the Linalg text. What it finds says what happens on the device and what to
write instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashasc.ascend.frontend import Lowered
from flashasc.ascend.lints import launch, loops, products, reductions
from flashasc.ascend.lints.finding import Effect, Finding, Rule
from flashasc.ascend.lints.text import Text
from flashasc.ascend.toolchain import Family, family

__all__ = ["EFFECTS", "RULES", "Effect", "Finding", "Rule", "lint", "lint_lowered"]

_ALL: frozenset[Family] = frozenset({"A2", "A3", "A5"})
_A2_A3: frozenset[Family] = frozenset({"A2", "A3"})

RULES: tuple[Rule, ...] = (
    Rule("reduce-body", "wrong", _ALL, reductions.reduce_body),
    Rule("leftover-triton", "rejected", _ALL, reductions.leftover_triton),
    Rule("scalar-loop", "slow", _ALL, loops.scalar_loops),
    Rule("scalar-scan", "slow", _A2_A3, loops.library_scans),
    Rule("left-operand", "reported wrong", _ALL, products.left_operands),
    Rule("zero-trips", "wrong", _A2_A3, loops.zero_trips),
    Rule("half-scalar", "reported wrong", _ALL, launch.half_scalars),
)
"""The rules that the Linalg text is enough for."""

_REDUCE_OPERANDS = Rule("reduce-operands", "wrong", _ALL, reductions.reduce_operands)

EFFECTS: dict[str, Effect] = {
    **{rule.name: rule.effect for rule in (*RULES, _REDUCE_OPERANDS)},
    "grid": "rejected",
}
"""What the kernel does on the device, by the name of the rule; see `Rule.effect`."""


def lint(linalg: str) -> tuple[Finding, ...]:
    """Apply every rule to a kernel's Linalg text; returns the findings in order of their lines.

    Which processor the text is for, it doesn't say: rules about any of them apply.
    """
    text = Text(linalg)
    found = [finding for rule in RULES for finding in rule.apply(text)]
    return tuple(sorted(found, key=lambda finding: finding.line))


def lint_lowered(
    lowered: Lowered, *, grid: int | Sequence[int] | None = None
) -> tuple[Finding, ...]:
    """Apply the rules that concern the processor a kernel was lowered for.

    Args:
        lowered: what `flashasc.ascend.lower` returned. Its Triton IR is read too.
        grid: number of programs it will be launched with, in one to three dimensions; None leaves
            the grid unchecked, since a kernel does not say how it is launched.

    Returns:
        The findings, those about Triton's IR first (they have no line in the Linalg text).

    Raises:
        ValueError: `grid` is not one to three positive integers.
    """
    text = Text(lowered.linalg)
    concerned = family(lowered.arch)
    found = [
        finding for rule in RULES if concerned in rule.families for finding in rule.apply(text)
    ]
    if grid is not None:
        size = (grid,) if isinstance(grid, int) else tuple(grid)
        if not 1 <= len(size) <= 3 or not all(isinstance(n, int) and n > 0 for n in size):
            raise ValueError(f"grid: expected one to three positive integers, got {grid!r}")
        found += Rule("grid", "rejected", _ALL, lambda text: launch.grid(text, size)).apply(text)
    ttir = Text(lowered.ttir)
    found += [
        Finding(_REDUCE_OPERANDS.name, 0, ttir.lines[line], message)
        for line, message in _REDUCE_OPERANDS.check(ttir)
    ]
    return tuple(sorted(found, key=lambda finding: finding.line))

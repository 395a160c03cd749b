"""Read a lowered kernel for what the Ascend compiler gets wrong without saying so.

Each rule is a function over the lines of the Linalg text. A finding says what happens on the
device and what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One place in a lowered kernel that will not do what its source says.

    Attributes:
        rule: short name of the rule, e.g. "reduce-body".
        line: line of the Linalg text, from 1.
        text: that line.
        message: what happens on the device, and what to write instead.
    """

    rule: str
    line: int
    text: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}, line {self.line}: {self.message}\n    {self.text}"


def lint(linalg: str) -> tuple[Finding, ...]:
    """Apply every rule to a kernel's Linalg text; returns the findings in order of their lines."""
    lines = [line.strip() for line in linalg.splitlines()]
    found = [finding for rule in _RULES for finding in rule(lines)]
    return tuple(sorted(found, key=lambda finding: finding.line))


def _reduce_body(lines: Sequence[str]) -> Iterator[Finding]:
    """Find reductions whose body is more than the one operation that survives on A2 and A3.

    bishengir-compile 1.2.0 turns a `linalg.reduce` into its own reduction by the last operation
    of the body alone (seen in its HIVM output: max(|a|, |b|) became a plain max, a*b + a + b a
    sum, with exit status 0). Reductions that return an index have a form of their own, which it
    recognises by an attribute.
    """
    for number, line in enumerate(lines):
        # the short form, linalg.reduce { op } ins(...), has one operation by construction
        if not re.search(r"\blinalg\.reduce ins\(", line) or "_with_index" in line:
            continue
        body = _region(lines, number + 1)
        operations = [text for text in body if not text.startswith("linalg.yield")]
        if len(operations) == 1:
            continue
        listed = "; ".join(operations) or "none"
        yield Finding(
            "reduce-body",
            number + 1,
            line,
            f"the body of this reduction has {len(operations)} operations ({listed}). On A2 and A3 "
            "the compiler keeps only the last one and reports success, so the result is wrong. "
            "Apply the other operations to the tile before or after, and reduce with tl.sum, "
            "tl.max, tl.min or tl.xor_sum; or combine halves of the tile explicitly",
        )


def _region(lines: Sequence[str], start: int) -> list[str]:
    """Return the lines inside the braces that open at or after `start`, nested ones included."""
    depth, body = 0, []
    for line in lines[start:]:
        opened = line.count("{") - line.count("}")
        if depth and depth + opened <= 0:
            break
        if depth:
            body.append(line)
        depth += opened
    return body


def _leftover_triton(lines: Sequence[str]) -> Iterator[Finding]:
    """Find operations that triton-adapter-opt left in Triton's dialect, with exit status 0."""
    # attributes such as {tt.divisibility = 16 : i32} are in order
    operation = re.compile(r'(?:^|= )"?(tt\.[\w.]+)')
    for number, line in enumerate(lines):
        match = operation.search(line)
        if match is None or match[1].endswith((".return", ".yield")):
            continue
        advice = (
            "reduce one value at a time with tl.sum, tl.max or tl.min, or fold halves of the tile"
            if match[1] in ("tt.reduce", "tt.scan")
            else "write it with operations that triton-ascend lowers"
        )
        yield Finding(
            "leftover-triton",
            number + 1,
            line,
            f"{match[1]} was not lowered: the Ascend compiler cannot read this kernel, and rejects "
            f"it or crashes on it; {advice}",
        )


_RULES: tuple[Callable[[Sequence[str]], Iterator[Finding]], ...] = (_reduce_body, _leftover_triton)

"""A reading of MLIR text as the lints need it: which line defines a name, and what encloses it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

_NAME = re.compile(r"%[\w$.-]+")
_RESULT = re.compile(r"(%[\w$.-]+)(?::\d+)? = ")
_REGION_ARGUMENT = re.compile(r"(%[\w$.-]+): ")
_BOUND = re.compile(r"(%[\w$.-]+) = %")


class Text:
    """The lines of a module, stripped, with their nesting.

    MLIR prints names so that a visible one is never hidden, and reuses them in regions that
    don't see each other; so the definition that a use means is the nearest one above it.
    """

    def __init__(self, linalg: str) -> None:
        self.lines = [line.strip() for line in linalg.splitlines()]
        # per line: the depth it starts at, the least depth within it, the headers around it
        self._depth: list[int] = []
        self._least: list[int] = []
        self._around: list[tuple[int, ...]] = []
        # line of "} else {" -> line of its "scf.if"
        self.if_of_else: dict[int, int] = {}
        self._definitions: dict[str, list[int]] = {}
        open_headers: list[int] = []
        for number, line in enumerate(self.lines):
            self._depth.append(len(open_headers))
            self._around.append(tuple(open_headers))
            least = len(open_headers)
            for brace in re.findall(r"[{}]", line):
                if brace == "{":
                    open_headers.append(number)
                elif open_headers:
                    closed = open_headers.pop()
                    if closed != number and line.startswith("} else {"):
                        self.if_of_else[number] = closed
                least = min(least, len(open_headers))
            self._least.append(least)
            for name in _defined(line):
                self._definitions.setdefault(name, []).append(number)

    def definition(self, name: str, line: int) -> int | None:
        """Return the line that defines `name` as seen from `line` (from 0); None when none does."""
        lines = self._definitions.get(name, [])
        at = bisect_left(lines, line)
        return lines[at - 1] if at else None

    def block(self, header: int) -> range:
        """Return the lines inside the region that `header` opens."""
        end = header + 1
        # the line may close another region first: "} else {"
        while end < len(self.lines) and self._least[end] > self._least[header]:
            end += 1
        return range(header + 1, end)

    def around(self, line: int) -> tuple[int, ...]:
        """Return the lines that open the regions around `line`, the outermost first."""
        return self._around[line]

    def uses(self, name: str, defined: int) -> Iterator[int]:
        """Yield the lines that use a name defined on line `defined`."""
        for number in range(defined + 1, len(self.lines)):
            if self._least[number] < self._depth[defined]:
                return
            if number in self._definitions.get(name, ()):
                return
            if name in _NAME.findall(self.lines[number]):
                yield number

    def find(self, pattern: str) -> Iterator[tuple[int, re.Match[str]]]:
        """Yield each line (from 0) in which a pattern is found, and the match."""
        for number, line in enumerate(self.lines):
            if match := re.search(pattern, line):
                yield number, match


def _defined(line: str) -> list[str]:
    """Return the names that a line defines: its result, and arguments of the region it opens."""
    names = [match[1]] if (match := _RESULT.match(line)) else []
    if line.startswith(("^", "(%")) or "func.func @" in line:
        names += _REGION_ARGUMENT.findall(line)
    elif "scf.for " in line or "scf.while " in line:
        names += _BOUND.findall(line.split("scf.", 1)[1])
    return names

"""What a lint finds, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from flashasc.ascend.lints.text import Text
from flashasc.ascend.toolchain import Family

Effect = Literal["wrong", "reported wrong", "rejected", "slow"]


@dataclass(frozen=True)
class Finding:
    """One place in a lowered kernel that will not do what its source says.

    Attributes:
        rule: short name of the rule, e.g. "reduce-body".
        line: line of the Linalg text, from 1; 0 when it is not about a line of that text.
        text: that line.
        message: what happens on the device, and what to write instead.
    """

    rule: str
    line: int
    text: str
    message: str

    def __str__(self) -> str:
        where = f", line {self.line}" if self.line else ""
        shown = self.text if len(self.text) <= 160 else self.text[:157] + "..."
        return f"{self.rule}{where}: {self.message}\n    {shown}"


@dataclass(frozen=True)
class Rule:
    """A check on the Linalg text.

    Attributes:
        name: what findings call it.
        effect: what the kernel does on the device: "wrong" (seen in the compiler's output),
            "reported wrong" (reported by users with the device, not to be seen offline),
            "rejected" or "slow".
        families: the generations that it concerns.
        check: yields (line from 0, message) of each place.
    """

    name: str
    effect: Effect
    families: frozenset[Family]
    check: Callable[[Text], Iterator[tuple[int, str]]]

    def apply(self, text: Text) -> Iterator[Finding]:
        """Yield what the rule finds in a text."""
        for line, message in self.check(text):
            yield Finding(self.name, line + 1, text.lines[line], message)

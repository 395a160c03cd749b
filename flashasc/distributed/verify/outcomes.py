"""What a check found, and what all ranks found together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Layer = Literal["comm", "compute", "fused"]
LAYERS: tuple[Layer, ...] = ("comm", "compute", "fused")
Op = Literal["ring", "ulysses", "hybrid", "ulysses-fused"]
OPS: tuple[Op, ...] = ("ring", "ulysses", "hybrid")
"""What is checked where nothing else is asked for: it works on every group."""
ALL_OPS: tuple[Op, ...] = (*OPS, "ulysses-fused")
Finding = str | tuple[str, int]
"""What is wrong, "" for nothing; or that, and the step it was found at."""
Check = tuple[str, Callable[[], Finding]]
"""Name, and what performs it."""


@dataclass(frozen=True)
class Outcome:
    """One check on one rank.

    Attributes:
        rank, layer, check: which.
        ok: passed; None: was not run.
        detail: what is wrong.
        number, step: of the check among this rank's, and of what is wrong in it.
    """

    rank: int
    layer: Layer
    check: str
    ok: bool | None
    detail: str = ""
    number: int = 0
    step: int = 0


@dataclass(frozen=True)
class Report:
    """What all ranks found.

    Attributes:
        world: how many ranks there were.
        outcomes: every check of every rank that answered.
        silent: ranks that did not, and where each was last.
        facts: of the machine and the call.
    """

    world: int
    outcomes: Sequence[Outcome]
    silent: dict[int, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Every check passed on every rank."""
        return not self.silent and bool(self.outcomes) and all(o.ok for o in self.outcomes)

    @property
    def failures(self) -> list[Outcome]:
        """Checks that failed, in the order in which they did: later ones may for their sake."""
        failed = [o for o in self.outcomes if o.ok is False]
        return sorted(failed, key=lambda o: (LAYERS.index(o.layer), o.number, o.step, o.rank))

    @property
    def layer(self) -> Layer | None:
        """The layer to look at: the first one that failed."""
        return self.failures[0].layer if self.failures else None

    @property
    def verdict(self) -> str:
        """One line: all is well, or what to look at first."""
        if self.ok:
            return f"ok: every check passed on each of {self.world} ranks"
        lines = [f"rank {rank} gave no result; {where}" for rank, where in self.silent.items()]
        if self.failures:
            first = self.failures[0]
            lines.append(f"{first.layer}: rank {first.rank}: {first.check}: {first.detail}")
        return "; ".join(lines) or "no check was run"

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "world": self.world,
            "facts": self.facts,
            "silent": {str(rank): where for rank, where in self.silent.items()},
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
        }

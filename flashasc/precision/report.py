"""What a comparison found: frozen, printable, and the same again after a trip through JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .json_codec import decode, encode
from .statistics import Errors, NonFinite
from .worst import Element


@dataclass(frozen=True)
class Check:
    """One rule, applied.

    Attributes:
        name: "tolerance", "bitwise", "single standard: MERE", "L1: RMSE", "flash-attention 2x"...
        passed: whether the rule holds.
        gates: whether the verdict depends on it; otherwise it is for information.
        measured: what was found.
        limit: what it may be at most.
        detail: how it was measured, in words.
    """

    name: str
    passed: bool
    gates: bool
    measured: float
    limit: float
    detail: str


@dataclass(frozen=True)
class TensorReport:
    """All about one tensor.

    Attributes:
        name: its path in the tree; "" for a tensor alone.
        dtype, shape: of the result.
        elements: how many.
        judged_by: what it was compared with: "expected", or "golden, rounded once to bfloat16".
        rule: how: "rtol 0.005, atol 0.005, NaN equals NaN", "bit for bit", "must be equal".
        mismatched: elements that break the rule.
        denominator: what relative errors are relative to, and from which size on.
        checks: every rule; those that gate decide.
        errors: ours against the truth; None for integers and bool.
        theirs: those of `expected` against the golden result, where both were given.
        non_finite: NaN and infinities.
        worst: the worst elements, the worst first; elements without an error are not among them.
        findings: what the mismatches look like, in words.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    judged_by: str
    rule: str
    mismatched: int
    denominator: str
    checks: tuple[Check, ...]
    errors: Errors | None
    theirs: Errors | None
    non_finite: NonFinite
    worst: tuple[Element, ...]
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every gating check passed."""
        return all(check.passed for check in self.checks if check.gates)

    def check(self, name: str) -> Check:
        """The check of this name.

        Raises:
            KeyError: it was not made; the message lists those that were.
        """
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"{name!r} is none of {[check.name for check in self.checks]}")


@dataclass(frozen=True)
class Report:
    """A comparison of two trees of tensors.

    Attributes:
        title: what was compared.
        tensors: a report for each tensor.
        versions: package -> version, of what did the comparison.
    """

    title: str
    tensors: tuple[TensorReport, ...]
    versions: dict[str, str]

    @property
    def ok(self) -> bool:
        """The verdict: whether every tensor is in order."""
        return all(tensor.ok for tensor in self.tensors)

    @property
    def findings(self) -> tuple[str, ...]:
        """What was noticed, tensor by tensor."""
        return tuple(
            f"{tensor.name}: {finding}" if tensor.name else finding
            for tensor in self.tensors
            for finding in tensor.findings
        )

    def assert_ok(self) -> None:
        """Raise AssertionError with the report as its text unless the verdict is good."""
        if not self.ok:
            raise AssertionError(self.text())

    def text(self) -> str:
        """The report as plain text."""
        from .text import plain

        return plain(self)

    def show(self) -> None:
        """Print the report: with rich's tables and colours where rich is, as text elsewhere."""
        from .text import show

        show(self)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types; NaN and infinities are the strings "NaN", "inf", "-inf"."""
        found: dict[str, Any] = encode(self)
        return {"ok": self.ok, **found}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Report:
        """The report that `to_json` made this of.

        Raises:
            ValueError: something else.
        """
        if not isinstance(found, Mapping):
            raise ValueError(
                f"found: expected what to_json made, a dict; got {type(found).__name__}. A file "
                "that save_json wrote is read by Report.load_json(path)"
            )
        return decode(cls, {name: value for name, value in found.items() if name != "ok"})

    @classmethod
    def load_json(cls, path: str | Path) -> Report:
        """The report that `save_json` wrote to a file.

        Raises:
            OSError: the file cannot be read.
            ValueError: something else is in it.
        """
        return cls.from_json(json.loads(Path(path).read_text()))

    def save_json(self, path: str | Path) -> None:
        """Write the report to a file."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")

    def html(self) -> str:
        """One page that needs nothing else: styles and plots are inside.

        Raises:
            ImportError: jinja2 or matplotlib is missing; the message says what to install.
        """
        from .page import page

        return page(self)

    def save_html(self, path: str | Path) -> None:
        """Write `html` to a file."""
        Path(path).write_text(self.html(), encoding="utf-8")

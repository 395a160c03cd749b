"""Each row of docs/edge-cases.md, by the text of its first cell."""

from __future__ import annotations

import re

import pytest

from tests.attention.routes import prepare as prepare_route
from tests.docs import edge_arguments, edge_numbers, edge_rows  # noqa: F401, they fill CHECKS
from tests.docs.edge_table import CHECKS, RAISES
from tests.docs.pages import rows

HEADINGS = (
    "Nothing to see",
    "Lengths",
    "NaN and infinity",
    "Large numbers",
    "Arguments",
    "Tensors",
)
ON_PAGE = [row[0] for heading in HEADINGS for row in rows("edge-cases", heading)]
KERNEL = " *(kernel)*"


def test_every_row_is_checked() -> None:
    assert sorted(text.removesuffix(KERNEL) for text in ON_PAGE) == sorted(CHECKS)


@pytest.mark.parametrize("text", [t.removesuffix(KERNEL) for t in ON_PAGE])
def test_on_the_reference(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CHECKS[text](prepare_route("reference", monkeypatch))


@pytest.mark.parametrize("text", [t.removesuffix(KERNEL) for t in ON_PAGE if KERNEL in t])
def test_on_the_kernel(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CHECKS[text](prepare_route("native-linalg", monkeypatch))


def test_errors_are_named() -> None:
    """A row whose result is an error names its type."""
    for heading in HEADINGS:
        for text, result in rows("edge-cases", heading):
            named = re.search(r"(\w+Error)", result)
            assert bool(named) == (text in RAISES), text

"""Snippets run, tables are what was measured, links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import json
import re

import pytest
import torch

from bench.machine import RESULTS
from bench.real_activations_table import table_of
from bench.tables import TABLES, filled
from flashasc.precision import Sweep
from tests.conftest import ROOT
from tests.docs.pages import PAGES, blocks, text_of

SNIPPETS = [page for page in PAGES if blocks(page, "python")]


@pytest.mark.parametrize("page", SNIPPETS)
def test_snippets_run_in_order(page: str) -> None:
    torch.manual_seed(0)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names: dict[str, object] = {}
        for block in blocks(page, "python"):
            exec(compile(block, f"{page}.md", "exec"), names)
    if page == "packed-and-padded":
        # what `check` says of cumulative lengths without a leading 0
        assert blocks(page, "text") == [printed.getvalue()]
    else:
        assert not printed.getvalue()
    if page == "npu-and-gpu-disagree":
        (table,) = blocks(page, "text")
        assert_measured(table, names["found"])


def assert_measured(table: str, found: object) -> None:
    """The sweep shown is the one measured, as far as machines may differ."""
    assert isinstance(found, Sweep)
    lines = table.splitlines()[1:]
    assert len(lines) == len(found.rows) + len(found.names)
    for line, row in zip(lines, found.rows):
        name, length, relative, _, _, rounded, bad = line.split()
        assert (name, int(length), int(bad)) == (row.name, row.length, row.non_finite)
        assert float(relative) == pytest.approx(row.relative, rel=0.1)
        assert float(rounded.rstrip("%")) / 100 == pytest.approx(row.correctly_rounded, abs=0.05)


def test_pages_with_snippets() -> None:
    assert SNIPPETS == [
        "precision",
        "packed-and-padded",
        "models",
        "precision-toolkit",
        "npu-and-gpu-disagree",
        "decoding",
    ]


def test_tables_are_the_results() -> None:
    pages = {name: text_of(name) for name in ("precision", "performance")}
    names = re.findall(r"<!-- table: (\w+) -->", "".join(pages.values()))
    assert sorted(names) == sorted(TABLES)
    for name, page in pages.items():
        assert filled(page) == page, f"run: python -m bench.tables docs/{name}.md"


def test_errors_on_real_activations_are_the_results() -> None:
    records = json.loads((RESULTS / "real_activations_cpu.json").read_text())["records"]
    assert table_of(records) in text_of("models")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text_of(page)):
        path, anchor = target
        file = (ROOT / "docs" / path).resolve() if path else ROOT / "docs" / f"{page}.md"
        assert file.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, f"{path}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_the_readme_links_to_the_page(page: str) -> None:
    assert f"(docs/{page}.md)" in (ROOT / "README.md").read_text()

"""Snippets run, tables are what was measured, links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re

import pytest
import torch

from bench.tables import TABLES, filled
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


def test_pages_with_snippets() -> None:
    assert SNIPPETS == ["precision", "packed-and-padded", "decoding"]


def test_tables_are_the_results() -> None:
    page = text_of("precision")
    assert sorted(re.findall(r"<!-- table: (\w+) -->", page)) == sorted(TABLES)
    assert filled(page) == page, "run: python -m bench.tables docs/precision.md"


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

"""The pages of docs/, cut into what can be run."""

from __future__ import annotations

import re

from tests.conftest import ROOT

PAGES = (
    "masks-and-alignment",
    "precision",
    "packed-and-padded",
    "edge-cases",
    "models",
    "coming-from",
    "precision-toolkit",
    "npu-and-gpu-disagree",
    "decoding",
    "context-parallel",
)


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    """What stands between fences of a language, in order."""
    fence = rf"^```{language}\n(.*?)^```$"
    return re.findall(fence, text_of(page), re.MULTILINE | re.DOTALL)


def rows(page: str, heading: str) -> list[tuple[str, ...]]:
    """The cells of the first table below a heading, without its own header."""
    section = text_of(page).split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    table = re.search(r"^\|.*?(?=^[^|]|\Z)", section, re.MULTILINE | re.DOTALL)
    assert table is not None, f"no table below {heading!r}"
    lines = table[0].splitlines()[2:]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]

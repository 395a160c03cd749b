"""Result files and numbers as Markdown."""

from __future__ import annotations

import json
import re
from typing import Any

from .machine import RESULTS

NAMES = {
    "FlashAttention-2": "FlashAttention-2 in PyTorch",
    "efficient": "memory-efficient SDPA",
    "math": "math SDPA",
    "sdpa_flash": "FlashAttention-2 in PyTorch",
    "sdpa_cudnn": "cuDNN",
    "sdpa_efficient": "memory-efficient SDPA",
    "fa3": "FlashAttention-3",
}
"""What the implementations of result files are called in a page."""


def results(name: str) -> dict[str, Any]:
    """The contents of bench/results/NAME.json."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def implementation(name: str) -> str:
    """An implementation, as a page names it."""
    return NAMES.get(name) or re.sub(r"^flashasc[ _](\w+)$", r"flashasc `\1`", name)


def number(count: int) -> str:
    """An integer with its thousands set apart."""
    return f"{count:,}".replace(",", " ")


def error(relative: float) -> str:
    """An error, to two digits."""
    return f"{relative:.1e}".replace("e-0", "e-")


def share(part: float) -> str:
    """A part of 1 in per cent; what is not all does not look like all."""
    text = f"{part:.2%}"
    if part < 1.0 and text == "100.00%":
        text = f"{part:.3%}"
    return text.replace("%", " %")


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---" for _ in header], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def source(found: dict[str, Any], name: str) -> str:
    """Where, with what and by which command the figures were made."""
    machine = found.get("flashasc", found)["machine"]
    versions = ", ".join(
        f"{package} {version}"
        for package, version in machine["versions"].items()
        if package != "numpy"
    )
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    command = " ".join(machine["command"].split()[:3])
    return f"\n`{command}`: {where}; {versions}; [all figures](../bench/results/{name}.json).\n"

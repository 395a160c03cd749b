"""The README's support table says of Ascend what the shipped cases compile."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import TARGETS

from flashasc._configs import TileConfig, ascend
from flashasc.workbench.shipped import Use, uses
from flashasc.workbench.shipped_split import SplitUse, split_uses
from tests.conftest import ROOT

Shown = Callable[[TileConfig, Use], bool]

# the uses that show a line of the table; each list must be found among the uses of every target
LINES: dict[str, list[Shown]] = {
    "float16, bfloat16, float32": [
        lambda row, use, name=name: str(row.dtype) == f"torch.{name}"  # type: ignore[misc]
        for name in ("float16", "bfloat16", "float32")
    ],
    "`precision` standard, compensated, high": [
        lambda row, use, name=name: row.precision == name  # type: ignore[misc]
        for name in ("standard", "compensated", "high")
    ],
    "`layout` BNSD, BSND; any strides": [lambda row, use: use.wide, lambda row, use: not use.wide],
    "packed sequences (`layout` TND)": [lambda row, use: use.packed],
    "`causal`, both alignments, Sq ≠ Sk": [lambda row, use: use.causal],
    "`window`, `softcap`, `alibi_slopes`": [
        lambda row, use, name=name: name in use.options  # type: ignore[misc]
        for name in ("window", "softcap", "alibi")
    ],
    "`mask`, `bias`, whole or broadcast": [
        lambda row, use, name=name, spread=spread: (  # type: ignore[misc]
            name in use.options and use.spread == spread
        )
        for name in ("mask", "bias")
        for spread in ("full", "columns")
    ],
    "`sinks`, `kv_lens`": [lambda row, use: use.sinks, lambda row, use: use.kv_lens],
    # runtime numbers, the same kernel
    "grouped heads (GQA, MQA)": [lambda row, use: True],
    "D and Dv from 1 to 256": [lambda row, use: use.D == 256, lambda row, use: use.D == 1],
    "`return_lse`, `out_dtype`": [lambda row, use: use.with_lse, lambda row, use: use.fp32_out],
}

# likewise, of the table for few queries
FEW_LINES: dict[str, list[Callable[[TileConfig, SplitUse], bool]]] = {
    "few queries, `flashasc.decode`": [
        *[
            lambda row, use, name=name: str(row.dtype) == f"torch.{name}"  # type: ignore[misc]
            for name in ("float16", "bfloat16", "float32")
        ],
        *[
            lambda row, use, name=name: row.precision == name  # type: ignore[misc]
            for name in ("standard", "compensated", "high")
        ],
        lambda row, use: row.max_head == 256 and use.D == 256,
        lambda row, use: use.packed,
        lambda row, use: use.page == row.least_page,
        lambda row, use: use.page == 0 and not use.packed,
        lambda row, use: {"softcap", "window", "alibi"} <= row.options,
    ],
}


def table() -> dict[str, str]:
    """First column of the README's support table -> what it says of Ascend."""
    text = (ROOT / "README.md").read_text().split("## What is supported")[1].split("\n## ")[0]
    rows = [re.split(r" *\| *", line.strip("| ")) for line in text.splitlines() if "|" in line]
    return {row[0]: row[1] for row in rows[2:]}


def test_the_table_lists_what_is_shown_here() -> None:
    claimed = {name for name, said in table().items() if said.startswith("compiles")}
    assert claimed == set(LINES) | set(FEW_LINES)


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("line", LINES)
def test_a_line_is_shown_by_cases_for_every_target(line: str, arch: str) -> None:
    rows = [row for row in ascend.TILES if arch in row.targets]
    for number, shown in enumerate(LINES[line]):
        assert any(shown(row, use) for row in rows for use in uses(row, 0)), f"{line}: {number}"


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("line", FEW_LINES)
def test_a_line_of_few_queries_is_shown_by_cases_for_every_target(line: str, arch: str) -> None:
    rows = [row for row in ascend.SPLIT_TILES if arch in row.targets]
    for number, shown in enumerate(FEW_LINES[line]):
        assert any(shown(row, use) for row in rows for use in split_uses(row)), f"{line}: {number}"


@pytest.mark.parametrize("arch", TARGETS)
def test_the_least_page_is_what_the_table_says(arch: str) -> None:
    """16 keys, but for 16-bit dtypes on the 950, which its tables' rows refuse."""
    for row in (row for row in ascend.SPLIT_TILES if arch in row.targets):
        a5 = arch.startswith("Ascend950") and row.dtype.itemsize == 2
        assert row.least_page == (32 if a5 else 16)
    said = table()["few queries, `flashasc.decode`"]
    assert "pages of 16 keys raise on the 950 in 16 bits" in said

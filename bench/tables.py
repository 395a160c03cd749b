"""Tables of a page, made from the figures in bench/results.

    python -m bench.tables docs/precision.md

Rewrites what stands between `<!-- table: NAME -->` and `<!-- end -->`, so that a page can hold no
other numbers than those that were measured.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .machine import RESULTS

LONG_ROWS = 1 << 20


def main() -> None:
    """Rewrite the tables of the pages that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, nargs="+")
    for page in parser.parse_args().page:
        page.write_text(filled(page.read_text()))


def filled(page: str) -> str:
    """The text of a page with every table as the results have it."""
    return re.sub(
        r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{TABLES[found[2]]()}{found[3]}",
        page,
        flags=re.DOTALL,
    )


def h200() -> str:
    """1 048 576 keys on one H200, every implementation."""
    results = _results("long_rows_h200")
    columns = {
        "bfloat16": "bfloat16, V in [0, 1): correctly rounded",
        "float16": "float16, V normal: correctly rounded",
        "float32": "float32, V normal: relative error",
    }
    cells: dict[str, dict[str, str]] = {}
    for record in results["records"]:
        if record["keys"] != LONG_ROWS or "sink" in record:
            continue
        value = (
            _error(record["relative_error"])
            if record["dtype"] == "float32"
            else _share(record["correctly_rounded"])
        )
        cells.setdefault(record["implementation"], {})[record["dtype"]] = value
    rows = [
        [_implementation(name), *(row.get(column, "–") for column in columns)]
        for name, row in cells.items()
    ]
    return markdown_table(["", *columns.values()], rows) + _source(results, "long_rows_h200")


def h200_sinks() -> str:
    """The same in 16 bits, where one key's scores exceed all others'."""
    results = _results("long_rows_h200")
    names = ("cuDNN", "flashasc standard", "flashasc compensated", "flashasc high")
    cells: dict[tuple[str, float], dict[str, str]] = {}
    for record in results["records"]:
        if "sink" in record:
            row = cells.setdefault((record["dtype"], record["sink"]), {})
            row[record["implementation"]] = _share(record["correctly_rounded"])
    rows = [
        [f"{dtype}, {sink:g} nats above the rest", *(row.get(name, "–") for name in names)]
        for (dtype, sink), row in cells.items()
    ]
    return markdown_table(["", *map(_implementation, names)], rows) + _source(
        results, "long_rows_h200"
    )


def cpu_16_bit() -> str:
    """The share of correctly rounded outputs of each level, on a CPU."""
    results = _results("cpu_precision")
    levels = ("standard", "compensated", "high")
    rows = [
        [
            f"{r['dtype']}, {r['inputs']}",
            _number(r["keys"]),
            *(_share(r[f"{level}, correctly rounded"]) for level in levels),
        ]
        for r in results["records"]
        if r["keys"] in (1024, 65536)
    ]
    header = ["", "keys", *(f"`{level}`" for level in levels)]
    return markdown_table(header, rows) + _source(results, "cpu_precision")


def cpu_float32() -> str:
    """Relative errors in float32 against the number of keys, on a CPU."""
    results = _results("cpu_long_rows")
    columns = {
        "SDPA": "PyTorch SDPA",
        "standard, linalg": "`standard`",
        "compensated, linalg": "`compensated`",
    }
    rows = [
        [
            f"{_number(r['keys'])}, {r['scores']}",
            *(_error(r[column]) for column in columns),
        ]
        for r in results["records"]
    ]
    return markdown_table(["keys, scores", *columns.values()], rows) + _source(
        results, "cpu_long_rows"
    )


TABLES: dict[str, Callable[[], str]] = {
    table.__name__: table for table in (h200, h200_sinks, cpu_16_bit, cpu_float32)
}


def _results(name: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return results


def _implementation(name: str) -> str:
    backends = {
        "FlashAttention-2": "FlashAttention-2 in PyTorch",
        "efficient": "memory-efficient SDPA",
        "math": "math SDPA",
    }
    return backends.get(name) or re.sub(r"^flashasc (\w+)$", r"flashasc `\1`", name)


def _number(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _error(error: float) -> str:
    return f"{error:.1e}".replace("e-0", "e-")


def _share(share: float) -> str:
    text = f"{share:.2%}"
    if share < 1.0 and text == "100.00%":
        text = f"{share:.3%}"
    return text.replace("%", " %")


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---" for _ in header], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _source(results: dict[str, Any], name: str) -> str:
    """Where, with what and by which command the figures were made."""
    machine = results["machine"]
    versions = ", ".join(
        f"{package} {version}"
        for package, version in machine["versions"].items()
        if package != "numpy"
    )
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"
    command = " ".join(machine["command"].split()[:3])
    return f"\n`{command}`: {where}; {versions}; [all figures](../bench/results/{name}.json).\n"


if __name__ == "__main__":
    main()

"""The table of `docs/models.md`, from the records of `bench.real_activations`.

python -m bench.real_activations_table bench/results/real_activations_cpu.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("SDPA", "standard", "compensated", "high")


def table_of(records: list[dict[str, Any]]) -> str:
    """Markdown: a row for each dtype and number of keys, the worst layer in each place."""
    lines = [
        "| dtype, keys | PyTorch SDPA | `standard` | `compensated` | `high` |",
        "|---|---|---|---|---|",
    ]
    kinds = sorted({(record["dtype"], record["keys"]) for record in records}, reverse=True)
    for dtype, keys in sorted(kinds, key=lambda kind: (kind[0] != "float32", kind[1])):
        of_kind = [r for r in records if (r["dtype"], r["keys"]) == (dtype, keys)]
        cells = [_cell(of_kind, column) for column in COLUMNS]
        lines.append(f"| {dtype}, {keys:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(records: list[dict[str, Any]], column: str) -> str:
    if column not in records[0]:
        return "–"
    error = f"{max(record[column] for record in records):.1e}".replace("e-0", "e-")
    share = f"{column}, rounded"
    if share not in records[0]:
        return error
    return f"{error}; {min(record[share] for record in records):.1%}".replace("%", " %")


if __name__ == "__main__":
    print(table_of(json.loads(Path(sys.argv[1]).read_text())["records"]))

"""Tables of errors: long rows on an H200 and on a CPU."""

from __future__ import annotations

from .markdown import error, implementation, markdown_table, number, results, share, source

LONG_ROWS = 1 << 20


def h200() -> str:
    """1 048 576 keys on one H200, every implementation."""
    found = results("long_rows_h200")
    columns = {
        "bfloat16": "bfloat16, V in [0, 1): correctly rounded",
        "float16": "float16, V normal: correctly rounded",
        "float32": "float32, V normal: relative error",
    }
    cells: dict[str, dict[str, str]] = {}
    for record in found["records"]:
        if record["keys"] != LONG_ROWS or "sink" in record:
            continue
        value = (
            error(record["relative_error"])
            if record["dtype"] == "float32"
            else share(record["correctly_rounded"])
        )
        cells.setdefault(record["implementation"], {})[record["dtype"]] = value
    rows = [
        [implementation(name), *(row.get(column, "–") for column in columns)]
        for name, row in cells.items()
    ]
    return markdown_table(["", *columns.values()], rows) + source(found, "long_rows_h200")


def h200_sinks() -> str:
    """The same in 16 bits, where one key's scores exceed all others'."""
    found = results("long_rows_h200")
    names = ("cuDNN", "flashasc standard", "flashasc compensated", "flashasc high")
    cells: dict[tuple[str, float], dict[str, str]] = {}
    for record in found["records"]:
        if "sink" in record:
            row = cells.setdefault((record["dtype"], record["sink"]), {})
            row[record["implementation"]] = share(record["correctly_rounded"])
    rows = [
        [f"{dtype}, {sink:g} nats above the rest", *(row.get(name, "–") for name in names)]
        for (dtype, sink), row in cells.items()
    ]
    return markdown_table(["", *map(implementation, names)], rows) + source(found, "long_rows_h200")


def cpu_16_bit() -> str:
    """The share of correctly rounded outputs of each level, on a CPU."""
    found = results("cpu_precision")
    levels = ("standard", "compensated", "high")
    rows = [
        [
            f"{r['dtype']}, {r['inputs']}",
            number(r["keys"]),
            *(share(r[f"{level}, correctly rounded"]) for level in levels),
        ]
        for r in found["records"]
        if r["keys"] in (1024, 65536)
    ]
    header = ["", "keys", *(f"`{level}`" for level in levels)]
    return markdown_table(header, rows) + source(found, "cpu_precision")


def cpu_float32() -> str:
    """Relative errors in float32 against the number of keys, on a CPU."""
    found = results("cpu_long_rows")
    columns = {
        "SDPA": "PyTorch SDPA",
        "standard, linalg": "`standard`",
        "compensated, linalg": "`compensated`",
    }
    rows = [
        [
            f"{number(r['keys'])}, {r['scores']}",
            *(error(r[column]) for column in columns),
        ]
        for r in found["records"]
    ]
    return markdown_table(["keys, scores", *columns.values()], rows) + source(
        found, "cpu_long_rows"
    )

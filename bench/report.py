"""A report from result files: tables in Markdown, and plots.

    python -m bench.report RESULTS.json [...] --output FOLDER

Takes what `pytest bench/ --benchmark-json=...` wrote, and the JSON of scripts such as
`bench.long_rows`, `bench.decode` and `bench.gemm_speed`. Writes FOLDER/report.md and the plots that
it shows: speed against length, error against length, speed against error.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .markdown import markdown_table
from .suite import OURS

LIBRARIES = {"CUDA": "cuda", "cuDNN": "cudnn"}
"""Versions beside those of packages."""
PEER_RATIO = "How many times as fast as each peer, in the same run:"


@dataclass(frozen=True)
class Point:
    """One implementation of one case."""

    group: str
    """Suite, device and unit, or the script: what shares a table and its plots."""
    case: str
    family: str
    """The case without its length: what shares the axes of a plot."""
    implementation: str
    length: int | None = None
    error: float | None = None
    """Relative error against float64."""
    rounded: float | None = None
    """Share of correctly rounded outputs, where they have 16 bits."""
    rate: float | None = None
    unit: str = ""
    share: float | None = None
    """Of the machine's matrix-product rate, or of the bandwidth of a copy."""
    spread: float | None = None
    """Interquartile range over the median."""


def main() -> None:
    """Read, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    print(report(arguments.results, arguments.output))


def report(files: list[Path], folder: Path) -> Path:
    """Write the report of result files; returns its path.

    Raises:
        ValueError: a file is none of those that this module reads.
    """
    from .plots import plots

    folder.mkdir(parents=True, exist_ok=True)
    text = ["# Measurements\n"]
    for file in files:
        results = json.loads(file.read_text())
        found = list(points(results, file))
        text.append(f"## {file.name}\n\n{source(results)}")
        for group in dict.fromkeys(point.group for point in found):
            members = [point for point in found if point.group == group]
            text.append(f"### {group}\n")
            text += tables(members)
            for title, image in plots(members, folder, f"{file.stem}-{group}"):
                text.append(f"![{title}]({image})\n")
        text.append(not_timed(results))
    page = folder / "report.md"
    page.write_text("\n".join(filter(None, text)))
    return page


def points(results: dict[str, Any], file: Path) -> Iterator[Point]:
    """What a result file holds, in one form."""
    if "benchmarks" in results and "flashasc" in results:
        for one in results["benchmarks"]:
            yield _of_suite(one["extra_info"])
    elif "records" in results and "machine" in results:
        for record in results["records"]:
            yield _of_script(record, results)
    else:
        raise ValueError(
            f"{file}: no results of bench/: neither of `pytest bench/ --benchmark-json=...` nor of "
            "a script's --output"
        )


def _of_suite(info: dict[str, Any]) -> Point:
    rate, unit = info.get("gb_per_s"), "GB/s"
    if "tflops" in info:
        rate, unit = info["tflops"], "TFLOP/s"
        if info["device"] == "cpu":
            rate, unit = 1e3 * rate, "GFLOP/s"
    return Point(
        group=f"{info['suite']}, {info['device']}, {unit}",
        case=info["case"],
        family=re.sub(r"-\d+k?(?=-|$)", "", info["case"]),
        implementation=info["implementation"],
        length=info.get("keys"),
        error=info["relative_error"],
        rounded=_rounded(info),
        rate=rate,
        unit=unit,
        share=info.get("of_matmul", info.get("of_copy")),
        spread=info.get("spread"),
    )


def _of_script(record: dict[str, Any], results: dict[str, Any]) -> Point:
    rate, unit = record.get("tflops"), "TFLOP/s"
    if rate is None:
        rate, unit = record.get("gb_per_s"), "GB/s"
    if rate is None and "bytes_per_s" in record:
        rate = record["bytes_per_s"] / 1e9
    words = [
        f"{name} {record[name]:g}" if isinstance(record[name], (int, float)) else record[name]
        for name in ("dtype", "batch", "values", "sink")
        if name in record
    ]
    length = record.get("keys", record.get("length"))
    family = ", ".join(words) or str(results.get("size", ""))
    if length and "case" in record:
        family = re.sub(r" \d+K\b", "", record["case"])
    return Point(
        group=results["machine"]["command"].split()[2].removeprefix("bench."),
        case=record.get("case") or ", ".join(filter(None, [family, length and f"{length} keys"])),
        family=family,
        implementation=record.get("implementation", "flashasc"),
        length=length,
        error=record.get("relative_error"),
        rounded=_rounded(record),
        rate=rate,
        unit=unit,
        share=record.get("of_copy", record.get("share_of_copy")),
    )


def source(results: dict[str, Any]) -> str:
    """Where, with what and by which command it was measured, and how fast the machine is."""
    extra = results.get("flashasc", results)
    machine = extra["machine"]
    libraries = {name: machine[key] for name, key in LIBRARIES.items() if key in machine}
    versions = ", ".join(f"{name} {v}" for name, v in {**machine["versions"], **libraries}.items())
    where = (
        machine.get("gpu")
        or machine.get("npu")
        or f"{machine['cpu']}, {machine['threads']} threads"
    )
    lines = [
        f"`{machine['command']}`",
        "",
        f"{machine['date']}, {where}, Python {machine['python']}; {versions}.",
    ]
    for name, rate in extra.get("roofs", {}).items():
        what, unit = name.rsplit(", ", 1)
        scaled = f"{rate / 1e12:.4g} T" if rate >= 1e12 else f"{rate / 1e9:.3g} G"
        lines.append(f"{what}: {scaled}{unit}.")
    return "\n".join(lines) + "\n"


def tables(members: list[Point]) -> Iterator[str]:
    """Rates with their shares of the roof and errors, a row a case; then ratios to the peers."""
    names = list(dict.fromkeys(point.implementation for point in members))
    by_case: dict[str, dict[str, Point]] = {}
    for point in members:
        by_case.setdefault(point.case, {})[point.implementation] = point
    timed = any(point.rate is not None for point in members)
    if timed:
        yield f"{members[0].unit} (share of the roof; spread where it is over 5 %):\n"
        yield _by_case(by_case, names, _speed)
    if any(point.error is not None for point in members):
        yield "Relative error against float64 (of 16 bits: share of correctly rounded outputs):\n"
        yield _by_case(by_case, names, _error)
    ours = [name for name in names if name.startswith(OURS)]
    peers = [name for name in names if name not in ours]
    if timed and ours and peers:
        rows = [
            [case, name, *(_ratio(row[name], row.get(peer)) for peer in peers)]
            for case, row in by_case.items()
            for name in ours
            if name in row and any(peer in row for peer in peers)
        ]
        yield PEER_RATIO + "\n"
        yield markdown_table(["", "", *peers], rows)


def _by_case(by_case: dict[str, dict[str, Point]], names: list[str], cell: Any) -> str:
    rows = [
        [case, *(cell(row[name]) if name in row else "–" for name in names)]
        for case, row in by_case.items()
    ]
    return markdown_table(["", *names], rows)


def _speed(point: Point) -> str:
    if point.rate is None:
        return "–"
    text = f"{point.rate:.3g}" if point.rate < 100 else f"{point.rate:.0f}"
    if point.share is not None:
        text += f" ({point.share:.0%})"
    if point.spread is not None and point.spread > 0.05:
        text += f" ±{point.spread:.0%}"
    return text


def _error(point: Point) -> str:
    if point.error is None:
        return "–"
    return f"{point.error:.1e}" + (f" ({point.rounded:.2%})" if point.rounded is not None else "")


def _rounded(info: dict[str, Any]) -> float | None:
    return info.get("correctly_rounded") if info.get("dtype") in ("float16", "bfloat16") else None


def _ratio(mine: Point, other: Point | None) -> str:
    if other is None or not mine.rate or not other.rate:
        return "–"
    return f"{mine.rate / other.rate:.2g}"


def not_timed(results: dict[str, Any]) -> str:
    """What did not run or was wrong, and why; cases that share a reason in one line."""
    reasons: dict[str, list[str]] = {}
    for test, reason in results.get("flashasc", {}).get("not_timed", {}).items():
        reasons.setdefault(reason, []).append(test)
    if not reasons:
        return ""
    lines = [
        f"- {reason}: {', '.join(f'`{t}`' for t in tests)}" for reason, tests in reasons.items()
    ]
    return "\n".join(["Not timed:\n", *lines, ""])


if __name__ == "__main__":
    main()

"""Tables of speed: attention on an H200 beside its peers, as `pytest bench` measured it."""

from __future__ import annotations

from typing import Any

from .markdown import implementation, markdown_table, number, results, source

Rows = dict[str, dict[str, dict[str, Any]]]
"""Case -> implementation -> what was measured."""

COLUMNS = (
    "flashasc_standard",
    "flashasc_compensated",
    "flashasc_high",
    "sdpa_flash",
    "sdpa_cudnn",
    "sdpa_efficient",
    "fa3",
)


def attention_speed() -> str:
    """TFLOP/s of every case that multiplies."""
    return _table("tflops", "TFLOP/s")


def decode_speed() -> str:
    """GB/s of every case that reads a cache once."""
    return _table("gb_per_s", "GB/s")


def speed_ratios() -> str:
    """What the levels cost, and how they stand beside the peers."""
    wanted = {
        "`standard` : cuDNN": ("flashasc_standard", "sdpa_cudnn"),
        "`standard` : FlashAttention-3": ("flashasc_standard", "fa3"),
        "`standard` : FlashAttention-2": ("flashasc_standard", "sdpa_flash"),
        "`compensated` : `standard`": ("flashasc_compensated", "flashasc_standard"),
        "`high` : `standard`": ("flashasc_high", "flashasc_standard"),
    }
    rows = [
        [case, *(_ratio(row.get(ours), other) for ours, other in wanted.values())]
        for case, row in _cases().items()
        if "fa3" in row or "flashasc_high" in row
    ]
    return markdown_table(["", *wanted], rows)


def growth() -> str:
    """Time over Sq x Sk, as a multiple of that of the shortest length."""
    found = results("scaling_h200")
    lines: dict[str, dict[int, float]] = {}
    for one in found["records"]:
        if "growth" in one:
            name = f"`{one['precision']}`, {'causal' if one['causal'] else 'full'}"
            lines.setdefault(name, {})[one["keys"]] = one["growth"]
    keys = sorted({n for line in lines.values() for n in line})
    rows = [[name, *(f"{line[n]:.2f}" for n in keys)] for name, line in lines.items()]
    return markdown_table(["keys", *map(number, keys)], rows) + source(found, "scaling_h200")


def first_calls() -> str:
    """Seconds of calls in a process of their own."""
    quantities = ("import", "first call", "second call", "new lengths")
    rows = [
        [
            f"`{one['precision']}`",
            one["disk cache"],
            *(f"{one[name]:.2g}" for name in quantities),
            str(one["compiled for new lengths"]),
        ]
        for one in results("scaling_h200")["records"]
        if "first call" in one
    ]
    header = ["", "disk cache", "importing Triton, s", "first call, s", "second call, s",
              "a new length, s", "files compiled for new lengths"]  # fmt: skip
    return markdown_table(header, rows)


def _table(quantity: str, unit: str) -> str:
    cases = {
        case: {name: info for name, info in row.items() if quantity in info}
        for case, row in _cases().items()
    }
    rows = [
        [case, *(_rate(row[name][quantity]) if name in row else "–" for name in COLUMNS)]
        for case, row in cases.items()
        if row
    ]
    header = [unit, *map(implementation, COLUMNS)]
    return markdown_table(header, rows) + source(results("suites_h200"), "suites_h200")


def _cases() -> Rows:
    cases: Rows = {}
    for one in results("suites_h200")["benchmarks"]:
        info = one["extra_info"]
        if info["suite"] == "attention":
            cases.setdefault(info["case"], {})[info["implementation"]] = info
    return cases


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.2g}"


def _ratio(ours: dict[str, Any] | None, other: str) -> str:
    if ours is None or other not in ours["speed_over"]:
        return "–"
    return f"{ours['speed_over'][other]:.2f}"

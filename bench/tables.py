"""Tables of a page, made from the figures in bench/results.

    python -m bench.tables docs/precision.md docs/performance.md

Rewrites what stands between `<!-- table: NAME -->` and `<!-- end -->`, so that a page can hold no
other numbers than those that were measured.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from . import accuracy_tables, speed_tables


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


TABLES: dict[str, Callable[[], str]] = {
    table.__name__: table
    for table in (
        accuracy_tables.h200,
        accuracy_tables.h200_sinks,
        accuracy_tables.cpu_16_bit,
        accuracy_tables.cpu_float32,
        speed_tables.attention_speed,
        speed_tables.decode_speed,
        speed_tables.speed_ratios,
        speed_tables.growth,
        speed_tables.first_calls,
    )
}


if __name__ == "__main__":
    main()

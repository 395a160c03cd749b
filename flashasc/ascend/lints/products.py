"""Matrix products, and what is read of their left operand afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flashasc.ascend.lints.text import Text

_PRODUCT = r"linalg\.(?:batch_)?matmul\b.* ins\((%[\w$.-]+), %"
# another name for the same tile: its first operand
_ALIAS = re.compile(
    r"%\S+ = (?:tensor\.(?:expand_shape|collapse_shape|cast|extract_slice)"
    r"|bufferization\.to_tensor|memref\.(?:cast|subview)) (%[\w$.-]+)"
)


def left_operands(text: Text) -> Iterator[tuple[int, str]]:
    """Find products whose left operand is read again afterwards.

    Reported with the device (flash-linear-attention's pull request 1113): `tl.dot` may use the
    place of its left operand in UB for something else. The same product in the next iteration of
    a loop around it is in order: attention reads its queries so.
    """
    for number, match in text.find(_PRODUCT):
        reader = next(_later_reads(text, match[1], number), None)
        if reader is None:
            continue
        yield (
            number,
            f"the left operand of this product, {match[1]}, is read again afterwards (line "
            f"{reader + 1}: {text.lines[reader][:80]}). It is reported that the product may "
            "overwrite it on the device. Do the other reading before the product, or load or "
            "compute the tile again",
        )


def _later_reads(text: Text, name: str, product: int) -> Iterator[int]:
    """Yield the lines that read a tile, by any of its names, after a product took it."""
    for alias, defined in _names_of(text, name, product):
        inside_loops = [
            header
            for header in text.around(product)
            if header > defined and re.search(r"scf\.(for|while) ", text.lines[header])
        ]
        # a loop that the tile enters from outside comes round to what stands above the product
        from_line = inside_loops[0] if inside_loops else product
        for use in text.uses(alias, defined):
            if use == product or use <= from_line or _ALIAS.match(text.lines[use]):
                continue
            if not _excluded(text, use, product):
                yield use


def _names_of(text: Text, name: str, line: int) -> list[tuple[str, int]]:
    """Return the names that stand for a tile, each with the line that defines it."""
    found: list[tuple[str, int]] = []
    pending = [(name, line)]
    while pending:
        current, seen_from = pending.pop()
        defined = text.definition(current, seen_from)
        if defined is None or (current, defined) in found:
            continue
        found.append((current, defined))
        if source := _ALIAS.match(text.lines[defined]):
            pending.append((source[1], defined))
        for use in text.uses(current, defined):
            alias = _ALIAS.match(text.lines[use])
            if alias and alias[1] == current:
                pending.append((text.lines[use].split(" ", 1)[0], use + 1))
    return found


def _excluded(text: Text, use: int, product: int) -> bool:
    """Whether a line stands in the other branch of an `if` than the product, or fills the tile."""
    branches = set(text.if_of_else) & (set(text.around(use)) ^ set(text.around(product)))
    for other in branches:
        header = text.if_of_else[other]
        if header in set(text.around(use)) ^ set(text.around(product)):
            return True
    line = text.lines[use]
    # a transfer into the buffer, or its filling, precedes reading it
    return line.startswith(("linalg.fill", "bufferization.dealloc")) or "memref.copy" in line

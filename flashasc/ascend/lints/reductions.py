"""Reductions that the Ascend compiler changes, and operations that it is not given."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flashasc.ascend.lints.text import Text


def reduce_body(text: Text) -> Iterator[tuple[int, str]]:
    """Find reductions whose body is more than the one operation that survives on A2 and A3.

    bishengir-compile 1.2.0 turns a `linalg.reduce` into its own reduction by the last operation
    of the body alone (seen in its HIVM output: max(|a|, |b|) became a plain max, a*b + a + b a
    sum, with exit status 0). Reductions that return an index have a form of their own, which it
    recognises by an attribute.
    """
    # the short form, linalg.reduce { op } ins(...), has one operation by construction
    for number, _ in text.find(r"\blinalg\.reduce ins\("):
        if "_with_index" in text.lines[number]:
            continue
        # the region opens on the next line, which names its arguments
        body = [text.lines[inner] for inner in text.block(number + 1)]
        operations = [line for line in body if not line.startswith("linalg.yield")]
        if len(operations) == 1:
            continue
        listed = "; ".join(operations) or "none"
        yield (
            number,
            f"the body of this reduction has {len(operations)} operations ({listed}). On A2 and A3 "
            "the compiler keeps only the last one and reports success, so the result is wrong. "
            "Apply the other operations to the tile before or after, and reduce with tl.sum, "
            "tl.max, tl.min or tl.xor_sum; or combine halves of the tile explicitly",
        )


def reduce_operands(ttir: Text) -> Iterator[tuple[int, str]]:
    """Find reductions, in Triton's own IR, that triton-adapter-opt changes.

    It keeps the operation of a body that has one and replaces both operands by the element and
    the accumulator: b*b becomes a*b (triton-ascend 3.2.0).
    """
    for number, match in ttir.find(r'= "tt\.reduce"\((%[\w$.-]+)\) <'):
        body = [ttir.lines[inner] for inner in ttir.block(number)]
        arguments = re.findall(r"(%[\w$.-]+): ", body[0]) if body else []
        operations = [line for line in body[1:] if not line.startswith("tt.reduce.return")]
        if len(operations) != 1:
            # what is left of several, the Linalg text shows
            continue
        _, _, operation = operations[0].partition("= ")
        used = re.findall(r"%[\w$.-]+", operation.split(" : ")[0])
        if sorted(used) == sorted(arguments):
            continue
        yield (
            number,
            f"the body of this reduction over {match[1]} is {operations[0]!r}, which does not "
            f"combine its two arguments {' and '.join(arguments)} once each; it is lowered as if "
            "it did, on every processor, so the result is wrong. Apply such an operation to the "
            "tile before or after, and reduce with tl.sum, tl.max, tl.min or tl.xor_sum",
        )


def leftover_triton(text: Text) -> Iterator[tuple[int, str]]:
    """Find operations that triton-adapter-opt left in Triton's dialect, with exit status 0."""
    # attributes such as {tt.divisibility = 16 : i32} are in order
    for number, match in text.find(r'(?:^|= )"?(tt\.[\w.]+)'):
        if match[1].endswith((".return", ".yield")):
            continue
        advice = (
            "reduce one value at a time with tl.sum, tl.max or tl.min, or fold halves of the tile"
            if match[1] in ("tt.reduce", "tt.scan")
            else "write it with operations that triton-ascend lowers"
        )
        yield (
            number,
            f"{match[1]} was not lowered: the Ascend compiler cannot read this kernel, and rejects "
            f"it or crashes on it; {advice}",
        )

"""Loops: those that may not run at all, and those that handle a tile one element at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flashasc.ascend.lints.bounds import Bounds, Linear
from flashasc.ascend.lints.text import Text

_FOR = re.compile(r"scf\.for (%\S+) = (%\S+) to (%\S+) step (%\S+)")
_NAMES = re.compile(r"%[\w$.-]+")
_PRODUCT = re.compile(r"= linalg\.(?:batch_)?matmul\b")
_SHAPE = re.compile(r"(?:tensor|memref|vector)<((?:[\d?]+x)+)")
# a handful of scalar reads costs no more than a transfer of a tile
_FEW = 8
# these name a tile's type, and touch one element of it or none
_ONE_ELEMENT = (
    "memref.reinterpret_cast",
    "memref.subview",
    "memref.cast",
    "memref.load",
    "memref.store",
    "tensor.empty",
    "tensor.extract ",
    "tensor.insert ",
    "scf.for",
    "scf.if",
    "scf.yield",
)
_ACCESS = ("memref.load", "memref.store", "tensor.extract ", "tensor.insert ")


def zero_trips(text: Text) -> Iterator[tuple[int, str]]:
    """Find loops that add up matrix products and for which the text does not prove one iteration.

    Seen in what bishengir-compile 1.2.0 makes of them for A2 and A3: the first product initialises
    the accumulator in L0C, and nothing else does. (For A5 it fills in the initial value after a
    loop that did not run. Tiles that vector operations accumulate are initialised before the loop.)

    Counted as proof: constants, min, max, sums and products by constants, division by constants,
    a guarding `if`, program ids (at least 0) and grid sizes (at least 1). Not seen: what the
    caller knows of an argument.
    """
    bounds = Bounds(text)
    for number, match in text.find(r"= scf\.(for|while) "):
        if not _adds_products(text, number):
            continue
        if match[1] == "while":
            if _enters(text, bounds, number):
                continue
        elif loop := _FOR.search(text.lines[number]):
            first, end = (bounds.value(loop[i], number) for i in (2, 3))
            if bounds.proves(end.plus(first, -1).plus(Linear(-1)), number):
                continue
        yield (
            number,
            "this loop adds up matrix products and may run zero times, for all that the kernel "
            "says. On A2 and A3 its result is then not the initial value but what the "
            "accumulator's memory (L0C) held before. Make the first iteration certain "
            "(range(0, tl.maximum(n, 1), ...), masked so that it adds nothing), guard the loop by "
            "`if n > 0:`, or pass n as a constant",
        )


def _adds_products(text: Text, header: int) -> bool:
    """Whether a loop carries a tile to which each iteration adds a matrix product."""
    block = text.block(header)
    if "scf.while " in text.lines[header]:
        # the tile goes through the second region, which opens where the first, the test, closes
        header = block.stop
        block = text.block(header)
        carried = re.findall(r"(%[\w$.-]+): ", text.lines[header + 1])
    else:
        _, _, arguments = text.lines[header].partition("iter_args(")
        carried = re.findall(r"(%[\w$.-]+) = %", arguments)
    yields = [
        number
        for number in block
        if text.lines[number].startswith("scf.yield") and text.around(number)[-1] == header
    ]
    if not yields:
        return False
    values = _NAMES.findall(text.lines[yields[-1]])
    return any(
        _adds_product_to(text, name, value, yields[-1])
        for name, value in zip(carried, values, strict=False)
    )


def _adds_product_to(text: Text, name: str, value: str, line: int) -> bool:
    # a product that arith.addf adds goes through UB, where the accumulator is initialised
    defined = text.definition(value, line)
    source = text.lines[defined] if defined is not None else ""
    return bool(_PRODUCT.search(source)) and f"outs({name} :" in source


def _enters(text: Text, bounds: Bounds, header: int) -> bool:
    """Whether the condition of a while loop holds at its first test."""
    for number in text.block(header):
        if test := re.match(r"scf\.condition\((%\S+?)\)", text.lines[number]):
            facts = bounds.facts(test[1], number)
            return bool(facts) and all(bounds.proves(fact, header) for fact in facts)
    return False


def scalar_loops(text: Text) -> Iterator[tuple[int, str]]:
    """Find loops of constant length whose body handles one element at a time.

    triton-adapter-opt writes them for addresses that are not affine in the tile's indices and for
    scans. A loop with a tile operation or a transfer of more than one element in it is no such
    loop, nor is one whose length depends on an argument: that was written on purpose.
    """
    bounds = Bounds(text)
    flagged = range(0)
    for number, _ in text.find(r"scf\.for "):
        if number in flagged:
            continue
        trips = _trips(text, bounds, number)
        block = text.block(number)
        body = [text.lines[inner] for inner in block]
        if trips is None or trips < _FEW or any(_is_tile_work(line) for line in body):
            continue
        accesses = [line for line in body if any(access in line for access in _ACCESS)]
        if not accesses:
            continue
        flagged = block
        if any("memref.reinterpret_cast" in line for line in body):
            yield (
                number,
                f"{trips:,} elements are read or written in global memory one by one, by the "
                "scalar unit, because their addresses don't follow from the tile's indices by "
                "constant strides; one transfer was meant. Write addresses as base + offs * "
                "stride (not offs % n or offs // n), gather whole rows, or load the table as a "
                "tile and use tl.gather",
            )
        else:
            yield (
                number,
                f"{trips:,} elements are handled one by one by the scalar unit: a scan becomes a "
                "loop. Sum prefixes with a product by a triangular matrix of ones (tl.dot), scan "
                "in log2(N) steps of whole-tile operations, or loop so that each step of the scan "
                "handles a tile",
            )


def library_scans(text: Text) -> Iterator[tuple[int, str]]:
    """Find tl.cumsum and tl.cumprod, which the compiler of A2 and A3 turns into scalar loops."""
    for number, match in text.find(r"\bcall @triton_(cumsum|cumprod)\w*\("):
        size = _SHAPE.search(text.lines[number])
        # along any axis but the last, each step handles a row
        if size is None or _scans_rows(text, number, size[1]):
            continue
        yield (
            number,
            f"tl.{match[1]} over {size[1].rstrip('x').replace('x', ' x ')} elements becomes a loop "
            "over single elements in the scalar unit on A2 and A3. Sum prefixes with a product by "
            "a triangular matrix of ones (tl.dot), or in log2(N) steps of whole-tile operations",
        )


def _scans_rows(text: Text, number: int, shape: str) -> bool:
    rank = shape.count("x")
    arguments = re.search(r"call @\w+\(%\S+, (%\S+),", text.lines[number])
    axis = Bounds(text).value(arguments[1], number) if arguments else Linear()
    return rank > 1 and axis.constant < rank - 1


def _trips(text: Text, bounds: Bounds, header: int) -> int | None:
    """Return how often the innermost of some nested loops runs; None when that is not constant."""
    trips = _own_trips(text, bounds, header)
    if trips is None:
        return None
    inner = [line for line in text.block(header) if _FOR.search(text.lines[line])]
    nested = [_trips(text, bounds, line) for line in inner if text.around(line)[-1] == header]
    if None in nested:
        return None
    return trips * max([1, *(count for count in nested if count)])


def _own_trips(text: Text, bounds: Bounds, header: int) -> int | None:
    loop = _FOR.search(text.lines[header])
    if loop is None:
        return None
    first, end, step = (bounds.value(loop[i], header) for i in (2, 3, 4))
    length = end.plus(first, -1)
    if length.factors or step.factors or step.constant < 1:
        return None
    return max(0, -(-length.constant // step.constant))


def _is_tile_work(line: str) -> bool:
    if any(operation in line for operation in _ONE_ELEMENT):
        return False
    return any(set(shape.split("x")) - {"1", ""} for shape in _SHAPE.findall(line))

"""Writing `linalg.generic` operations as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashasc.native.mlir import element, is_shaped, rank, split_list


class Unknown(Exception):
    """An operation, or a form of one, that has no translation; the message names it."""


@dataclass(frozen=True)
class Operands:
    """Values and their types, as in `ins(%a, %b : tensor<4xf32>, f32)`."""

    names: Sequence[str]
    types: Sequence[str]

    @classmethod
    def parse(cls, text: str) -> Operands:
        """Read "%a, %b : type, type"."""
        names, _, types = text.partition(" : ")
        return cls(split_list(names), split_list(types))


class Body:
    """Lines of a body. Its inputs are %fi0, %fi1, ..., its outputs %fo0, ..."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, code: str) -> str:
        """Add an operation and return the name of its result."""
        name = f"%fv{len(self.lines)}"
        self.lines.append(f"{name} = {code}")
        return name

    def constant(self, value: str, type_: str) -> str:
        """Add a constant; truth values are "true" and "false"."""
        return self.add(f"arith.constant {value}" + ("" if type_ == "i1" else f" : {type_}"))


WriteBody = Callable[[Body], str]


def identity(type_: str, *, of: int | None = None) -> str:
    """Return the map of an operand visited element by element; a scalar's has no results."""
    count = rank(type_) if of is None else of
    return affine_map(count, dims(count) if is_shaped(type_) else [])


def dims(count: int) -> list[str]:
    """Return the loop variables d0, d1, ..."""
    return [f"d{i}" for i in range(count)]


def affine_map(count: int, results: Sequence[str]) -> str:
    """Return the map from `count` loops to these index expressions."""
    return f"affine_map<({', '.join(dims(count))}) -> ({', '.join(results)})>"


def write_generic(
    indent: str,
    result: str | None,
    ins: Operands,
    outs: Operands,
    maps: Sequence[str],
    iterators: Sequence[str],
    body: Callable[[Body], Sequence[str]],
) -> str:
    """Write one operation.

    Args:
        indent: spaces before each line.
        result: name of its result or results; None on memrefs.
        ins, outs: operands.
        maps: affine map of each operand, inputs first.
        iterators: "parallel" or "reduction" of each loop, outermost first.
        body: adds lines to a body and returns the values to yield, one an output.
    """
    arguments = [f"%fi{i}: {element(type_)}" for i, type_ in enumerate(ins.types)]
    arguments += [f"%fo{i}: {element(type_)}" for i, type_ in enumerate(outs.types)]
    written = Body()
    values = body(written)
    sources = f"ins({', '.join(ins.names)} : {', '.join(ins.types)}) " if ins.names else ""
    types = ", ".join(outs.types)
    name = f"{result}:{len(values)} = " if result and len(values) > 1 else f"{result} = "
    ending = f" -> ({types})" if len(values) > 1 else f" -> {types}"
    return "\n".join(
        [
            f"{indent}{name if result else ''}linalg.generic {{indexing_maps = "
            f"[{', '.join(maps)}], iterator_types = "
            f"[{', '.join(f'{chr(34)}{kind}{chr(34)}' for kind in iterators)}]}} "
            f"{sources}outs({', '.join(outs.names)} : {types}) {{",
            f"{indent}^bb0({', '.join(arguments)}):",
            *(f"{indent}  {line}" for line in written.lines),
            f"{indent}  linalg.yield {', '.join(values)} : "
            f"{', '.join(element(type_) for type_ in outs.types)}",
            f"{indent}}}{ending if result else ''}",
        ]
    )


def write_elementwise(
    indent: str, result: str | None, ins: Operands, outs: Operands, body: WriteBody
) -> str:
    """Write an operation on corresponding elements: scalars and tensors in, one tensor out."""
    (out,) = outs.types
    maps = [identity(type_, of=rank(out)) for type_ in [*ins.types, out]]
    loops = ["parallel"] * rank(out)
    return write_generic(indent, result, ins, outs, maps, loops, lambda b: [body(b)])

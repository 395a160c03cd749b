"""What a block costs, counted in the IR that Triton's front end makes of it.

    PYTHONPATH=tests python tests/blocks/block_costs.py    # the catalogue's rows, as counted now

A block is a function of its own there, before anything is inlined, fused or scheduled: what is
counted is what its source says, whatever a target's compiler makes of it. Blocks that a block calls
are counted with it, and so are functions of `tl` (`tl.sum`, `tl.zeros`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import triton_text
from triton_text import Function, parse

README = Path(__file__).parent.parent.parent / "blocks" / "README.md"
ROW = re.compile(r"^\| `(\w+)\.(\w+)` \| ([^|]*(?:\\\|[^|]*)*) \| (.*) \|$", re.MULTILINE)

_ARITHMETIC = re.compile(r"arith|math|tt\.(reduce|addptr|precise|extern|clampf|mulhi|trans)")
_EXTRA = ("tt.load", "tt.store", "tt.dot")


class Cost(NamedTuple):
    """What one call of a block costs; of a loop, its body once."""

    shape: str
    """The tile that the others are counted in: the largest that the block takes or returns, or of a
    product its result."""
    operations: int
    """Elements that are computed, over those of the tile."""
    extra: tuple[int, int, int]
    """Loads, stores and products of tiles."""
    bytes: int
    """The most that is alive at once of tiles taken, computed and returned: a mask has a byte an
    element, an address eight, constants and what is broadcast none."""

    def weight(self) -> tuple[int, int, tuple[int, int, int]]:
        """What says which of two is the costlier."""
        return self.bytes, self.operations, self.extra

    def cells(self) -> str:
        """Columns of the catalogue."""
        said = [str(self.operations)] * (self.operations > 0) + [
            f"{count} {name}{'s' * (count > 1)}"
            for count, name in zip(self.extra, ("load", "store", "product"), strict=True)
            if count
        ]
        if not self.shape:
            return "numbers | 0 | 0"
        return f"{self.shape} | {', '.join(said) or '0'} | {self.bytes}"


class _Count:
    """Costs of the functions of a module."""

    def __init__(self, functions: dict[str, Function]) -> None:
        self.functions = functions

    def cost(self, function: Function) -> Cost:
        elements, loads, stores, products = self._elements(function)
        values = function.results if products else [*function.arguments.values(), *function.results]
        largest = max(values, key=lambda t: t.elements, default=triton_text.NO_TENSOR)
        operations = round(elements / largest.elements) if largest.elements else 0
        return Cost(largest.shape, operations, (loads, stores, products), self._peak(function))

    def _elements(self, function: Function) -> tuple[int, int, int, int]:
        """Elements that are computed; loads, stores and products."""
        found = [0, 0, 0, 0]
        for step in function.steps:
            if step.operation == "tt.call":
                called = self._elements(self.functions[step.callee])
                found = [mine + theirs for mine, theirs in zip(found, called, strict=True)]
            elif step.operation in _EXTRA:
                # a number is loaded too
                found[1 + _EXTRA.index(step.operation)] += step.types[0].elements > 0
            elif _ARITHMETIC.match(step.operation) and not step.is_view:
                work = step.reduced if step.operation == "tt.reduce" else step.types
                found[0] += sum(made.elements for made in work)
        return found[0], found[1], found[2], found[3]

    def _peak(self, function: Function) -> int:
        """Bytes of tiles that are alive at once, at the most, arguments included."""
        last = function.last_uses()
        alive = {name: kind.bytes for name, kind in function.arguments.items()}
        peak = sum(alive.values())
        for number, step in enumerate(function.steps):
            inside = 0
            if step.operation == "tt.call":
                called = self.functions[step.callee]
                # what it takes is alive here already
                inside = self._peak(called) - sum(t.bytes for t in called.arguments.values())
            for name, made in zip(step.results, step.types, strict=False):
                alive[name] = 0 if step.is_view else made.bytes
            made_here = sum(alive[name] for name in step.results)
            peak = max(peak, sum(alive.values()), sum(alive.values()) - made_here + inside)
            for name in [name for name in alive if last.get(name, -1) <= number]:
                del alive[name]
        return peak


def costs(modules: Iterator[str]) -> dict[str, Cost]:
    """The cost of each block in some modules, as "file.function"; of several, the costliest."""
    found: dict[str, Cost] = {}
    for text in modules:
        functions = parse(text)
        count = _Count(functions)
        for function in functions.values():
            if Path(function.file).parent == README.parent:
                name = f"{Path(function.file).stem}.{function.name}"
                cost = count.cost(function)
                if name not in found or cost.weight() > found[name].weight():
                    found[name] = cost
    return found


def module(case: tuple[Any, dict[str, str], dict[str, object]]) -> str:
    """A kernel as triton-ascend's front end leaves it, see `block_cases`."""
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource

    from flashasc.ascend import frontend

    kernel, types, constants = case
    ascend = frontend._import_backend()
    backend, options = frontend._backend(ascend, "Ascend910B3", {})
    attrs = ascend.AscendAttrsDescriptor.from_hints({})
    source = ASTSource(fn=kernel, signature=types, constants=constants, attrs=attrs)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation()
    text = str(source.make_ir(options, functions, backend.get_module_map(), context))
    # a process that forks while MLIR's thread pool lives may hang in the child
    context.disable_multithreading()
    return text


def catalogue() -> dict[str, Cost]:
    """The cost of every block that is inside a case of `block_cases`."""
    from block_cases import BLOCK_CASES, product_case

    return costs(module(case) for case in [*BLOCK_CASES.values(), product_case("ieee")])


def main() -> None:
    """Print the catalogue's rows."""
    found = catalogue()
    for file, name, what, rest in ROW.findall(README.read_text()):
        oracle = rest.rpartition("| ")[2]
        cost = found.get(f"{file}.{name}")
        print(f"| `{file}.{name}` | {what} | {cost.cells() if cost else '? | ? | ?'} | {oracle} |")


if __name__ == "__main__":
    main()

"""Reads the text of a Triton module, before any pass: functions, their steps, sizes of tiles."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod

_TENSOR = re.compile(r"tensor<((?:\d+x)+)(.+)>")
_TYPE = re.compile(r"tensor<(?:[^<>]|<[^<>]*>)*>|!tt\.ptr<[^<>]*>|\w+")
_NAME = re.compile(r"%[\w]+(?:#\d+)?")
# constants, and one number, or row, read many times: no tile of their own
_VIEWS = {
    "arith.constant", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.bitcast",
    "arith.bitcast", "tt.make_range", "ub.poison",
}  # fmt: skip


@dataclass(frozen=True)
class Type:
    """Size of a value; 0 where it is no tensor."""

    elements: int
    bytes: int
    shape: str


NO_TENSOR = Type(0, 0, "")


@dataclass
class Step:
    """A line of a function."""

    operation: str
    results: list[str]
    operands: list[str]
    types: list[Type]
    """Of the results; of what a store writes to."""
    reduced: list[Type] = field(default_factory=list)
    """What a reduction goes over."""
    callee: str = ""

    @property
    def is_view(self) -> bool:
        """Whether what it makes needs no memory."""
        return self.operation in _VIEWS


@dataclass
class Function:
    """A function of a module."""

    name: str
    file: str
    arguments: dict[str, Type]
    results: list[Type]
    steps: list[Step] = field(default_factory=list)
    loops: list[tuple[int, int]] = field(default_factory=list)
    """First and last step of each."""

    def last_uses(self) -> dict[str, int]:
        """The last step that needs a value, or a view of it."""
        last: dict[str, int] = {}
        made = dict.fromkeys(self.arguments, -1)
        source: dict[str, str] = {}
        for number, step in enumerate(self.steps):
            made |= dict.fromkeys(step.results, number)
            for operand in step.operands:
                for name in dict.fromkeys((operand, source.get(operand, operand))):
                    last[name] = number
                    for first, end in self.loops:
                        # the loop's next turn needs it too
                        if made.get(name, first) < first <= number <= end:
                            last[name] = max(last[name], end)
            if step.is_view and step.operands:
                origin = source.get(step.operands[0], step.operands[0])
                source |= dict.fromkeys(step.results, origin)
        return last


def parse(text: str) -> dict[str, Function]:
    """Functions of a module, by their names in it."""
    places = dict(re.findall(r'^#(loc\d*) = loc\("([^"]+)"', text, re.MULTILINE))
    functions: dict[str, Function] = {}
    head = re.compile(
        r'^  tt\.func \w+ @("[^"]+"|[^\s(]+)\(([^()]*)\)(?: -> (.*?))? attributes [^\n]*\{\n'
        r"(.*?)^  \} loc\(#(loc\d*)\)",
        re.DOTALL | re.MULTILINE,
    )
    plain = re.sub(r' loc\("[^"]*":\d+:\d+\)| loc\(unknown\)', "", text)
    # one function at a time: the pattern's lines are a function's own
    for block in re.split(r"^(?=  tt\.func )", plain, flags=re.MULTILINE)[1:]:
        found = head.match(block)
        assert found, block[:300]
        name, arguments, results, body, place = found.groups()
        given = re.findall(r"(%\w+): ((?:tensor<(?:[^<>]|<[^<>]*>)*>)|[^,]+)", arguments)
        functions[name] = Function(
            name.strip('"').partition("__")[0],
            places[place],
            {value: _type(kind) for value, kind in given},
            [_type(kind) for kind in _TYPE.findall(results or "")],
        )
        _read(functions[name], re.sub(r" loc\(#loc\d*\)", "", body).splitlines())
    return functions


def _read(function: Function, lines: list[str]) -> None:
    opened: list[tuple[str, int]] = []
    for number, line in enumerate(lines):
        words = line.strip()
        if words.startswith("^bb1:  // no predecessors"):
            # what Triton puts behind a return
            break
        if words.startswith("}"):
            kind, first = opened.pop()
            if kind == "scf.for":
                function.loops.append((first, len(function.steps) - 1))
            if words.endswith("{"):
                opened.append((kind, first))
            continue
        found = re.match(r'(?:(%\w+)(?::(\d+))? = )?"?([a-z]+\.[\w.]+)"?(.*)', words)
        if found is None:
            continue
        value, many, operation, rest = found.groups()
        closing = rest
        if operation == "tt.reduce":
            # its types follow its region
            closing = next(x for x in lines[number:] if x.strip().startswith("})"))
        if value is None:
            results = []
        else:
            results = [value] if many is None else [f"{value}#{n}" for n in range(int(many))]
        function.steps.append(_step(operation, results, rest, closing))
        if words.endswith("{"):
            opened.append((operation, len(function.steps) - 1))


def _step(operation: str, results: list[str], rest: str, closing: str) -> Step:
    signature = closing.rpartition(" : ")[2]
    if operation.startswith("scf."):
        signature = closing
    before, arrow, made = signature.rpartition(" -> ")
    if operation == "scf.for":
        made = made.rpartition(" : ")[0]
    if not arrow:
        made = signature.rpartition(" to ")[2]
    kinds = [_type(kind) for kind in _TYPE.findall(made)]
    kinds = kinds[: len(results)] if arrow else kinds[-1:]
    if operation == "tt.load":
        kinds = [_type(re.sub(r"!tt\.ptr<(\w+)>", r"\1", made))]
    if operation.startswith("arith.cmp"):
        kinds = [Type(kind.elements, kind.elements, kind.shape) for kind in kinds]
    return Step(
        operation,
        results,
        _NAME.findall(rest),
        kinds or [NO_TENSOR],
        [_type(kind) for kind in _TYPE.findall(before)],
        (re.findall(r'@("[^"]+"|[^\s(]+)\(', rest) or [""])[0] if operation == "tt.call" else "",
    )


def _type(text: str) -> Type:
    found = _TENSOR.fullmatch(text.strip())
    if found is None:
        return NO_TENSOR
    sizes = [int(size) for size in found[1].rstrip("x").split("x")]
    kind = found[2]
    # a mask's element is a byte, an address eight
    bits = 64 if "ptr" in kind else 8 if kind == "i1" else int(re.sub(r"\D", "", kind))
    return Type(prod(sizes), prod(sizes) * bits // 8, " x ".join(map(str, sizes)))

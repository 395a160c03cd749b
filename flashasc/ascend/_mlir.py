"""The little of MLIR's text that counting needs: types, sizes, operands, which buffer is meant."""

from __future__ import annotations

import math
import re

_BITS = {"index": 64, "bf16": 16, "f8E4M3FN": 8, "f8E5M2": 8}
_SPACES = {"ub": "UB", "cbuf": "L1", "cc": "L0C", "gm": "GM"}

_TYPE = re.compile(r"(?:memref|vector|tensor)<((?:(?:\d+|\?|\[\d+\])x)*)([a-zA-Z]\w*)")
_SPACE = re.compile(r"address_space<(\w+)>")
_CONSTANT = re.compile(r"(%[\w-]+) = arith\.constant (-?\d+) : (?:i\d+|index)")
_BUFFER = re.compile(r"(%\w+) = hivm\.hir\.pointer_cast\(([^)]*)\).* : (memref<.*>)$")
_ALIAS = re.compile(r"(%\w+) = (?:memref|memref_ext|hivm\.hir|builtin)\.\w+ (%\w+).* (memref<.*>)$")
_LOOP = re.compile(r"iter_args\(([^)]*)\)")
_WORKSPACE = re.compile(r"(%\w+): memref<[^{]*\{hacc\.arg_type = #hacc\.arg_type<workspace>")


def size_of(kind: str) -> float | None:
    """Return the bytes of a memref, vector or tensor type; None if a dimension is unknown."""
    match = _TYPE.match(kind)
    if match is None or "?" in match[1]:
        return None
    name = match[2]
    bits = _BITS.get(name) or (int(name.lstrip("fiu")) if name.lstrip("fiu").isdigit() else None)
    return None if bits is None else math.prod(dimensions(kind)) * bits / 8


def dimensions(kind: str) -> list[int]:
    """Return the shape of a type whose dimensions are all known."""
    match = _TYPE.match(kind)
    return [int(d.strip("[]")) for d in match[1].split("x") if d] if match else []


def element(kind: str) -> str:
    """Return the element type: "f16", "bf16", ..."""
    match = _TYPE.match(kind)
    return match[2] if match else kind


def space(kind: str) -> str:
    """Return the memory a memref is in: "UB", "L1", "L0C" or "GM"."""
    match = _SPACE.search(kind)
    return _SPACES.get(match[1], match[1]) if match else "GM"


def vector_types(line: str) -> list[str]:
    """Return the vector types that a line mentions."""
    return re.findall(r"vector<[^>]+>", line)


def operands(line: str) -> list[tuple[str, str]]:
    """Return (name, type) of an operation's `ins` and `outs`, in order."""
    return [*_group(line, "ins"), *_group(line, "outs")]


class Values:
    """What the names in one function stand for, as far as its text has been read."""

    def __init__(self, header: str) -> None:
        self.constants: dict[str, int] = {}
        self.doubled: list[str] = []
        self._workspace = set(_WORKSPACE.findall(header))
        self._types: dict[str, str] = {}
        self._source: dict[str, str] = {}
        self._copies: dict[str, int] = {}

    def define(self, line: str) -> None:
        """Take note of what a line defines."""
        if constant := _CONSTANT.match(line):
            self.constants[constant[1]] = int(constant[2])
        elif buffer := _BUFFER.match(line):
            name, addresses, kind = buffer.groups()
            self._types[name] = kind
            self._source.pop(name, None)
            label, copies = _label(kind), addresses.count(",") + 1
            self._copies[label] = max(copies, self._copies.get(label, 0))
            if copies > 1 and label not in self.doubled:
                self.doubled.append(label)
        elif alias := _ALIAS.match(line):
            name, source, kind = alias.groups()
            self._source[name] = source
            self._types[name] = kind.rpartition(" to ")[2].rpartition(" into ")[2]
        elif carried := _LOOP.search(line):
            for pair in carried[1].split(", "):
                name, _, source = pair.partition(" = ")
                self._source[name] = source

    def size(self, name: str, kind: str) -> float | None:
        """Return the bytes of a value: its own, or those of the nearest thing it is a view of."""
        return size_of(self.static(name, kind))

    def static(self, name: str, kind: str) -> str:
        """Return a value's type, or the nearest one of known shape that it is a view of."""
        for _ in range(50):
            if size_of(kind) is not None or name not in self._source:
                break
            name = self._source[name]
            kind = self._types.get(name, kind)
        return kind

    def place(self, name: str, kind: str) -> str:
        """Return the memory of a value; "GM:workspace" for what the compiler put there."""
        if space(kind) != "GM":
            return space(kind)
        return "GM:workspace" if self._root(name) in self._workspace else "GM"

    def buffer(self, name: str) -> str | None:
        """Return the on-chip buffer that a value is in, "64x256xf32@UB"; None if in none."""
        kind = self._types.get(self._root(name))
        return _label(kind) if kind and space(kind) != "GM" else None

    def is_doubled(self, label: str) -> bool:
        """Whether a buffer is kept twice."""
        return label in self.doubled

    def _root(self, name: str) -> str:
        for _ in range(50):
            if name not in self._source:
                break
            name = self._source[name]
        return name


def product(line: str, values: Values) -> tuple[int, int, int, str]:
    """Return (m, n, k, dtype) of a matrix product, padded as the cube computes it.

    Raises:
        ValueError: its tiles are not laid out as expected.
    """
    ins, outs = _group(line, "ins"), _group(line, "outs")
    try:
        left, result = values.static(*ins[0]), values.static(*outs[0])
        m, n = _tile(dimensions(result))
        k, rest = divmod(math.prod(dimensions(left)), m)
    except (IndexError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"a product of unknown shape: {line}") from error
    if rest or not k:
        raise ValueError(f"a product of unknown shape: {line}")
    return m, n, k, element(left)


def transfer(line: str, values: Values) -> tuple[str, int, list[str]]:
    """Return (route, bytes, on-chip buffers) of a transfer.

    Raises:
        ValueError: neither end has a known size.
    """
    ins, outs = _group(line, "ins"), _group(line, "outs")
    sizes = [s for s in (values.size(*v) for v in [*ins[:1], *outs[:1]]) if s]
    if not ins or not outs or not sizes:
        raise ValueError(f"a transfer of unknown size: {line}")
    route = f"{values.place(*ins[0])}->{values.place(*outs[0])}"
    buffers = [b for b in (values.buffer(v[0]) for v in (ins[0], outs[0])) if b]
    return route, math.ceil(min(sizes)), buffers


def _tile(shape: list[int]) -> tuple[int, int]:
    """Return rows and columns of a tile: plain, or in the cube's blocks [n1, m1, m0, n0]."""
    if len(shape) == 2:
        return shape[0], shape[1]
    n1, m1, m0, n0 = shape
    return m1 * m0, n1 * n0


def _label(kind: str) -> str:
    match = _TYPE.match(kind)
    return f"{match[1]}{match[2]}@{space(kind)}" if match else kind


def _group(line: str, key: str) -> list[tuple[str, str]]:
    """Read `key(%a, %b : type, type)` out of a line."""
    start = line.find(f" {key}(")
    if start < 0:
        return []
    inside = _balanced(line[start + len(key) + 2 :])
    names, _, types = inside.partition(" : ")
    return list(zip((n.strip() for n in names.split(",")), _split(types), strict=False))


def _balanced(text: str) -> str:
    depth = 1
    for end, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if not depth:
            return text[:end]
    return text


def _split(types: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(types):
        depth += {"<": 1, "[": 1, "(": 1, ">": -1, "]": -1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(types[start:at].strip())
            start = at + 1
    return [*parts, types[start:].strip()]

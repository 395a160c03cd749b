"""Reading MLIR text: just enough of its syntax for the rewrites of this package."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPEN, _CLOSE = "([{<", ")]}>"


def split_list(text: str) -> list[str]:
    """Split at the commas outside every bracket; "" gives an empty list."""
    parts: list[str] = []
    depth = start = 0
    for i, char in enumerate(text):
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE and text[i - 1 : i + 1] != "->":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def closing(text: str, start: int) -> int:
    """Return the index of the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] in _OPEN:
            depth += 1
        elif text[i] in _CLOSE and text[i - 1 : i + 1] != "->":
            depth -= 1
            if depth == 0:
                return i
    raise ValueError(f"unbalanced brackets from {text[start : start + 40]!r}")


@dataclass(frozen=True)
class Function:
    """A `func.func` with a body.

    Attributes:
        name: its symbol, without "@".
        args: (SSA name, type) of each argument.
        start, body: where its header starts, and where its body's "{" is, in the text.
    """

    name: str
    args: tuple[tuple[str, str], ...]
    start: int
    body: int


def kernel_function(text: str) -> Function:
    """Find the one function with a body in lowered text.

    Raises:
        ValueError: there is none, or more than one.
    """
    found: list[Function] = []
    for header in re.finditer(r"func\.func\s+(?!private\b)(?:public\s+)?@(\w+)\(", text):
        close = closing(text, header.end() - 1)
        args = []
        for argument in split_list(text[header.end() : close]):
            name, _, rest = argument.partition(":")
            args.append((name.strip(), type_at(rest.strip())))
        body = text.index("{", close)
        if text[close:body].split() == ["attributes"] or "attributes" in text[close:body]:
            body = text.index("{", closing(text, body) + 1)
        found.append(Function(header[1], tuple(args), header.start(), body))
    if len(found) != 1:
        raise ValueError(f"expected one function with a body, found {len(found)}")
    return found[0]


def type_at(text: str) -> str:
    """Return the type that `text` starts with."""
    head = re.match(r"[\w!.]+", text)
    if head is None:
        raise ValueError(f"no type at {text[:40]!r}")
    end = head.end()
    return text[: closing(text, end) + 1] if text[end : end + 1] == "<" else text[:end]


def element(type_: str) -> str:
    """Return the element type of a tensor, memref or vector type; a scalar type itself."""
    shaped = re.match(r"(?:tensor|memref|vector)<((?:[\d?]+x)*)([^,>]+)", type_)
    return shaped[2] if shaped else type_


def rank(type_: str) -> int:
    """Return how many dimensions a tensor or memref type has; 0 for a scalar type."""
    shaped = re.match(r"(?:tensor|memref|vector)<((?:[\d?]+x)*)", type_)
    return shaped[1].count("x") if shaped else 0


def is_shaped(type_: str) -> bool:
    """Whether a type is a tensor or memref, of any rank."""
    return type_.startswith(("tensor<", "memref<"))


def is_float(type_: str) -> bool:
    """Whether a scalar type is a floating-point one."""
    return type_ == "bf16" or re.fullmatch(r"f\d+", type_) is not None


def width(type_: str) -> int:
    """Return the number of bits of a scalar type."""
    digits = re.search(r"\d+$", type_)
    if digits is None:
        raise ValueError(f"{type_} has no width")
    return int(digits[0])

"""Lower bounds of integers in MLIR text, as far as the text proves them.

Values are sums of unknowns with constant factors; an unknown is a function argument, a loop
counter, or the result of an operation that is not linear, whose range follows from its operands'.
Integers are taken not to overflow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from flashasc.ascend.lints.text import Text

_ARITH = re.compile(r"%\S+ = arith\.(\w+) (.*)")
_NAMES = re.compile(r"%[\w$.-]+")
# so many operations of max, min and select are looked through
_DEEPEST = 4

# (name, line that defines it)
Unknown = tuple[str, int]


@dataclass(frozen=True)
class Linear:
    """constant + the sum of factor * unknown."""

    constant: int = 0
    factors: Mapping[Unknown, int] = field(default_factory=dict)

    def plus(self, other: Linear, times: int = 1) -> Linear:
        """Return self + times * other."""
        factors = dict(self.factors)
        for unknown, factor in other.factors.items():
            factors[unknown] = factors.get(unknown, 0) + times * factor
        return Linear(
            self.constant + times * other.constant, {k: v for k, v in factors.items() if v}
        )


class Bounds:
    """What a module's text says about its integers."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._at_least = _launch_arguments(text)

    def value(self, name: str, line: int) -> Linear:
        """Return what `name` means on a line; in a while's condition, at its first test."""
        defined = self._text.definition(name, line)
        if defined is None:
            return Linear(0, {(name, -1): 1})
        itself = Linear(0, {(name, defined): 1})
        source = self._text.lines[defined]
        if "scf.while " in source:
            first = re.search(rf"{re.escape(name)} = (%\S+?)[,)]", source)
            return self.value(first[1], defined) if first else itself
        match = _ARITH.match(source)
        if match is None:
            return itself
        operation, rest = match.groups()
        if operation == "constant":
            number = _constant(rest)
            return itself if number is None else Linear(number)
        operands = [self.value(operand, defined) for operand in _NAMES.findall(rest)]
        if operation in ("extsi", "index_cast"):
            return operands[0]
        if operation in ("addi", "subi"):
            return operands[0].plus(operands[1], 1 if operation == "addi" else -1)
        if operation == "muli":
            for one, other in (operands, operands[::-1]):
                if not one.factors:
                    return Linear().plus(other, one.constant)
        return itself

    def lowest(self, value: Linear, depth: int = 0) -> float:
        """Return a number that the value is never below; -inf when the text gives none."""
        bound: float = value.constant
        for unknown, factor in value.factors.items():
            low, high = self._range(unknown, depth)
            bound += factor * (low if factor > 0 else high)
        if depth >= _DEEPEST:
            return bound
        for unknown, factor in value.factors.items():
            # max(a, n) - a is at least 0: replace the unknown by each of its operands in turn
            if branches := self._branches(unknown):
                kind, operands = branches
                rest = value.plus(Linear(0, {unknown: 1}), -factor)
                bounds = [self.lowest(rest.plus(it, factor), depth + 1) for it in operands]
                best = (kind == "maxsi") == (factor > 0) and kind != "select"
                bound = max(bound, max(bounds) if best else min(bounds))
        return bound

    def facts(self, condition: str, line: int, holds: bool = True) -> list[Linear]:
        """Return values that are at least 0 when an i1 has the given value."""
        defined = self._text.definition(condition, line)
        match = _ARITH.match(self._text.lines[defined]) if defined is not None else None
        if match is None or defined is None:
            return []
        operation, rest = match.groups()
        names = _NAMES.findall(rest)
        if operation == "andi" and holds:
            return [fact for name in names for fact in self.facts(name, defined)]
        if operation != "cmpi":
            return []
        predicate = rest.split(",")[0]
        a, b = (self.value(name, defined) for name in names)
        if not holds:
            opposite = {"sgt": "sle", "sle": "sgt", "slt": "sge", "sge": "slt", "ne": "eq"}
            predicate = opposite.get(predicate, "")
        difference = a.plus(b, -1)
        negative = b.plus(a, -1)
        return {
            "sgt": [difference.plus(Linear(-1))],
            "sge": [difference],
            "slt": [negative.plus(Linear(-1))],
            "sle": [negative],
            "eq": [difference, negative],
        }.get(predicate, [])

    def proves(self, value: Linear, line: int) -> bool:
        """Whether a value is at least 0 on a line, given the branches that it is in."""
        known = [Linear()]
        for header in self._text.around(line):
            holds = header not in self._text.if_of_else
            source = self._text.lines[self._text.if_of_else.get(header, header)]
            if condition := re.search(r"scf\.if (%[\w$.-]+)", source):
                known += self.facts(condition[1], header, holds)
        return any(self.lowest(value.plus(fact, -1)) >= 0 for fact in known)

    def _range(self, unknown: Unknown, depth: int) -> tuple[float, float]:
        name, defined = unknown
        if defined < 0 or depth > _DEEPEST:
            return -math.inf, math.inf
        source = self._text.lines[defined]
        if "func.func @" in source:
            return self._at_least.get(name, -math.inf), math.inf
        if loop := re.search(r"scf\.for (%\S+) = (%\S+) to (%\S+) step", source):
            if loop[1] != name:
                return -math.inf, math.inf
            first, end = (self.value(loop[i], defined) for i in (2, 3))
            return self.lowest(first, depth + 1), self._highest(end, depth + 1) - 1
        match = _ARITH.match(source)
        if match is None:
            return -math.inf, math.inf
        operands = [self.value(operand, defined) for operand in _NAMES.findall(match[2])]
        ranges = [
            (self.lowest(operand, depth + 1), self._highest(operand, depth + 1))
            for operand in operands
        ]
        return _of_operation(match[1], ranges)

    def _highest(self, value: Linear, depth: int) -> float:
        return -self.lowest(Linear().plus(value, -1), depth)

    def _branches(self, unknown: Unknown) -> tuple[str, list[Linear]] | None:
        _, defined = unknown
        match = _ARITH.match(self._text.lines[defined]) if defined >= 0 else None
        if match is None or match[1] not in ("maxsi", "minsi", "select"):
            return None
        names = _NAMES.findall(match[2])[-2:]
        return match[1], [self.value(operand, defined) for operand in names]


def _constant(text: str) -> int | None:
    """Read an integer attribute ("64 : i32", "true"); None for anything else."""
    if match := re.match(r"(-?\d+) : (?:i\d+|index)$", text):
        return int(match[1])
    return {"true": 1, "false": 0}.get(text)


def _of_operation(operation: str, ranges: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the range of an operation's result, given its operands'."""
    (low, high), (other_low, other_high) = ranges[-2:] if len(ranges) > 1 else (*ranges, (0.0, 0.0))
    if operation == "maxsi":
        return max(low, other_low), max(high, other_high)
    if operation == "minsi":
        return min(low, other_low), min(high, other_high)
    if operation == "select":
        return min(low, other_low), max(high, other_high)
    if operation == "muli" and low >= 0 and other_low >= 0:
        return low * other_low, math.inf
    if operation in ("divsi", "ceildivsi", "floordivsi") and other_low > 0 and low >= 0:
        # a divisor without an upper bound leaves 0, or 1 when rounding up
        least = 0.0 if math.isinf(other_high) else low / other_high
        most = high / other_low
        if operation == "ceildivsi":
            return (max(math.ceil(least), 1 if low > 0 else 0), most + 1)
        return math.floor(least), most
    if operation == "remsi" and low >= 0 and other_low > 0:
        return 0.0, min(high, other_high - 1)
    return -math.inf, math.inf


def _launch_arguments(text: Text) -> dict[str, int]:
    """Return the least values of the kernel's last six arguments: grid sizes and program ids."""
    for _, match in text.find(r"func\.func @\w+\((.*)"):
        names = re.findall(r"(%arg\d+): ", match[1])[-6:]
        if len(names) == 6:
            return dict(zip(names, (1, 1, 1, 0, 0, 0), strict=True))
    return {}

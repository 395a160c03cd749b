"""What is changed: operators of cosmic-ray, and three of our own in its form.

Of cosmic-ray's replacements (any operator by any other) those are taken that a slip of the pen
makes; most of the others raise before they compute anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cache
from typing import Any

from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator
from parso.tree import BaseNode, Leaf, NodeOrLeaf

Span = tuple[tuple[int, int], tuple[int, int]]

_BINARY = (
    "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mod", "Mod_FloorDiv", "Pow_Mul",
    "LShift_RShift", "RShift_LShift", "BitAnd_BitOr",
)  # fmt: skip
# the boundary, and the opposite
_COMPARISONS = (
    "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt", "Eq_NotEq",
    "NotEq_Eq",
)  # fmt: skip
_OTHERS = (
    "ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not", "AddNot",
    "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "NumberReplacer", "ZeroIterationForLoop",
)  # fmt: skip

_SWAPPED = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min"}
# their arguments may come in any order, or are a condition and its message
_COMMUTE = frozenset({*_SWAPPED, "static_assert"})


class DropTerm(Operator):
    """Leaves one operand of +, -, *, &, `and` or `or` out."""

    _KINDS = ("arith_expr", "term", "and_expr", "and_test", "or_test")
    _NEEDED = ("/", "//", "%")

    def mutation_positions(self, node: NodeOrLeaf) -> list[Span]:
        # lists, all of them: the node is changed before the last position is asked for
        if node.type not in self._KINDS:
            return []
        operands = [node.children[number] for number in self._droppable(node)]
        return [(operand.start_pos, operand.end_pos) for operand in operands]

    def mutate(self, node: BaseNode, index: int) -> BaseNode:
        number = self._droppable(node)[index]
        # the operator before it goes too; of the first operand the one behind, unless it is a sign
        first = number == 0
        end = number + 1 if first and node.children[1].get_code().strip() == "-" else number + 2
        del node.children[number - (not first) : end - (not first)]
        return node

    def _droppable(self, node: NodeOrLeaf) -> list[int]:
        operands = range(0, len(node.children), 2)
        operators = [child.get_code().strip() for child in node.children[1::2]]
        # a quotient without its dividend is no expression
        return [n for n in operands if n or operators[0] not in self._NEEDED]

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            Example("x = a - b", "x = - b"),
            Example("x = a - b", "x = a", occurrence=1),
            Example("x = a * b / c", "x = b / c"),
            Example("x = a & b", "x = a", occurrence=1),
        )


class SwapMinMax(Operator):
    """Takes the smaller where the larger is meant, and the other way round."""

    def mutation_positions(self, node: NodeOrLeaf) -> list[Span]:
        swapped = node.type == "name" and node.value in _SWAPPED and _is_called(node)
        return [(node.start_pos, node.end_pos)] if swapped else []

    def mutate(self, node: Leaf, index: int) -> Leaf:
        node.value = _SWAPPED[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("tl.max(x)", "tl.min(x)"), Example("tl.minimum(a, b)", "tl.maximum(a, b)"))


class ExchangeArguments(Operator):
    """Two neighbours among the positional arguments of a call in each other's place."""

    def mutation_positions(self, node: NodeOrLeaf) -> list[Span]:
        children = getattr(node, "children", ())
        return [(children[a].start_pos, children[b].end_pos) for a, b in self._neighbours(node)]

    def mutate(self, node: BaseNode, index: int) -> BaseNode:
        left, right = self._neighbours(node)[index]
        children = node.children
        before, behind = children[left], children[right]
        spaces = [_first(child).prefix for child in (before, behind)]
        children[left], children[right] = behind, before
        _first(behind).prefix, _first(before).prefix = spaces
        return node

    def _neighbours(self, node: NodeOrLeaf) -> list[tuple[int, int]]:
        if node.type != "arglist" or _called_name(node) in _COMMUTE:
            return []
        places = [n for n, child in enumerate(node.children) if _positional(child)]
        code = [child.get_code().strip() for child in node.children]
        return [(a, b) for a, b in itertools.pairwise(places) if code[a] != code[b]]

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            Example("f(a, b, c)", "f(b, a, c)"),
            Example("f(a, b, c)", "f(a, c, b)", occurrence=1),
            Example("f(a, b, key=c)", "f(b, a, key=c)"),
        )


def _is_called(name: Leaf) -> bool:
    after = name.get_next_leaf()
    return after is not None and after.value == "("


def _called_name(arglist: BaseNode) -> str:
    bracket = arglist.get_first_leaf().get_previous_leaf()
    return str(bracket.get_previous_leaf().value)


def _positional(argument: NodeOrLeaf) -> bool:
    return argument.type not in ("operator", "argument")


def _first(node: NodeOrLeaf) -> Leaf:
    return node.get_first_leaf()


OURS: Mapping[str, type[Operator]] = {
    kind.__name__: kind for kind in (DropTerm, SwapMinMax, ExchangeArguments)
}


@cache
def operators() -> dict[str, Any]:
    """Every operator in use, by name."""
    names = [f"ReplaceBinaryOperator_{name}" for name in _BINARY]
    names += [f"ReplaceComparisonOperator_{name}" for name in _COMPARISONS]
    found = {name: get_operator(f"core/{name}")() for name in (*names, *_OTHERS)}
    return found | {name: kind() for name, kind in OURS.items()}

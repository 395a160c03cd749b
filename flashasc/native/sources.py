"""What a kernel's lowering depends on: its source, the functions it calls, the globals they read.

Triton's own `cache_key` covers the sources, but not the values of globals, and misses those of
callees.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_MISSING = object()


@dataclass(frozen=True)
class Dependencies:
    """What a kernel was found to depend on.

    Attributes:
        digest: hash of all of it, the same in every process.
        watched: (namespace, name, value as found), to see whether any of it was changed since.
    """

    digest: str
    watched: tuple[tuple[Mapping[str, Any], str, object], ...]

    def changed(self) -> bool:
        """Whether a name now stands for another object than when this was made."""
        for namespace, name, value in self.watched:
            if namespace.get(name, _MISSING) is not value:
                return True
        return False


def find_dependencies(kernel: Any) -> Dependencies:
    """Read a `@triton.jit` function and everything it calls.

    Raises:
        TypeError: a value that the kernel reads cannot be told apart from others by its text.
    """
    walk = _Walk()
    walk.function(kernel)
    return Dependencies(walk.digest.hexdigest(), tuple(walk.watched))


def describe(value: object) -> str:
    """Return text that equal values share and different ones don't.

    Takes what a constexpr may be: None, truth values, numbers, text, tuples of these, Triton types
    and `@triton.jit` functions.

    Raises:
        TypeError: any other value.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, float):
        return f"float:{value.hex()}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}:[{', '.join(describe(item) for item in value)}]"
    kind = type(value)
    if kind.__module__.startswith("triton."):
        if kind.__name__ == "constexpr":
            return f"constexpr:{describe(value.value)}"  # type: ignore[attr-defined]
        if kind.__name__ == "dtype":
            return f"dtype:{value}"
        if kind.__name__ == "JITFunction":
            return f"function:{find_dependencies(value).digest}"
    raise TypeError(f"a value of type {kind.__module__}.{kind.__qualname__}: {value!r}")


class _Walk:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.watched: list[tuple[Mapping[str, Any], str, object]] = []
        self._seen: set[int] = set()

    def function(self, function: Any) -> None:
        """Take in one JIT function, once."""
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        source: str = function.src
        self.watched.append((vars(function), "src", source))
        options = f"{getattr(function, 'noinline', None)}"
        self._add("function", f"{function.__module__}.{function.__name__}", f"{options}\n{source}")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Name):
                self._read(function.__globals__, node.id)
            elif isinstance(node, ast.Attribute):
                holder = self._resolve(node.value, function.__globals__)
                if isinstance(holder, (ModuleType, type)) and not _is_tritons(holder):
                    self._read(vars(holder), node.attr)

    def _resolve(self, node: ast.expr, namespace: Mapping[str, Any]) -> object:
        """Return what a dotted name stands for, _MISSING when it is a local or not plain."""
        if isinstance(node, ast.Name):
            return namespace.get(node.id, _MISSING)
        if isinstance(node, ast.Attribute):
            holder = self._resolve(node.value, namespace)
            if isinstance(holder, (ModuleType, type)):
                return vars(holder).get(node.attr, _MISSING)
        return _MISSING

    def _read(self, namespace: Mapping[str, Any], name: str) -> None:
        """Take in the value of a name; one that is a local of the function does no harm."""
        value = namespace.get(name, _MISSING)
        if value is _MISSING or isinstance(value, ModuleType) or _is_tritons(value):
            return
        kind = type(value)
        if kind.__name__ in ("JITFunction", "InterpretedFunction"):
            self.watched.append((namespace, name, value))
            self.function(value)
            return
        try:
            text = describe(value)
        except TypeError:
            # an object the front end reads by itself, or a builtin: its type is all there is
            text = f"{kind.__module__}.{kind.__qualname__}"
        self.watched.append((namespace, name, value))
        self._add("value", name, text)

    def _add(self, *parts: str) -> None:
        for part in parts:
            self.digest.update(f"{len(part)}:{part}".encode())


def _is_tritons(value: object) -> bool:
    """Whether an object is part of Triton, whose version stands for it."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] == "triton"
    if getattr(value, "__triton_builtin__", False):
        return True
    module = getattr(value, "__module__", None)
    # functions and classes of Triton; not its constexpr objects, which have values
    named = hasattr(value, "__qualname__") or type(value).__name__ == "JITFunction"
    return named and isinstance(module, str) and module.partition(".")[0] == "triton"

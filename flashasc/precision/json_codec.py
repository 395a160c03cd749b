"""Frozen dataclasses of numbers, strings and tuples to JSON and back, nothing lost."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def encode(value: Any) -> Any:
    """As plain JSON types; NaN and infinities, which JSON lacks, as strings."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: encode(getattr(value, field.name)) for field in fields}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    return value


def decode(kind: type[T], found: Any) -> T:
    """A value of the annotated type, from what `encode` made of it.

    Raises:
        ValueError: it does not fit the type; the message names the class and the field.
    """
    return typing.cast(T, _decode(kind, found, kind.__name__))


def _decode(kind: Any, found: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        if not isinstance(found, Mapping) or found.keys() != hints.keys():
            names = sorted(found) if isinstance(found, Mapping) else type(found).__name__
            raise ValueError(f"{where}: expected the fields {sorted(hints)}, got {names}")
        return kind(
            **{name: _decode(hints[name], found[name], f"{where}.{name}") for name in hints}
        )
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        if found is None:
            return None
        (kind,) = (argument for argument in arguments if argument is not type(None))
        return _decode(kind, found, where)
    if typing.get_origin(kind) is tuple and isinstance(found, list):
        return tuple(_decode(arguments[0], item, where) for item in found)
    if typing.get_origin(kind) is dict and isinstance(found, Mapping):
        return {key: _decode(arguments[1], item, where) for key, item in found.items()}
    if kind is float and isinstance(found, str) and found in ("NaN", "inf", "-inf"):
        return float(found)
    if kind is float and isinstance(found, int | float) and not isinstance(found, bool):
        return found
    if kind in (int, str, bool) and type(found) is kind:
        return found
    raise ValueError(f"{where}: expected {kind}, got {found!r}")

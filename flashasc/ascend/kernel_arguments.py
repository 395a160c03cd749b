"""Read the types and constants of a kernel's arguments from text, as a command line has them."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

_TYPES = (
    *("i1", "i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64"),
    *("fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e5"),
)
# how other tools spell them
_OTHER_NAMES = {
    **dict.fromkeys(("f16", "half", "float16"), "fp16"),
    **dict.fromkeys(("f32", "float", "float32"), "fp32"),
    **dict.fromkeys(("f64", "double", "float64"), "fp64"),
    **dict.fromkeys(("bfloat", "bfloat16"), "bf16"),
    **dict.fromkeys(("int", "int32"), "i32"),
    "bool": "i1",
    "int8": "i8",
    "int16": "i16",
    "int64": "i64",
}


def defaults(kernel: Any) -> dict[str, object]:
    """Return the constexprs that have a default value."""
    return {p.name: p.default for p in kernel.params if p.is_constexpr and p.has_default}


def read_constants(kernel: Any, constants: Sequence[str]) -> dict[str, object]:
    """Read "NAME=value" texts.

    Raises:
        ValueError: a name that the kernel doesn't have, or a value that can't be read.
    """
    read: dict[str, object] = {}
    for text in constants:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier() or not value:
            raise ValueError(f"constants: expected NAME=value, got {text!r}")
        _known(kernel, "constants", name)
        if name in read:
            raise ValueError(f"constants: {name} is given twice")
        read[name] = _value(name, value)
    return read


def _value(name: str, text: str) -> object:
    """Read a constant's value from text."""
    if dtype := re.fullmatch(r"(?:tl|triton\.language)\.(\w+)", text):
        import triton.language as tl

        found = getattr(tl, dtype[1], None)
        if not isinstance(found, tl.dtype):
            raise ValueError(f"constants: {name}={text}: triton.language has no dtype {dtype[1]}")
        return found
    if text.lower() in ("true", "false", "none") and text not in ("True", "False", "None"):
        raise ValueError(f"constants: {name}={text}: write {text.capitalize()}")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        # one bare word is text: --const ACTIVATION=silu
        value = text if text.isidentifier() else ...
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError(
            f"constants: {name}={text}: expected an integer, a float, True, False, None, a dtype "
            "like tl.float32, or text"
        )
    return value


def read_signature(
    kernel: Any, signature: str, fixed: Mapping[str, object]
) -> tuple[dict[str, str], tuple[str, ...], dict[str, object]]:
    """Read the types of a kernel's runtime arguments, but for those that are `fixed`.

    Returns:
        (types, the arguments that are multiples of 16, those that are 1).

    Raises:
        ValueError: names that the kernel doesn't have, missing ones, unknown types.
    """
    entries = [entry.strip() for entry in signature.split(",")] if signature.strip() else []
    wanted = [p.name for p in kernel.params if not p.is_constexpr and p.name not in fixed]
    named = ["=" in entry for entry in entries]
    if any(named) and not all(named):
        raise ValueError(f"signature: give types in order or by name, not both; got {signature!r}")
    if any(named):
        pairs = [tuple(part.strip() for part in entry.split("=", 1)) for entry in entries]
    else:
        if len(entries) != len(wanted):
            raise ValueError(
                f"signature: expected {len(wanted)} types, for {', '.join(wanted) or 'nothing'}, "
                f"got {len(entries)}: {signature!r}. Constexprs and arguments that have a constant "
                "are left out"
            )
        pairs = list(zip(wanted, entries, strict=True))
    types: dict[str, str] = {}
    divisible: list[str] = []
    ones: dict[str, object] = {}
    for name, entry in pairs:
        _known(kernel, "signature", name)
        if name not in wanted:
            raise ValueError(
                f"signature: {name} has no type of its own: it is a constexpr or has a constant"
            )
        if name in types or name in ones:
            raise ValueError(f"signature: {name} is given twice")
        kind, _, hint = (part.strip() for part in entry.partition(":"))
        _check_type(name, kind)
        if hint not in ("", "1", "16"):
            raise ValueError(f"signature: {name}: after ':' expected 16 or 1, got {hint!r}")
        if hint == "1":
            if kind.startswith("*") or not kind.startswith(("i", "u")):
                raise ValueError(f"signature: {name}: only an integer can be 1, and this is {kind}")
            ones[name] = 1
            continue
        types[name] = kind
        if hint:
            divisible.append(name)
    if missing := [name for name in wanted if name not in types and name not in ones]:
        raise ValueError(f"signature: no type for {', '.join(missing)}")
    return types, tuple(divisible), ones


def _check_type(name: str, kind: str) -> None:
    star, base = ("*", kind[1:].strip()) if kind.startswith("*") else ("", kind)
    if base in _TYPES and " " not in kind:
        return
    guess = _OTHER_NAMES.get(base) or next(iter(difflib.get_close_matches(base, _TYPES, 1)), None)
    hint = f"; did you mean {star}{guess}?" if guess else ""
    if re.fullmatch(r"[\d.]+", kind):
        hint = f"; a value is a constant: --const {name}={kind}"
    raise ValueError(
        f"signature: {name}: expected a Triton type ({', '.join(_TYPES)}; with * for a pointer), "
        f"got {kind!r}{hint}"
    )


def _known(kernel: Any, label: str, name: str) -> None:
    own = [param.name for param in kernel.params]
    if name in own:
        return
    close = difflib.get_close_matches(name, own, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise ValueError(
        f"{label}: {name} is no argument of {kernel.fn.__name__}({', '.join(own)}){hint}"
    )

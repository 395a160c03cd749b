"""One specialisation of a kernel for one processor, and its Linalg text, kept between runs."""

from __future__ import annotations

import dataclasses
import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashasc.ascend import Lowered, lower, versions
from flashasc.native import cache
from flashasc.native.sources import Dependencies, describe, find_dependencies

# reading a kernel and its callees takes 50 ms, and it is asked for by each of its cases
_DEPENDENCIES: weakref.WeakKeyDictionary[Any, Dependencies] = weakref.WeakKeyDictionary()

_BESIDE_TEXT = [item.name for item in dataclasses.fields(Lowered) if item.name != "linalg"]
# switches of triton-ascend that change the text
_SWITCHES = ("TRITON_DISABLE_LINE_INFO", "TRITON_ENABLE_SANITIZER", "TRITON_DEBUG")


@dataclass(frozen=True)
class Case:
    """A kernel as it would be compiled for one processor.

    Attributes:
        name: what the case is, for people.
        arch: processor name, e.g. "Ascend910B3".
        kernel: a `@triton.jit` function.
        signature, constants, divisible_by_16, options: as `flashasc.ascend.lower` takes them.
        grid: programs of the launch in each dimension; None where that is not known.
        facts: more to show and to filter by, plain JSON types.
        plainly: the same kernel without the branch that it takes once in `facts["segment"]`
            iterations; None where it has no such branch.
    """

    name: str
    arch: str
    kernel: Any
    signature: Mapping[str, str] = field(hash=False)
    constants: Mapping[str, object] = field(hash=False)
    divisible_by_16: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict, hash=False)
    grid: tuple[int, ...] | None = None
    facts: Mapping[str, object] = field(default_factory=dict, hash=False)
    plainly: Case | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the case as plain JSON types."""
        return {
            "name": self.name,
            "arch": self.arch,
            "kernel": f"{self.kernel.__module__}:{self.kernel.__name__}",
            "signature": dict(self.signature),
            "constants": {name: _plain(value) for name, value in self.constants.items()},
            "divisible_by_16": list(self.divisible_by_16),
            "options": {name: _plain(value) for name, value in self.options.items()},
            "grid": list(self.grid) if self.grid else None,
            **self.facts,
        }


def lower_case(case: Case, *, use_cache: bool = True) -> Lowered:
    """Lower a case to Linalg text, unless that was done before by the same versions.

    Raises:
        ValueError, TypeError, ToolchainError: as `flashasc.ascend.lower`.
        NativeError: the cache folder (FLASHASC_CACHE_DIR) cannot be written.
    """
    key = _key(case) if use_cache else None
    if key and (known := _load(key)):
        return known
    lowered = lower(
        case.kernel,
        case.signature,
        case.constants,
        case.arch,
        divisible_by_16=case.divisible_by_16,
        options=case.options,
    )
    if key:
        info = {name: getattr(lowered, name) for name in _BESIDE_TEXT}
        cache.store("linalg", key, lowered.linalg.encode(), ".mlir", info)
    return lowered


def _key(case: Case) -> str | None:
    """Return the key of everything the text depends on; None where that can't be told."""
    try:
        parts = [
            _digest(case.kernel),
            list(case.signature.items()),
            {name: describe(value) for name, value in case.constants.items()},
            {name: describe(value) for name, value in case.options.items()},
        ]
    except (TypeError, AttributeError):
        # a constant of a type unknown here, or no JIT function at all, which `lower` will say
        return None
    switches = [os.environ.get(name) for name in _SWITCHES]
    marked = sorted(case.divisible_by_16)
    return cache.make_key([_BESIDE_TEXT, *parts, marked, case.arch, switches, versions()])


def _digest(kernel: Any) -> str:
    """Hash of a kernel's source and all it depends on, found anew when any of it was replaced."""
    known = _DEPENDENCIES.get(kernel)
    if known is None or known.changed():
        known = _DEPENDENCIES[kernel] = find_dependencies(kernel)
    return known.digest


def _load(key: str) -> Lowered | None:
    entry = cache.load("linalg", key)
    if entry is None:
        return None
    path, info = entry
    try:
        arguments = tuple((name, kind) for name, kind in info["arguments"])
        options = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in info["options"].items()
        }
        text = path.read_text()
        return Lowered(**{**info, "linalg": text, "arguments": arguments, "options": options})
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        # not whole: made again and written over
        return None


def _plain(value: object) -> object:
    try:
        json.dumps(value)
    except TypeError:
        return str(value)
    return value

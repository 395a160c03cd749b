"""A kernel's Linalg text: from memory, from disk, or from triton-ascend."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashasc.ascend.frontend import lower
from flashasc.ascend.toolchain import ToolchainError
from flashasc.native import build, cache
from flashasc.native.errors import NativeError, shorten
from flashasc.native.program import distribution_versions
from flashasc.native.sources import Dependencies, describe

# switches of triton-ascend that change the text
_SWITCHES = ("TRITON_DISABLE_LINE_INFO", "TRITON_ENABLE_SANITIZER", "TRITON_DEBUG")


@dataclass(frozen=True)
class Text:
    """What `bishengir-compile` would be given.

    Attributes:
        linalg: MLIR text.
        name: the kernel's name.
        types: argument name -> Triton type of each argument the text still has, in order.
    """

    linalg: str
    name: str
    types: Mapping[str, str]


def lowered_text(
    kernel: Any,
    dependencies: Dependencies,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    arch: str,
) -> Text:
    """Lower one specialisation of a kernel, unless that was done before.

    No argument is marked divisible by 16, aligned or not: the mark is an attribute that
    triton-adapter-opt copies to its output and does not act on.

    Args:
        kernel: a `@triton.jit` function.
        dependencies: what it depends on.
        signature: runtime argument -> Triton type.
        constants: every other argument -> value.
        arch: Ascend processor.

    Raises:
        NativeError: triton-ascend is missing or rejects the kernel.
        TypeError, ValueError: the names or constants don't fit the kernel.
    """
    described = {name: describe(value) for name, value in constants.items()}
    switches = [os.environ.get(name) for name in _SWITCHES]
    key = cache.make_key(
        [dependencies.digest, list(signature.items()), described, arch, switches, _front_end()]
    )
    if (text := _load(key)) is not None:
        return text
    with cache.building("lowered", key):
        if (text := _load(key)) is not None:
            return text
        try:
            lowered = lower(kernel, signature, constants, arch)
        except ToolchainError as error:
            reason = str(error) if len(str(error)) < 2000 else shorten(str(error))
            raise NativeError(
                reason, step=error.step or "lower", kernel=error.kernel, log=error.log
            ) from error
        info = {"name": lowered.kernel_name, "types": list(lowered.arguments)}
        cache.store("lowered", key, lowered.linalg.encode(), ".mlir", info)
    return Text(lowered.linalg, lowered.kernel_name, dict(lowered.arguments))


def _load(key: str) -> Text | None:
    entry = cache.load("lowered", key)
    if entry is None:
        return None
    path, info = entry
    try:
        return Text(path.read_text(), info["name"], dict(info["types"]))
    except (OSError, KeyError, TypeError, ValueError):
        return None


@functools.lru_cache(maxsize=1)
def _front_end() -> list[object]:
    """What decides the text besides the kernel."""
    library = build.libtriton()
    adapter = Path(library.parents[1], "backends", "ascend", "triton-adapter-opt")
    sizes = [path.stat().st_size for path in (library, adapter) if path.exists()]
    return [distribution_versions()[0], *sizes]


def forget() -> None:
    """Drop what this process has found out about the front end."""
    _front_end.cache_clear()

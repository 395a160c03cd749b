"""What a native run is asked for: level, processor, threads, where files are kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import torch

from flashasc.ascend.toolchain import family

Level = Literal["linalg", "hfusion"]

LEVELS: tuple[str, ...] = get_args(Level)
DEFAULT_ARCH = "Ascend910B3"


@dataclass(frozen=True)
class Target:
    """What is lowered for, and how far, before the text is run.

    Attributes:
        arch: Ascend processor, e.g. "Ascend910B3".
        level: "linalg" (the text `bishengir-compile` is given) or "hfusion" (after its HFusion
            passes).
    """

    arch: str
    level: Level


_known: dict[tuple[str, str], Target] = {}


def target(arch: str | None, level: str | None) -> Target:
    """Fill in what is not given from the environment, read now, and check it.

    Args:
        arch: None: FLASHASC_NATIVE_ARCH, or "Ascend910B3".
        level: None: FLASHASC_NATIVE_LEVEL, or "linalg".

    Raises:
        ValueError: a level or processor that does not exist, named with where it came from.
    """
    chosen = (
        arch or os.environ.get("FLASHASC_NATIVE_ARCH") or DEFAULT_ARCH,
        level or os.environ.get("FLASHASC_NATIVE_LEVEL") or "linalg",
    )
    found = _known.get(chosen)
    if found is None:
        found = _known[chosen] = _checked(*chosen, arch, level)
    return found


def _checked(arch: str, level: str, given_arch: str | None, given_level: str | None) -> Target:
    if level not in LEVELS:
        name = "level" if given_level else "FLASHASC_NATIVE_LEVEL"
        raise ValueError(f"{name}: expected one of {', '.join(LEVELS)}, got {level!r}")
    try:
        family(arch)
    except ValueError as error:
        name = "arch" if given_arch else "FLASHASC_NATIVE_ARCH"
        raise ValueError(f"{name}{str(error).removeprefix('arch')}") from None
    return Target(arch, cast(Level, level))


def thread_count(threads: int | None) -> int:
    """Return how many threads a launch may use.

    Args:
        threads: None: FLASHASC_NATIVE_THREADS, or `torch.get_num_threads()`.

    Raises:
        ValueError: not a whole number of at least 1.
    """
    if threads is None:
        text = os.environ.get("FLASHASC_NATIVE_THREADS")
        if not text:
            return torch.get_num_threads()
        name = "FLASHASC_NATIVE_THREADS"
        given: object = int(text) if text.isdecimal() else text
    else:
        name, given = "threads", threads
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {given!r}")
    return given


def keep_folder() -> Path | None:
    """Return the folder of FLASHASC_NATIVE_KEEP, None when it is not set."""
    text = os.environ.get("FLASHASC_NATIVE_KEEP")
    return Path(text).expanduser() if text else None

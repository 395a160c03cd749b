"""What the Ascend compiler had to say about a kernel, as data."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashasc.ascend.plan import MemoryUse
from flashasc.ascend.toolchain import family
from flashasc.ascend.workload import Workload

_OVERFLOW = re.compile(
    r"(\w+) overflow, requires (?:at least )?(\d+) bits while (\d+) bits available", re.IGNORECASE
)
_MEMORY_NAMES = {"ub": "UB", "cbuf": "L1", "cc": "L0C"}
_LOCATION = re.compile(r'loc\("([^"]*)":(\d+):(\d+)\)')
_ERROR = re.compile(r"\berror:|\[ERROR\]|LLVM ERROR|Assertion")
_CRASH = "PLEASE submit a bug report"


@dataclass(frozen=True)
class Overflow:
    """A memory that the kernel's buffers do not fit: its name ("UB", "L1", "L0C") and bits."""

    memory: str
    required_bits: int
    available_bits: int


@dataclass(frozen=True)
class CompileReport:
    """The outcome of one compilation.

    Attributes:
        kernel_name: the kernel.
        arch: the processor it was compiled for.
        flags: the options given to the compiler.
        compiler: name, version and revision of the compiler.
        returncode: its exit status; negative for a signal, None when it ran out of time.
        notes: its `[NOTE]` lines: it gave up something (code motion, double buffers) and tried
            again.
        diagnostics: its error lines, without repeats.
        overflow: the worst overflow it met, also one that it then got round.
        memory: "UB", "L1", "L0C" -> bytes planned and available; empty unless it succeeded.
        seconds: how long it took, when it ran.
        log: all it printed.
        workload: what one iteration of its main loop does; None unless it succeeded.
        undefined_calls: library functions that it calls and that the device library in the
            compiler's wheel does not define.
        cached: whether this report was read from disk. Not part of equality.
    """

    kernel_name: str
    arch: str
    flags: tuple[str, ...]
    compiler: str
    returncode: int | None
    notes: tuple[str, ...]
    diagnostics: tuple[str, ...]
    overflow: Overflow | None
    memory: Mapping[str, MemoryUse] = field(hash=False)
    seconds: float
    log: str = field(repr=False)
    workload: Workload | None = field(default=None, repr=False)
    undefined_calls: tuple[str, ...] = ()
    cached: bool = field(default=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the kernel compiles for the processor as it stands.

        Every open pass of the compiler passed, at the first attempt, and what it calls can be
        linked. The closed assembler (`hivmc`) and the hardware took no part: "compiles for",
        never "runs on".
        """
        return self.returncode == 0 and not self.retried and not self.unlinkable

    @property
    def unlinkable(self) -> bool:
        """Whether it calls functions that are nowhere, as far as can be known.

        On A5 that can't be: there the compiler calls functions that the wheel's library lacks for
        every product of a computed tile, so `hivmc` must have more of them.
        """
        return bool(self.undefined_calls) and family(self.arch) != "A5"

    @property
    def retried(self) -> bool:
        """Whether the compiler had to try again with something switched off."""
        # the A5 compiler retries without a note and shows only the overflow that made it
        return bool(self.notes) or (self.returncode == 0 and self.overflow is not None)

    @property
    def aborted(self) -> str | None:
        """Name of the signal that ended the compiler ("SIGABRT"), None when none did."""
        if self.returncode is None or self.returncode >= 0:
            return None
        return signal.Signals(-self.returncode).name

    @property
    def timed_out(self) -> bool:
        """Whether the compiler was stopped for taking too long."""
        return self.returncode is None

    def summary(self) -> str:
        """Say in one line what came of it."""
        what = f"{self.kernel_name} for {self.arch}: "
        said = " | ".join(self.diagnostics) or "it printed no reason"
        if self.timed_out:
            return what + f"the compiler was stopped after {self.seconds:.0f} s: {said}"
        if self.aborted:
            return what + f"the compiler aborted ({self.aborted}): {said}"
        if self.overflow and self.returncode:
            over = self.overflow
            return what + (
                f"{over.memory} overflow: needs {over.required_bits} bits, has "
                f"{over.available_bits}; use a smaller tile"
            )
        if self.returncode:
            return what + f"rejected (status {self.returncode}): {said}"
        if self.retried:
            why = " | ".join(self.notes) or "an overflow at the first attempt"
            return what + f"compiles only after a retry: {why}"
        calls = ", ".join(self.undefined_calls)
        if self.unlinkable:
            return what + (
                f"calls functions that the device library does not define: {calls}; linking is "
                "expected to fail, so write it without the operation that they stand for"
            )
        parts = [f"{k} {100 * m.used / m.available:.0f} %" for k, m in self.memory.items()]
        return what + f"compiles ({', '.join(parts)})"

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON types."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "cached"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CompileReport:
        """Rebuild a report from `to_json`'s answer.

        Raises:
            KeyError, TypeError, AttributeError: `data` is not such an answer.
        """
        return cls(
            **{
                **data,
                "flags": tuple(data["flags"]),
                "notes": tuple(data["notes"]),
                "diagnostics": tuple(data["diagnostics"]),
                "overflow": Overflow(**data["overflow"]) if data["overflow"] else None,
                "memory": {name: MemoryUse(**use) for name, use in data["memory"].items()},
                "undefined_calls": tuple(data["undefined_calls"]),
                "workload": Workload.from_json(data["workload"]) if data["workload"] else None,
            },
            cached=True,
        )


def notes(log: str) -> tuple[str, ...]:
    """Return the lines in which the compiler says that it tries again."""
    return tuple(line.strip() for line in log.splitlines() if line.startswith("[NOTE]"))


def worst_overflow(log: str) -> Overflow | None:
    """Return the overflow furthest over its memory, None when there was none."""
    found = [
        Overflow(_MEMORY_NAMES.get(memory.lower(), memory), int(required), int(available))
        for memory, required, available in _OVERFLOW.findall(log)
    ]
    return max(found, key=lambda over: over.required_bits - over.available_bits, default=None)


def diagnostics(log: str) -> tuple[str, ...]:
    """Return the error lines of a log, and what it says right before a crash, without repeats."""
    lines = [_LOCATION.sub(r"\1:\2:\3", line).strip() for line in log.splitlines()]
    told = [line for line in lines if _ERROR.search(line)]
    for number, line in enumerate(lines):
        if line.startswith(_CRASH) and number and lines[number - 1]:
            # a failed C library check ("double free") has no other mark
            told.append(lines[number - 1])
    return tuple(dict.fromkeys(told))

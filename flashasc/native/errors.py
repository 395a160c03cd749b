"""The one exception of the native CPU route."""

from __future__ import annotations

from pathlib import Path


class NativeError(RuntimeError):
    """A kernel cannot be run natively on the CPU; the message says which step failed and why.

    Attributes:
        step: the step that failed: "find tools", a step of the front end ("triton front end",
            "triton-adapter-opt"), "check", "read", "hfusion", "bufferize", "to llvm", "emit",
            "compile runtime", "link", "load", "cache", "run" or "install".
        kernel: name of the kernel, "" when none was involved.
        folder: where the step's input and output files were kept; None when there are none.
        reason: what went wrong, without step, kernel and folder.
        log: all that the failing tool printed.
    """

    def __init__(
        self,
        message: str,
        *,
        step: str,
        kernel: str = "",
        folder: Path | None = None,
        log: str = "",
    ) -> None:
        where = f"native CPU route, step '{step}'"
        if kernel:
            where += f", kernel {kernel}"
        kept = f"\nintermediate files: {folder}" if folder is not None else ""
        super().__init__(f"{where}: {message}{kept}")
        self.step = step
        self.reason = message
        self.kernel = kernel
        self.folder = folder
        self.log = log


def shorten(log: str, limit: int = 1200) -> str:
    """Return the telling lines of a tool's output: its errors, or its end when it names none."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "undefined" in line]
    text = "\n".join(dict.fromkeys(telling or lines[-8:]))
    return text if len(text) <= limit else text[:limit] + " [...]"

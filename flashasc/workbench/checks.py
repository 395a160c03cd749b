"""Put cases through the Ascend compiler, several at a time, and say what came of each."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashasc.ascend import (
    CompileReport,
    Finding,
    ToolchainError,
    bishengir_tool,
    compile_kernel,
    lint_lowered,
    versions,
)
from flashasc.ascend.frontend import _import_backend
from flashasc.workbench.case import Case, lower_case

# the compiler cannot read such a kernel: it crashes on it, or hangs
_HOPELESS = "leftover-triton"


@dataclass(frozen=True)
class Verdict:
    """What came of one case.

    Attributes:
        case: the case.
        report: the compiler's; None when it was not asked, or could not be understood.
        findings: what the lints say of the lowered text.
        error: why there is no report; "" when there is one.
        log: what the failing step printed, whole.
        multibuffer: whether the compiler was asked to double the buffers of loops.
    """

    case: Case
    report: CompileReport | None
    findings: tuple[Finding, ...] = ()
    error: str = ""
    log: str = ""
    multibuffer: bool = False

    @property
    def fits(self) -> bool:
        """Whether it compiles for the processor without a retry."""
        return self.report is not None and self.report.ok

    @property
    def ok(self) -> bool:
        """Whether it fits and no lint found anything."""
        return self.fits and not self.findings

    @property
    def verdict(self) -> str:
        """A few words: "fits", "overflows UB", "retried", "timed out", "lint: zero-trips", ..."""
        report = self.report
        lint = "lint: " + ", ".join(dict.fromkeys(finding.rule for finding in self.findings))
        if report is None:
            return lint if self.findings and not self.error else "rejected"
        if report.timed_out:
            return "timed out"
        if report.aborted:
            return "compiler crashed"
        if report.returncode:
            return f"overflows {report.overflow.memory}" if report.overflow else "rejected"
        return "retried" if report.retried else lint if self.findings else "fits"

    def explanation(self) -> str:
        """What is wrong, in words; "" when nothing is."""
        parts = [self.error] if self.error else []
        if self.report and not self.report.ok:
            parts.append(self.report.summary())
        return "\n".join([*parts, *map(str, self.findings)])

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain JSON types, with all the compiler said."""
        return {
            **self.case.to_json(),
            "verdict": self.verdict,
            "ok": self.ok,
            "multibuffer": self.multibuffer,
            "error": self.error,
            "log": self.log,
            "findings": [vars(finding) for finding in self.findings],
            "report": self.report.to_json() if self.report else None,
        }


def require_toolchain(targets: Sequence[str]) -> Mapping[str, str]:
    """Make sure that cases can be compiled for some processors.

    Returns:
        The versions of the tools.

    Raises:
        ValueError: an unknown processor.
        ToolchainError: a package is missing; the message says what to install.
    """
    for arch in targets:
        bishengir_tool("compile", arch)
    _import_backend()
    return versions()


def check(
    cases: Sequence[Case],
    *,
    timeout: float = 180,
    workers: int | None = None,
    cache: bool = True,
    done: Callable[[Verdict], None] | None = None,
) -> list[Verdict]:
    """Compile cases as far as the open Ascend compiler goes.

    Args:
        cases: what to compile, e.g. `shipped_cases()`.
        timeout: seconds for each compilation.
        workers: compilations at a time; one more than there are processors by default, because
            the front end's part of the work takes turns.
        cache: look in the cache (FLASHASC_CACHE_DIR) first, and store there what is new.
        done: called with each verdict as it comes, in the calling thread.

    Returns:
        A verdict for each case, in their order. What is wrong with a kernel is in its verdict.

    Raises:
        ValueError, TypeError: the names or constants of a case don't fit its kernel.
        ToolchainError: a package is missing; the message says what to install.
    """
    require_toolchain(sorted({case.arch for case in cases}))
    count = workers or (os.cpu_count() or 1) + 1
    pool = concurrent.futures.ThreadPoolExecutor(count)
    futures = [pool.submit(_judge, case, timeout, cache) for case in cases]
    try:
        for future in concurrent.futures.as_completed(futures):
            verdict = future.result()
            if done:
                done(verdict)
    finally:
        # after an error or Ctrl-C what has not begun is dropped
        pool.shutdown(cancel_futures=True)
    return [future.result() for future in futures]


def _judge(case: Case, timeout: float, cache: bool) -> Verdict:
    try:
        lowered = lower_case(case, use_cache=cache)
    except ToolchainError as error:
        return Verdict(case, None, error=str(error), log=error.log)
    findings = lint_lowered(lowered, grid=case.grid)
    multibuffer = bool(lowered.options.get("multibuffer"))
    if any(finding.rule == _HOPELESS for finding in findings):
        return Verdict(case, None, findings, multibuffer=multibuffer)
    try:
        report = compile_kernel(lowered, timeout=timeout, cache=cache)
    except ToolchainError as error:
        return Verdict(case, None, findings, str(error), error.log, multibuffer)
    return Verdict(case, report, findings, multibuffer=multibuffer)

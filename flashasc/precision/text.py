"""A report as text: plain anywhere, in tables and colours where rich is installed."""

from __future__ import annotations

from collections.abc import Iterator

from .plots import ulp_labels
from .report import Check, Report, TensorReport
from .worst import Element

# neighbours shown of each of the worst elements; the rest is in the JSON
_NEIGHBOURS = 2


def plain(report: Report) -> str:
    """The report, line by line."""
    lines = [f"{verdict(report.ok)}  {report.title}".rstrip()]
    for tensor in report.tensors:
        lines.append(f"\n{verdict(tensor.ok)}  {heading(tensor)}")
        lines += [f"  {line}" for line in facts(tensor)]
        width = max(len(check.name) for check in tensor.checks)
        lines += [
            f"  {outcome(check):11}  {check.name:{width}}  {numbers(check):>21}  {check.detail}"
            for check in tensor.checks
        ]
        lines += [f"  - {finding}" for finding in tensor.findings]
        for element in tensor.worst:
            lines += [f"  {line}" for line in element_lines(element)]
    if not report.tensors:
        lines.append("no tensors")
    return "\n".join(lines)


def show(report: Report) -> None:
    """Print the report."""
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ImportError:
        print(plain(report))
        return
    console = Console(highlight=False)
    console.print(f"{_coloured(report.ok)}  {escape(report.title)}")
    for tensor in report.tensors:
        console.print(f"\n{_coloured(tensor.ok)}  {escape(heading(tensor))}")
        for line in facts(tensor):
            console.print(f"  {escape(line)}")
        table = Table("", "check", "measured", "at most", "")
        for check in tensor.checks:
            colour = "green" if check.passed else "red" if check.gates else "yellow"
            table.add_row(
                f"[{colour}]{outcome(check)}[/]",
                check.name,
                f"{check.measured:.4g}",
                f"{check.limit:.4g}",
                escape(check.detail),
            )
        console.print(table)
        for finding in tensor.findings:
            console.print(f"  [bold]- {escape(finding)}[/]")
        for element in tensor.worst:
            for line in element_lines(element):
                console.print(f"  {escape(line)}")


def verdict(ok: bool) -> str:
    """The verdict as a word."""
    return "PASS" if ok else "FAIL"


def outcome(check: Check) -> str:
    """What a check means for the verdict; in brackets, nothing."""
    if check.gates:
        return "pass" if check.passed else "FAIL"
    return "(met)" if check.passed else "(not met)"


def numbers(check: Check) -> str:
    """What was measured of what it may be."""
    return f"{check.measured:.4g} of {check.limit:.4g}"


def heading(tensor: TensorReport) -> str:
    """Name, dtype, shape, and how it was judged."""
    name = f"{tensor.name}: " if tensor.name else ""
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    return f"{name}{tensor.dtype} {shape}, against {tensor.judged_by}: {tensor.rule}"


def facts(tensor: TensorReport) -> Iterator[str]:
    """The statistics in words, a line each."""
    for whose, errors in (("errors", tensor.errors), ("expected's", tensor.theirs)):
        if errors is None:
            continue
        yield (
            f"{whose}: max {errors.max_abs:.3g}, mean {errors.mean_abs:.3g}, "
            f"RMSE {errors.rmse:.3g}, relative {errors.relative:.3g}; MARE {errors.mare:.3g}, "
            f"MERE {errors.mere:.3g}; bias {errors.bias:+.3g} "
            f"(relative {errors.relative_bias:+.2g}), {errors.too_small} too small, "
            f"{errors.too_large} too large"
        )
        yield (
            f"  {errors.correctly_rounded:.3%} correctly rounded; "
            f"off by up to {errors.max_ulps:.4g} ulps: " + histogram_words(errors.ulp_histogram)
        )
    if tensor.errors:
        yield (
            f"relative errors are of {tensor.denominator} ({tensor.errors.small_elements} "
            f"elements, off by up to {tensor.errors.small_max_abs:.3g})"
        )
    odd = tensor.non_finite
    if odd.actual_nan or odd.actual_inf or odd.expected_nan or odd.expected_inf:
        at = f", the first at {odd.first}" if odd.first is not None else ""
        yield (
            f"NaN {odd.actual_nan} (expected {odd.expected_nan}), inf {odd.actual_inf} "
            f"(expected {odd.expected_inf}); {odd.mismatched} of these differ{at}"
        )


def histogram_words(counts: tuple[int, ...]) -> str:
    """The bins that are not empty."""
    total = max(sum(counts), 1)
    filled = [f"{label}: {n / total:.3%}" for label, n in zip(ulp_labels(), counts) if n]
    return ", ".join(filled) or "no elements"


def element_lines(element: Element) -> Iterator[str]:
    """One of the worst elements, and what lies beside it."""
    wrong = "" if element.agrees else "  <- differs"
    yield (
        f"{element.index}: actual {element.actual:.9g}, expected {element.expected:.9g}, "
        f"exact {element.truth:.12g}; off by {element.error:+.3g} = {element.ulps:.4g} ulps, "
        f"allowed {element.allowed:.3g}{wrong}"
    )
    for near in element.neighbours[:_NEIGHBOURS]:
        yield f"    {near.index}: actual {near.actual:.9g}, expected {near.expected:.9g}"


def _coloured(ok: bool) -> str:
    return "[bold green]PASS[/]" if ok else "[bold red]FAIL[/]"

"""`python -m flashasc ascend ...`: what the Ascend compiler makes of kernels, without an NPU.

Exit status: 0 all well, 1 something does not fit or a lint found something, 2 a wrong call or a
missing package.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flashasc.ascend import ToolchainError
from flashasc.native import NativeError
from flashasc.workbench.case import Case
from flashasc.workbench.checks import Verdict, check, require_toolchain
from flashasc.workbench.shipped import DEFAULT_TARGETS, full_name, shipped_cases
from flashasc.workbench.table import check_table

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
ascend = typer.Typer(
    no_args_is_help=True, help="What the Ascend compiler makes of kernels, without an NPU."
)
app.add_typer(ascend, name="ascend")

# wide enough for every table where the width of a page is no matter
_FILE_WIDTH = 260

Kernel = Annotated[
    str | None,
    typer.Argument(
        help="Your kernel, module:function or file.py:function; what flashasc ships without it."
    ),
]
Signature = Annotated[
    str | None,
    typer.Option(help='Types of its runtime arguments in order: "*fp16,*fp16,i32".'),
]
Const = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE of a constexpr argument; once for each.")
]
Grid = Annotated[
    int | None, typer.Option(min=1, help="Programs of the launch, if known: lints look at it.")
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        help="Processor, e.g. Ascend910B3 or 910B3; repeat it for several. "
        f"(default: {', '.join(DEFAULT_TARGETS)})",
        show_default=False,
    ),
]
Dtype = Annotated[str | None, typer.Option(help="Of what is shipped: only this dtype.")]
Precision = Annotated[str | None, typer.Option(help="... standard or compensated alone.")]
HeadDim = Annotated[int | None, typer.Option(help="... what serves this head size alone.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON instead.")]
Uses = Annotated[bool, typer.Option("--uses", help="A line for each use of a configuration.")]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds for one compilation.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Compilations at a time (default: processors + 1)."),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Compile even what was before.")]


@app.callback()
def _flashasc() -> None:
    """Fused attention for Ascend NPUs in Triton."""


@ascend.command("check")
def check_command(
    kernel: Kernel = None,
    signature: Signature = None,
    const: Const = None,
    grid: Grid = None,
    target: Target = None,
    dtype: Dtype = None,
    precision: Precision = None,
    head_dim: HeadDim = None,
    as_json: AsJson = False,
    uses: Uses = False,
    timeout: Timeout = 180,
    workers: Workers = None,
    no_cache: NoCache = False,
) -> None:
    """Compile every shipped kernel, or one of yours, and show whether it fits and what it does."""
    with _usage_errors():
        targets = _targets(target)
        tools = require_toolchain(targets)
        cases = _cases(kernel, signature, const, grid, targets, dtype, precision, head_dim)
        verdicts = _checked(cases, timeout=timeout, workers=workers, cache=not no_cache)
    if as_json:
        _print_json(tools, verdicts, [verdict.to_json() for verdict in verdicts])
    else:
        _print_table(check_table(verdicts, each_use=uses))
        _explain(verdicts, tools)
    raise typer.Exit(0 if all(verdict.ok for verdict in verdicts) else 1)


def _targets(target: Sequence[str] | None) -> list[str]:
    return list(dict.fromkeys(full_name(name) for name in target or DEFAULT_TARGETS))


def _cases(
    kernel: str | None,
    signature: str | None,
    const: Sequence[str] | None,
    grid: int | None,
    targets: Sequence[str],
    dtype: str | None,
    precision: str | None,
    head_dim: int | None,
) -> list[Case]:
    """What is to be compiled; an option that would have no effect is an error."""
    if kernel is None:
        given = {"--signature": signature, "--const": const or None, "--grid": grid}
        _refuse(given, "describes a kernel of yours; name it: module:function")
        return shipped_cases(targets, dtype=dtype, precision=precision, head_dim=head_dim)
    given = {"--dtype": dtype, "--precision": precision, "--head-dim": head_dim}
    _refuse(given, f"selects among what is shipped, not for {kernel}; leave it out")
    if signature is None:
        raise ValueError(f'--signature: missing for {kernel}; e.g. --signature "*fp16,*fp16,i32"')
    from flashasc.ascend.user_kernel import load_kernel

    loaded = load_kernel(kernel, signature, const or ())
    return [
        Case(
            name=kernel,
            arch=arch,
            kernel=loaded.kernel,
            signature=loaded.signature,
            constants=loaded.constants,
            divisible_by_16=tuple(loaded.divisible_by_16),
            grid=grid,
        )
        for arch in targets
    ]


def _refuse(given: Mapping[str, object], why: str) -> None:
    for option, value in given.items():
        if value is not None:
            raise ValueError(f"{option}: {why}")


def _checked(
    cases: Sequence[Case], *, timeout: float, workers: int | None, cache: bool
) -> list[Verdict]:
    with progress_bar("compiling", len(cases)) as advance:
        return check(
            cases,
            timeout=timeout,
            workers=workers,
            cache=cache,
            done=lambda verdict: advance(f"{verdict.case.arch} {verdict.case.name}"),
        )


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on stderr, where that is a terminal; yields what moves it on by one."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}"),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=total, last="")
        yield lambda last: bar.update(task, advance=1, last=last)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """End the program with status 2 and one message for what the caller can put right."""
    try:
        yield
    except (ValueError, TypeError, ImportError, ToolchainError, NativeError) as error:
        _fail(error)


def _fail(error: Exception) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    raise typer.Exit(2) from error


def _print_json(
    tools: Mapping[str, str], verdicts: Sequence[Verdict], results: Sequence[Any]
) -> None:
    ok = all(verdict.ok for verdict in verdicts)
    print(json.dumps({"versions": dict(tools), "ok": ok, "results": results}, indent=1))


def _print_table(table: Table) -> None:
    terminal = Console().is_terminal
    Console(width=None if terminal else _FILE_WIDTH).print(table)


def _explain(verdicts: Sequence[Verdict], tools: Mapping[str, str]) -> None:
    """Say what is wrong, and show raw what the compiler printed where it was not understood."""
    bad = [verdict for verdict in verdicts if not verdict.ok]
    for verdict in bad:
        print(f"\n{verdict.case.arch}, {verdict.case.name}: {verdict.verdict}")
        print(verdict.explanation())
        if verdict.log and verdict.log not in verdict.error:
            print(f"It printed:\n{verdict.log}")
    print(f"\n{len(verdicts) - len(bad)} of {len(verdicts)} compilations are in order.")
    print("Compiled with " + ", ".join(f"{name} {version}" for name, version in tools.items()))

"""`python -m flashasc ascend ...`: what the Ascend compiler makes of kernels, without an NPU.

Exit status: 0 all well, 1 something does not fit or a lint found something, 2 a wrong call or a
missing package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from flashasc.workbench.case import Case
from flashasc.workbench.checks import Verdict, check, require_toolchain
from flashasc.workbench.cli_tiles import tiles_command
from flashasc.workbench.console import print_table, progress_bar, usage_errors
from flashasc.workbench.options import (
    AsJson,
    Const,
    Dtype,
    Grid,
    HeadDim,
    Kernel,
    NoCache,
    Precision,
    Signature,
    Target,
    Timeout,
    Uses,
    Workers,
)
from flashasc.workbench.shipped import DEFAULT_TARGETS, full_name, shipped_cases
from flashasc.workbench.table import check_table

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
ascend = typer.Typer(
    no_args_is_help=True, help="What the Ascend compiler makes of kernels, without an NPU."
)
app.add_typer(ascend, name="ascend")
ascend.command("tiles")(tiles_command)


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
    with usage_errors():
        targets = _targets(target)
        tools = require_toolchain(targets)
        cases = _cases(kernel, signature, const, grid, targets, dtype, precision, head_dim)
        verdicts = _checked(cases, timeout=timeout, workers=workers, cache=not no_cache)
    if as_json:
        _print_json(tools, verdicts, [verdict.to_json() for verdict in verdicts])
    else:
        print_table(check_table(verdicts, each_use=uses))
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


def _print_json(
    tools: Mapping[str, str], verdicts: Sequence[Verdict], results: Sequence[Any]
) -> None:
    ok = all(verdict.ok for verdict in verdicts)
    print(json.dumps({"versions": dict(tools), "ok": ok, "results": results}, indent=1))


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

"""`python -m flashasc ascend estimate`: time on paper of what was compiled."""

from __future__ import annotations

from typing import Annotated

import typer

from flashasc.workbench.asked import asked_cases, asked_targets, checked, explain, print_json
from flashasc.workbench.case import Case
from flashasc.workbench.checks import require_toolchain
from flashasc.workbench.console import print_table, usage_errors
from flashasc.workbench.estimate_table import Problem, estimate_json, estimate_table
from flashasc.workbench.estimates import estimate_all
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


def estimate_command(
    kernel: Kernel = None,
    signature: Signature = None,
    const: Const = None,
    grid: Grid = None,
    target: Target = None,
    dtype: Dtype = None,
    precision: Precision = None,
    head_dim: HeadDim = None,
    queries: Annotated[
        int | None, typer.Option(min=1, help="Estimate a whole call with so many queries.")
    ] = None,
    keys: Annotated[int | None, typer.Option(min=1, help="... keys (default: queries).")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="... heads (default: 1).")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="... batch size (default: 1).")] = None,
    causal: Annotated[bool, typer.Option("--causal", help="... and a causal mask.")] = False,
    as_json: AsJson = False,
    uses: Uses = False,
    timeout: Timeout = 180,
    workers: Workers = None,
    no_cache: NoCache = False,
) -> None:
    """Estimate the time of attention as shipped, or a kernel of yours. On paper: nothing is run.

    The model, and how far off it is where rates are published: docs/ascend-cost-model.md.
    """
    with usage_errors():
        problem = _problem(kernel, queries, keys, heads, batch, causal)
        targets = asked_targets(target)
        tools = require_toolchain(targets)
        cases = asked_cases(
            kernel, signature, const, grid, targets, dtype, precision, head_dim, reductions=False
        )
        if problem:
            cases = [case for case in cases if _is_whole(case, causal)]
        verdicts = checked(cases, timeout=timeout, workers=workers, cache=not no_cache)
        estimates = estimate_all(verdicts, timeout=timeout, workers=workers, cache=not no_cache)
    if as_json:
        pairs = zip(verdicts, estimates, strict=True)
        print_json(tools, verdicts, [estimate_json(v, e, problem) for v, e in pairs])
    else:
        print_table(estimate_table(verdicts, estimates, problem, each_use=uses))
        explain(verdicts, tools)
    raise typer.Exit(0 if all(verdict.ok for verdict in verdicts) else 1)


def _is_whole(case: Case, causal: bool) -> bool:
    """Whether a use has the call's mask, and head sizes as large as its row serves (or 1 less)."""
    D, Dv, largest = (int(str(case.facts[name])) for name in ("D", "Dv", "max_head"))
    return Dv == D and largest - 1 <= D and case.facts["causal"] == causal


def _problem(
    kernel: str | None,
    queries: int | None,
    keys: int | None,
    heads: int | None,
    batch: int | None,
    causal: bool,
) -> Problem | None:
    """The call that is to be estimated as a whole; None without one."""
    given = {"--keys": keys, "--heads": heads, "--batch": batch, "--causal": causal or None}
    rest = [option for option, value in given.items() if value is not None]
    if queries is None:
        if rest:
            raise ValueError(f"{rest[0]}: describes a whole call; give --queries too")
        return None
    if kernel is not None:
        raise ValueError(f"--queries: a whole call of {kernel} can't be estimated; leave it out")
    return Problem(B=batch or 1, Hq=heads or 1, Sq=queries, Sk=keys or queries, causal=causal)

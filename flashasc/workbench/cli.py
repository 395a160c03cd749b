"""`python -m flashasc`: what is here, what the Ascend compiler makes of kernels, comparisons.

Exit status: 0 all well, 1 something does not fit, a lint found something or results differ, 2 a
wrong call or a missing package.
"""

from __future__ import annotations

from functools import partial

import typer

from flashasc.workbench.asked import asked_cases, asked_targets, checked, explain, print_json
from flashasc.workbench.checks import require_toolchain
from flashasc.workbench.cli_compare import compare_command
from flashasc.workbench.cli_estimate import estimate_command
from flashasc.workbench.cli_info import info_command
from flashasc.workbench.cli_tiles import tiles_command
from flashasc.workbench.cli_verify import verify_command
from flashasc.workbench.console import print_table, usage_errors
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
from flashasc.workbench.table import check_table

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
ascend = typer.Typer(
    no_args_is_help=True, help="What the Ascend compiler makes of kernels, without an NPU."
)
app.add_typer(ascend, name="ascend")
app.command("info")(info_command)
app.command("compare")(compare_command)
ascend.command("estimate")(estimate_command)
ascend.command("tiles")(tiles_command)
app.command("verify")(verify_command)


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
        targets = asked_targets(target)
        tools = require_toolchain(targets)
        asked = partial(
            asked_cases, kernel, signature, const, grid, targets, dtype, precision, head_dim
        )
        cases = asked(every_use=uses)
        verdicts = checked(cases, timeout=timeout, workers=workers, cache=not no_cache)
    if as_json:
        print_json(tools, verdicts, [verdict.to_json() for verdict in verdicts])
    else:
        print_table(check_table(verdicts, each_use=uses))
        explain(verdicts, tools)
        if kernel is None and not uses:
            left = len(asked(every_use=True)) - len(cases)
            print(f"{left:,} more uses of these kernels are left to --uses.")
    raise typer.Exit(0 if all(verdict.ok for verdict in verdicts) else 1)

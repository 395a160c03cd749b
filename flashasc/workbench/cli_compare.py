"""`python -m flashasc compare`: two saved results, and the exact one if there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, cast

import typer

from flashasc.precision import LEVELS, SMALL_VALUES, Level, compare, load
from flashasc.workbench.console import usage_errors

_FILE = ".pt of torch.save, .npy or .npz"


def compare_command(
    actual: Annotated[Path, typer.Argument(help=f"What is judged: {_FILE}.")],
    expected: Annotated[Path, typer.Argument(help="What it should be, or another's result.")],
    golden: Annotated[
        Path | None,
        typer.Option(
            help="The exact result, float64. Then it is what decides, and the second file is "
            "another implementation's, for ratios of errors."
        ),
    ] = None,
    rtol: Annotated[float | None, typer.Option(help="Instead of the tolerance table's.")] = None,
    atol: Annotated[float | None, typer.Option(help="Instead of the tolerance table's.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="The same bits.")] = False,
    unequal_nan: Annotated[bool, typer.Option("--unequal-nan", help="No NaN equals NaN.")] = False,
    level: Annotated[
        str | None,
        typer.Option(help=f"Ratios of errors to show: {', '.join(LEVELS)}. Needs --golden."),
    ] = None,
    small_value: Annotated[
        str | None,
        typer.Option(
            help='Ratios (or without --level the single standard) decide too, "ascend" or a '
            "number: smaller elements by absolute error."
        ),
    ] = None,
    flash_rule: Annotated[
        bool,
        typer.Option(
            "--flash-rule", help="Largest error at most twice the second's. Needs --golden."
        ),
    ] = False,
    worst: Annotated[int, typer.Option(min=0, help="How many bad elements to show.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write it as a page as well.")] = None,
) -> None:
    """Compare saved results and say whether, where and how they differ.

    Ends with status 0 if they agree, 1 if not, 2 if they cannot be compared. All of it:
    docs/precision-toolkit.md.
    """
    with usage_errors():
        if html is not None and not html.resolve().parent.is_dir():
            raise ValueError(f"--html: {html.resolve().parent} is no folder; make it first")
        report = compare(
            load(actual),
            load(expected),
            golden=None if golden is None else load(golden),
            rtol=rtol,
            atol=atol,
            strict=strict,
            equal_nan=not unequal_nan,
            # another name is an error there
            level=cast("Level | None", level),
            small_value=SMALL_VALUES if small_value == "ascend" else _number(small_value),
            flash_rule=flash_rule,
            worst=worst,
            title=f"{actual} against {expected}" + (f" and {golden}" if golden else ""),
        )
        if html is not None:
            report.save_html(html)
    if as_json:
        print(json.dumps(report.to_json(), indent=1, allow_nan=False))
    else:
        report.show()
    raise typer.Exit(0 if report.ok else 1)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError as error:
        raise ValueError(f'--small-value: expected a number or "ascend", got {text!r}') from error

"""`python -m flashasc info`."""

from __future__ import annotations

import json

import typer
from rich import box
from rich.table import Table

from flashasc.workbench.console import print_table
from flashasc.workbench.info import gather
from flashasc.workbench.options import AsJson


def info_command(as_json: AsJson = False) -> None:
    """Show what is installed, what was found, and which route calls take here, and why.

    For a bug report: paste all of it, or the output with --json.
    """
    facts = gather()
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for title, part in facts.items():
        for row in part if isinstance(part, list) else [part]:
            if row:
                print_table(_table(title, row))


def _table(title: str, row: dict[str, str]) -> Table:
    name = row.get("device", title)
    table = Table(title=name, title_justify="left", box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in row.items():
        if key != "device":
            table.add_row(key, str(value))
    return table

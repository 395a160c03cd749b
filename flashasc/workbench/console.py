"""What the commands share: errors, a progress bar, tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flashasc.ascend import ToolchainError
from flashasc.native import NativeError

# wide enough for every table where the width of a page is no matter
_FILE_WIDTH = 260


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[[str], None]]:
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
def usage_errors() -> Iterator[None]:
    """End the program with status 2 and one message for what the caller can put right."""
    try:
        yield
    except (ValueError, TypeError, ImportError, ToolchainError, NativeError) as error:
        _fail(error)


def _fail(error: Exception) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    raise typer.Exit(2) from error


def print_table(table: Table) -> None:
    """Print a table on stdout: as wide as the terminal, or as it needs to be in a file."""
    terminal = Console().is_terminal
    Console(width=None if terminal else _FILE_WIDTH).print(table)

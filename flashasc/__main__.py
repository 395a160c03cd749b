"""The command line: `python -m flashasc --help`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exits."""
    try:
        from flashasc.workbench.cli import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        print(
            f"the command line needs {package}, which is not installed; "
            "run: pip install 'flashasc[offline]', or 'flashasc[precision]' for compare alone",
            file=sys.stderr,
        )
        sys.exit(2)
    app(prog_name="python -m flashasc")


if __name__ == "__main__":
    main()

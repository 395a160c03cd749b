"""The command line: `python -m flashasc --help`."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Run the command line; exits."""
    try:
        from flashasc.workbench.cli import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        if sys.argv[1:2] == ["info"] and set(sys.argv[2:]) <= {"--json"}:
            # a bug report must not need anything
            from flashasc.workbench.info import as_text, gather

            facts = gather()
            print(json.dumps(facts, indent=1) if sys.argv[2:] else as_text(facts))
            return
        print(
            f"the command line needs {package}, which is not installed; "
            "run: pip install 'flashasc[offline]', or 'flashasc[precision]' for compare alone",
            file=sys.stderr,
        )
        sys.exit(2)
    app(prog_name="python -m flashasc")


if __name__ == "__main__":
    main()

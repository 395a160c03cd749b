"""Arguments and options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

from flashasc.workbench.shipped import DEFAULT_TARGETS

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
    str | None,
    typer.Option(help='Programs of the launch, "128" or "128,8", if known: lints look at it.'),
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
Uses = Annotated[
    bool,
    typer.Option(
        "--uses",
        help="Every configuration in all its uses, not only where it needs most room; a line each.",
    ),
]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds for one compilation.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Compilations at a time (default: processors + 1)."),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Compile even what was before.")]

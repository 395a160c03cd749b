"""What a command line asks to have compiled, and how it is told what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flashasc.workbench.case import Case
from flashasc.workbench.checks import Verdict, check
from flashasc.workbench.console import progress_bar
from flashasc.workbench.shipped import DEFAULT_TARGETS, full_name, shipped_cases
from flashasc.workbench.shipped_reductions import shipped_reductions
from flashasc.workbench.shipped_split import split_cases
from flashasc.workbench.shipped_states import cache_cases


def asked_targets(target: Sequence[str] | None) -> list[str]:
    """The processors that are asked for, by their full names."""
    return list(dict.fromkeys(full_name(name) for name in target or DEFAULT_TARGETS))


def asked_cases(
    kernel: str | None,
    signature: str | None,
    const: Sequence[str] | None,
    grid: str | None,
    targets: Sequence[str],
    dtype: str | None,
    precision: str | None,
    head_dim: int | None,
    *,
    every_use: bool = False,
    attention_only: bool = False,
) -> list[Case]:
    """What is to be compiled; an option that would have no effect is an error."""
    if kernel is None:
        given: dict[str, object] = {
            "--signature": signature,
            "--const": const or None,
            "--grid": grid,
        }
        _refuse(given, "describes a kernel of yours; name it: module:function")
        chosen: dict[str, Any] = {"dtype": dtype, "precision": precision, "head_dim": head_dim}
        cases = shipped_cases(targets, **chosen, every_use=every_use, attention_only=attention_only)
        if not attention_only:
            cases += split_cases(targets, **chosen, every_use=every_use)
            # a precision and a head size are attention's
            if precision is None and head_dim is None:
                cases += cache_cases(targets, dtype=dtype, every_use=every_use)
                cases += shipped_reductions(targets, dtype=dtype, every_use=every_use)
        return cases
    given = {"--dtype": dtype, "--precision": precision, "--head-dim": head_dim}
    _refuse(given, f"selects among what is shipped, not for {kernel}; leave it out")
    if signature is None:
        raise ValueError(f'--signature: missing for {kernel}; e.g. --signature "*fp16,*fp16,i32"')
    from flashasc.ascend.user_kernel import load_kernel

    sizes = _grid(grid)
    loaded = load_kernel(kernel, signature, const or ())
    return [
        Case(
            name=kernel,
            arch=arch,
            kernel=loaded.kernel,
            signature=loaded.signature,
            constants=loaded.constants,
            divisible_by_16=tuple(loaded.divisible_by_16),
            grid=sizes,
        )
        for arch in targets
    ]


def _grid(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        sizes = ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise ValueError(f"--grid: expected one to three positive integers, got {text!r}")
    return sizes


def _refuse(given: Mapping[str, object], why: str) -> None:
    for option, value in given.items():
        if value is not None:
            raise ValueError(f"{option}: {why}")


def checked(
    cases: Sequence[Case], *, timeout: float, workers: int | None, cache: bool
) -> list[Verdict]:
    """Check cases under a progress bar.

    Raises:
        ValueError: a constant that was read as text is used as something else.
    """
    with progress_bar("compiling", len(cases)) as advance:
        verdicts = check(
            cases,
            timeout=timeout,
            workers=workers,
            cache=cache,
            done=lambda verdict: advance(f"{verdict.case.arch} {verdict.case.name}"),
        )
    for verdict in verdicts:
        _refuse_text(verdict)
    return verdicts


def _refuse_text(verdict: Verdict) -> None:
    """Tell a mistyped constant from a kernel that is wrong: any bare word is read as text."""
    texts = {name: x for name, x in verdict.case.constants.items() if isinstance(x, str)}
    # Triton says so of what it is given, or of what it would rather have
    unfit = any(said in verdict.error for said in ("'str'", "must be of type tl.constexpr"))
    if texts and verdict.report is None and unfit:
        given = " ".join(f"--const {name}={value}" for name, value in texts.items())
        raise ValueError(
            f"{given}: read as text (a 'str'), which the kernel cannot use there. Give a number, "
            f"True, False, None or a dtype like tl.float32. {verdict.error}"
        )


def print_json(
    tools: Mapping[str, str], verdicts: Sequence[Verdict], results: Sequence[Any]
) -> None:
    """Print results, one for each verdict, as one JSON document."""
    ok = all(verdict.ok for verdict in verdicts)
    print(json.dumps({"versions": dict(tools), "ok": ok, "results": results}, indent=1))


def explain(verdicts: Sequence[Verdict], tools: Mapping[str, str]) -> None:
    """Say what is wrong, and show raw what the compiler printed where it was not understood."""
    bad = [verdict for verdict in verdicts if not verdict.ok]
    for verdict in bad:
        print(f"\n{verdict.case.arch}, {verdict.case.name}: {verdict.verdict}")
        print(verdict.explanation())
        if verdict.log and verdict.log not in verdict.error:
            print(f"It printed:\n{verdict.log}")
    print(f"\n{len(verdicts) - len(bad)} of {len(verdicts)} compilations are in order.")
    print("Compiled with " + ", ".join(f"{name} {version}" for name, version in tools.items()))

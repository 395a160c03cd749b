"""Mutation testing of `blocks`: python -m tests.mutation --sample 300 --log mutants.jsonl."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

# before the first import of Triton
os.environ["TRITON_INTERPRET"] = "1"
# no plugin but ours: they take longer to load than most tests to run
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import pytest
import torch

from tests.mutation.mutants import Mutant, block_files, mutants_of, sample
from tests.mutation.report import report
from tests.mutation.runner import Baseline, all_modules, is_due, judge, own_modules

# what every fork needs and does not depend on the blocks; torch.testing takes torch.distributed
_IMPORTED = (
    "triton.language", "numpy", "flashasc._triton", "flashasc._interpreter", "hypothesis",
    "torch.testing", "torch.distributed.tensor",
)  # fmt: skip


def main() -> int:
    """Judge the mutants that are asked for; 1 if one survived that is not explained."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, help="so many, drawn at random; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--file", choices=block_files(), action="append", help="only of this file")
    parser.add_argument("--log", type=Path, required=True, help="JSON lines; what is there is done")
    parser.add_argument("--again", action="store_true", help="judge the survivors there anew")
    parser.add_argument("--own", action="store_true", help="only the tests of a mutant's own file")
    parser.add_argument("--slowest", type=float, default=3.0, help="seconds of a test to be run")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a mutant's tests")
    parser.add_argument("--report", type=Path, help="write the table of results there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    _prepare()
    mutants = [m for file in arguments.file or block_files() for m in mutants_of(file)]
    drawn = sample(mutants, arguments.sample, arguments.seed) if arguments.sample else mutants
    print(f"{len(drawn)} of {len(mutants)} mutants", flush=True)
    known = _read(arguments.log)
    # in an order that has every file's early, for a run that is cut short
    missing = [
        mutant
        for mutant in sorted(drawn, key=lambda mutant: mutant.key)
        if is_due(known.get(mutant.key), own=arguments.own, again=arguments.again)
    ]
    if missing:
        _judge_all(missing, known, arguments)
    text, unexplained = report(drawn, mutants, _read(arguments.log), sys.argv[1:])
    if arguments.report:
        arguments.report.write_text(text)
    print(text)
    return int(unexplained > 0)


def _prepare() -> None:
    """Do once what every fork would do by itself."""
    for name in _IMPORTED:
        importlib.import_module(name)
    interpreter = importlib.import_module("triton.runtime.interpreter")
    # triton-ascend's looks for what to replace in triton.language anew in every call of a device
    # function, and finds nothing after the first
    if len(inspect.signature(interpreter._patch_builtin).parameters) == 2:
        interpreter._patch_builtin = functools.cache(interpreter._patch_builtin)
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--version"])


def _judge_all(
    mutants: Sequence[Mutant], known: dict[str, dict[str, Any]], arguments: argparse.Namespace
) -> None:
    with arguments.log.open("a") as log:
        needed = {path for mutant in mutants for path in own_modules(mutant.file)}
        needed |= set() if arguments.own else set(all_modules())
        baseline = Baseline(**known.get("baseline", {}))
        baseline.add(sorted(needed))
        log.write(json.dumps({"key": "baseline", **asdict(baseline)}) + "\n")
        log.flush()
        print(f"{len(baseline.seconds)} tests pass, {baseline.failed} left out", flush=True)
        for number, mutant in enumerate(mutants, 1):
            outcome = judge(
                mutant,
                baseline,
                own=arguments.own,
                slowest=arguments.slowest,
                timeout=arguments.timeout,
            )
            log.write(
                json.dumps({"key": mutant.key, "mutant": str(mutant), **asdict(outcome)}) + "\n"
            )
            log.flush()
            print(
                f"{number}/{len(mutants)} {outcome.seconds:.0f} s {outcome.kind} {mutant}",
                flush=True,
            )


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The last entry of each mutant in a log."""
    if not path.exists():
        return {}
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return {entry.pop("key"): entry for entry in entries}


if __name__ == "__main__":
    raise SystemExit(main())

"""Each mutation of the compensated arithmetic fails a test of the blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from block_mutants import MUTANTS, UNCHANGED

pytest.importorskip("triton", reason="Triton is not installed")

SCRIPT = Path(__file__).with_name("block_mutants.py")


@pytest.fixture(scope="module")
def results(
    run_python: Callable[..., object], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Which test failed first on each mutant, "" for none: one process, in the interpreter."""
    code = f"import runpy, sys; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    folder = tmp_path_factory.mktemp("mutants")
    done = run_python(code, str(folder), env={"TRITON_INTERPRET": "1"})
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])  # type: ignore[attr-defined]
    return found


def test_the_blocks_themselves_pass(results: dict[str, str]) -> None:
    assert results[UNCHANGED] == ""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(results: dict[str, str], name: str) -> None:
    assert results[name], "every test passed"

"""Each mutation of the compensated arithmetic fails a test of the blocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from block_mutants import UNCHANGED
from mutant_table import MUTANTS

from tests.conftest import RunPython

pytest.importorskip("triton", reason="Triton is not installed")

CODE = f"""
import pathlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from block_mutants import main
main(pathlib.Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def results(run_python: RunPython, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Which test failed first on each mutant, "" for none: one process, in the interpreter."""
    folder = tmp_path_factory.mktemp("mutants")
    done = run_python(CODE, str(folder), env={"TRITON_INTERPRET": "1"})
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_blocks_themselves_pass(results: dict[str, str]) -> None:
    assert results[UNCHANGED] == ""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(results: dict[str, str], name: str) -> None:
    assert results[name], "every test passed"

"""The generator of mutants, and that a few of them are caught."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="cosmic-ray is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.conftest import RunPython
from tests.mutation import survivors
from tests.mutation.mutants import BLOCKS, block_files, mutants_of, sample
from tests.mutation.operators import OURS, operators
from tests.mutation.runner import OWN, all_modules, is_due, own_modules


@pytest.mark.parametrize("name", OURS)
def test_our_operators_do_what_their_examples_say(name: str) -> None:
    for example in OURS[name].examples():
        found = mutate_code(example.pre_mutation_code, OURS[name](), example.occurrence)
        assert found == example.post_mutation_code


def test_every_file_has_mutants_and_tests_of_its_own() -> None:
    # __init__ holds a docstring alone
    assert set(block_files()) == {path.name for path in BLOCKS.glob("*.py")} - {"__init__.py"}
    assert set(OWN) == set(block_files())
    for file in block_files():
        found = mutants_of(file, ("DropTerm", "ReplaceBinaryOperator_Mul_Div"))
        assert len(found) >= 3, file
        assert len({mutant.key for mutant in found}) == len(found)
        original = (BLOCKS / file).read_text()
        assert all(mutant.source != original for mutant in found)
        assert set(own_modules(file)) <= set(all_modules())


def test_every_operator_finds_something() -> None:
    """One that finds nothing is misspelt, or no longer needed."""
    nodes = [
        node for file in block_files() for node in ast_nodes(get_ast((BLOCKS / file).read_text()))
    ]
    for name, operator in operators().items():
        assert any(list(operator.mutation_positions(node)) for node in nodes), name


def test_a_sample_holds_each_file_and_smaller_samples() -> None:
    files = ("activations.py", "masking.py")
    mutants = [m for file in files for m in mutants_of(file, ("DropTerm", "NumberReplacer"))]
    small, large = sample(mutants, 24, seed=3), sample(mutants, 40, seed=3)
    assert {mutant.file for mutant in small} == {"activations.py", "masking.py"}
    assert {mutant.key for mutant in small} < {mutant.key for mutant in large}
    assert sample(mutants, 24, seed=4) != small == sample(mutants, 24, seed=3)


def test_a_few_mutants_are_caught(run_python: RunPython, tmp_path: Path) -> None:
    """By the tests of their file."""
    log = tmp_path / "log.jsonl"
    code = "import sys; from tests.mutation.__main__ import main; sys.exit(main())"
    arguments = ("--file", "activations.py", "--sample", "4", "--own", "--log", str(log))
    done = run_python(code, *arguments)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert entries[0]["key"] == "baseline"
    assert entries[0]["seconds"] and not entries[0]["failed"]
    assert len(entries) == 11, done.stdout
    assert {entry["kind"] for entry in entries[1:]} == {"killed"}, done.stdout


def test_what_is_in_the_log_is_not_done_again() -> None:
    due = {
        (kind, own, again): is_due({"kind": kind}, own=own, again=again)
        for kind in ("killed", "timeout", "survived", "survived its own")
        for own in (False, True)
        for again in (False, True)
    }
    assert is_due(None, own=True, again=False)
    # the others' tests may still catch what its own did not
    expected = {case for case in due if case[0].startswith("survived") and case[2]}
    assert {case for case, judged in due.items() if judged} == expected | {
        ("survived its own", False, False)
    }


def test_every_reason_is_of_a_mutant_there_is() -> None:
    for (file, function), lines in survivors._REASONS.items():
        there = [mutant.new for mutant in mutants_of(file, functions=[function])]
        for part in lines:
            assert any(part in new for new in there), f"{file}, {function}: {part}"

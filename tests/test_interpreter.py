"""Each check of interpreter_checks holds with the cures, and fails without where it should."""

from __future__ import annotations

import json

import pytest

from flashasc import _triton
from tests.conftest import RunPython
from tests.interpreter_checks import CHECKS

# what is wrong in every interpreter, in those of 3.2 (upstream's and triton-ascend's), in
# triton-ascend's, and in 3.6's alone
FAULTS_ALL = {
    "loops_and_branches_on_runtime_scalars",
    "bf16_to_fp32",
    "bf16_to_fp16_and_fp64",
    "fp32_to_bf16_rounds_to_nearest_even",
    "fp64_to_bf16_rounds_once",
    "integers_to_and_from_bf16",
    *(f"bf16_{op}" for op in ("add", "sub", "mul", "neg", "less", "where_scalar", "full")),
    *(f"bf16_{op}" for op in ("maximum", "minimum")),
    *(f"fp32_{op}" for op in ("maximum", "minimum", "clamp_drops_nan", "fma_rounds_once")),
    *(f"dot_bfloat16_{how}{acc}" for how in ("load", "trans", "T") for acc in ("", "_acc")),
}
FAULTS_3_2 = {
    *(f"dot_{dtype}_T{acc}" for dtype in ("float16", "float32") for acc in ("", "_acc")),
    "max_and_min_pass_over_nan",
    "integers_and_masks",
    "block_pointers_check_both_ends",
}
FAULTS = {
    ("ascend", "3.2.0"): FAULTS_ALL | FAULTS_3_2 | {"max_is_not_much_slower_than_sum"},
    ("upstream", "3.2.0"): FAULTS_ALL | FAULTS_3_2,
    ("upstream", "3.6.0"): FAULTS_ALL | {"row_sum"},
}

INTERPRET = {"TRITON_INTERPRET": "1"}


def answers(run_python: RunPython, mode: str) -> dict[str, str]:
    code = f"from tests.interpreter_checks import main; main({mode!r})"
    found: dict[str, str] = json.loads(run_python(code, env=INTERPRET).stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def cured(run_python: RunPython) -> dict[str, str]:
    return answers(run_python, "cured")


@pytest.mark.parametrize("name", CHECKS)
def test_cured(cured: dict[str, str], name: str) -> None:
    assert not cured[name], cured[name]


def test_every_cure_is_needed(run_python: RunPython) -> None:
    found = _triton.installed()
    here = (str(found.kind), str(found.version))
    if here not in FAULTS:
        pytest.skip(f"the faults of {here} are not known")
    wrong = {name for name, trouble in answers(run_python, "uncured").items() if trouble}
    assert wrong == FAULTS[here]


def test_an_interpreter_of_another_make_is_refused(run_python: RunPython) -> None:
    code = """
from triton.runtime import interpreter
from flashasc import _interpreter
before = interpreter._patch_lang_tensor
del interpreter.InterpreterBuilder.create_dot
try:
    _interpreter.apply()
except RuntimeError as error:
    assert "has no InterpreterBuilder.create_dot" in str(error), error
    assert interpreter._patch_lang_tensor is before, "cured in part"
else:
    raise AssertionError("took an interpreter without create_dot")
"""
    run_python(code, env=INTERPRET)

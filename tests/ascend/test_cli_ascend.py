"""`python -m flashasc ascend check` and `estimate`."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)
pytest.importorskip("typer")

from ascend_kernels import A2
from click.testing import Result
from typer.testing import CliRunner

from flashasc import ascend
from flashasc.workbench import Case, case, check, full_name, lower_case, shipped_cases
from flashasc.workbench.cli import app
from flashasc.workbench.shipped_split import split_cases
from tests.conftest import RunPython

ONE_ROW = ("--target", "910B3", "--dtype", "float16", "--precision", "standard", "--head-dim", "64")
KERNELS = Path(__file__).with_name("ascend_kernels.py")
MULTIPLY = (f"{KERNELS}:multiply", "--signature", "*fp16,*fp16,*fp32,i32,i32")


def one_row(*, every_use: bool = True) -> list[Case]:
    """What ONE_ROW asks for: a row without score options and one with them, in their uses; then the
    same of the kernels for few queries."""
    asked: dict[str, Any] = {"dtype": "float16", "precision": "standard", "head_dim": 64}
    return [
        *shipped_cases((A2,), **asked, every_use=every_use),
        *split_cases((A2,), **asked, every_use=every_use),
    ]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ascend", *arguments])


def test_check_as_json() -> None:
    result = run("check", *ONE_ROW, "--uses", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["ok"] is True
    assert told["versions"] == ascend.versions()
    assert [found["name"] for found in told["results"]] == [c.name for c in one_row()]
    for found in told["results"]:
        assert (found["verdict"], found["arch"], found["dtype"]) == ("fits", A2, "float16")
        merges = found["operation"] == "merge of chunks"
        assert found["report"]["workload"]["vector_repeats"] > (0 if merges else 100)
        # a merge multiplies nothing
        for memory in ("UB",) if merges else ("UB", "L1", "L0C"):
            use = found["report"]["memory"][memory]
            assert 0 < use["used"] <= use["available"]


def test_check_as_a_table() -> None:
    result = run("check", *ONE_ROW)
    assert result.exit_code == 0, result.output
    # without options and with them, each where it needs most room
    cases = one_row(every_use=False)
    lines = [text for text in result.stdout.splitlines() if "910B3" in text]
    assert len(lines) == len(cases) == 6
    for line, verdict in zip(lines, check(cases), strict=True):
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        assert cells[:3] == ["910B3", cells[1], "fits"]
        kernel = "(attention forward|attention split|merge of chunks)"
        assert re.match(rf"{kernel} float16 standard D<=\d+ \d+x\d+", cells[1])
        use = verdict.report.memory["UB"]
        assert cells[3] == f"{use.used:,} {100 * use.used / use.available:.0f}%"
    assert f"{len(cases)} of {len(cases)} compilations are in order" in result.stdout
    assert ascend.versions()["bishengir-compile"] in result.stdout


def test_each_use_has_its_line_when_asked_for() -> None:
    result = run("check", *ONE_ROW, "--uses")
    assert sum("910B3" in line for line in result.stdout.splitlines()) == len(one_row())


def test_a_kernel_of_ones_own() -> None:
    result = run("check", *MULTIPLY, "--const", "BLOCK=64", "--target", "910B3", "--json")
    assert result.exit_code in (0, 1), result.output
    (found,) = json.loads(result.stdout)["results"]
    assert found["report"]["returncode"] == 0
    products = found["report"]["workload"]["products"]
    assert [(p["m"], p["n"], p["k"]) for p in products] == [(64, 64, 64)]


def test_what_does_not_fit_is_status_1_and_says_why() -> None:
    result = run("check", *MULTIPLY, "--const", "BLOCK=512", "--target", "910B3")
    assert result.exit_code == 1
    assert re.search(r"overflow: needs \d+ bits, has \d+", result.stdout)
    assert "0 of 1 compilations are in order" in result.stdout


def test_a_lint_is_status_1() -> None:
    arguments = (*MULTIPLY, "--const", "BLOCK=64", "--target", "910B3", "--grid", "300,300")
    result = run("check", *arguments)
    assert result.exit_code == 1
    assert "lint: " in result.stdout
    assert "65,535" in result.stdout


def test_a_compilation_that_takes_too_long_is_status_1(cache_dir: Path) -> None:
    cases = one_row()[:1]
    (verdict,) = check(cases, timeout=0.01)
    assert not verdict.ok
    assert verdict.verdict == "timed out"
    assert "stopped after" in verdict.explanation()


def test_output_that_cannot_be_read_is_shown_with_the_versions(monkeypatch) -> None:
    def unreadable(text: str) -> None:
        raise ValueError("no module in it")

    monkeypatch.setattr("flashasc.ascend.compile.memory_use", unreadable)
    result = run("check", *ONE_ROW, "--no-cache")
    assert result.exit_code == 1
    assert "can't be read: no module in it" in result.stdout
    assert ascend.versions()["bishengir-compile"] in result.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--target", "910C9"), r"expected an Ascend processor name.*Ascend950PR_9589"),
        (("--dtype", "fp8"), "dtype: expected one of float16, bfloat16, float32, got 'fp8'"),
        (("--precision", "exact"), "precision: expected standard or compensated"),
        (("--head-dim", "257"), "head_dim: expected 1 to 256, got 257"),
        (("--signature", "*fp16"), "--signature: describes a kernel of yours"),
        (("--const", "BLOCK=1"), "--const: describes a kernel of yours"),
        (("--grid", "8"), "--grid: describes a kernel of yours"),
        ((*MULTIPLY, "--dtype", "float16"), "--dtype: selects among what is shipped"),
        ((MULTIPLY[0],), "--signature: missing for"),
        ((*MULTIPLY, "--grid", "0"), "--grid: expected one to three positive integers, got '0'"),
        ((*MULTIPLY,), "BLOCK"),
        (("no_such_module:kernel", "--signature", "i32"), "no_such_module"),
    ],
)
def test_wrong_calls_are_status_2(arguments: tuple[str, ...], message: str) -> None:
    result = run("check", *arguments)
    assert result.exit_code == 2, result.output
    assert re.search(message, result.stderr, re.DOTALL)
    assert not result.stdout


@pytest.mark.parametrize("command", ["check", "estimate", "tiles"])
def test_a_missing_wheel_names_the_extra(monkeypatch, tmp_path: Path, command: str) -> None:
    find = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == "ascendnpuir" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    where = ("--evidence", str(tmp_path / "e.json"), "--table", str(tmp_path / "t.py"))
    result = run(command, *(where if command == "tiles" else ()))
    assert result.exit_code == 2
    assert "ascendnpu-ir, which is not installed" in result.stderr
    assert "flashasc[offline]" in result.stderr


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_command_line_package_names_the_extra(run_python: RunPython, package) -> None:
    done = run_python(
        """
import sys
sys.modules[sys.argv[1]] = None
from flashasc.__main__ import main
try:
    main()
except SystemExit as end:
    assert end.code == 2
else:
    raise AssertionError("it did not end")
""",
        package,
    )
    assert done.stderr.count("\n") == 1
    assert f"needs {package}" in done.stderr
    assert "pip install 'flashasc[offline]'" in done.stderr


def test_processors_by_short_names() -> None:
    assert full_name("910b3") == full_name("Ascend910B3") == "Ascend910B3"
    assert full_name("950PR_9589") == "Ascend950PR_9589"
    result = run("check", *ONE_ROW, "--target", "Ascend910B3", "--json")
    assert len(json.loads(result.stdout)["results"]) == len(one_row(every_use=False))


def test_a_processor_without_rows_of_its_own_gets_its_generations() -> None:
    cases = shipped_cases(("Ascend910_9362",), dtype="float16", head_dim=64)
    assert {c.arch for c in cases} == {"Ascend910_9362"}
    named = shipped_cases(("Ascend910_9392",), dtype="float16", head_dim=64)
    assert [c.name for c in cases] == [c.name for c in named]
    assert {c.facts["precision"] for c in cases} == {"standard", "compensated", "high"}


def test_nothing_is_lowered_or_compiled_twice(cache_dir: Path, monkeypatch) -> None:
    cases = one_row()[:2]
    first = check(cases)

    def again(*arguments: object, **options: object) -> None:
        raise AssertionError("lowered again")

    monkeypatch.setattr(case, "lower", again)
    second = check(cases)
    assert [v.report for v in second] == [v.report for v in first]
    assert all(v.report and v.report.cached for v in second)
    assert [v.to_json() for v in second] == [v.to_json() for v in first]


def test_lowered_text_out_of_the_cache_is_the_same(cache_dir: Path) -> None:
    (one, *_) = shipped_cases(("Ascend950PR_9589",), dtype="float32", head_dim=64)
    fresh = lower_case(one, use_cache=False)
    lower_case(one)
    assert lower_case(one) == fresh
    assert lower_case(one).options == fresh.options
    for file in cache_dir.parent.rglob("*.mlir"):
        file.write_text("damaged")
    assert lower_case(one) == fresh


def test_an_estimate_says_that_it_is_one() -> None:
    call = ("--queries", "4096", "--heads", "8", "--causal")
    result = run("estimate", *ONE_ROW, *call)
    assert result.exit_code == 0, result.output
    assert "ESTIMATES on paper" in result.stdout
    told = json.loads(run("estimate", *ONE_ROW, *call, "--json").stdout)
    found, with_options = told["results"]
    assert "mask" in with_options["options"]
    estimate = found["estimate"]
    assert "estimate" in estimate["what"]
    parts = estimate["iteration"]
    assert parts["iteration_us"] == pytest.approx(
        max(parts["cube_us"], parts["vector_us"], parts["transfer_us"])
    )
    pairs = found["block_m"] * found["block_n"]
    assert estimate["pair_ps"] == pytest.approx(1e6 * parts["iteration_us"] / pairs)
    whole = estimate["whole_call"]
    assert (whole["Sq"], whole["Sk"], whole["Hq"], whole["B"]) == (4096, 4096, 8, 1)
    assert whole["overlapping"]["us"] < whole["serial"]["us"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--keys", "8"), "--keys: describes a whole call; give --queries too"),
        (("--causal",), "--causal: describes a whole call; give --queries too"),
        ((*MULTIPLY, "--const", "BLOCK=64", "--queries", "8"), "can't be estimated"),
    ],
)
def test_wrong_estimates_are_status_2(arguments: tuple[str, ...], message: str) -> None:
    result = run("estimate", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr

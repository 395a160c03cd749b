"""`python -m flashasc compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("typer")

from click.testing import Result
from typer.testing import CliRunner

from flashasc.precision import Report, compare, normal
from flashasc.workbench.cli import app
from tests.conftest import RunPython

EXACT = normal((4, 64), torch.float64)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "junk.pt").write_text("junk")
    torch.save(EXACT, tmp_path / "exact.pt")
    torch.save(EXACT.bfloat16(), tmp_path / "good.pt")
    torch.save(EXACT.bfloat16() * 1.05, tmp_path / "off.pt")
    torch.save(EXACT.bfloat16()[:, :3], tmp_path / "short.pt")
    torch.save((EXACT.bfloat16(), torch.tensor(float("nan"))), tmp_path / "nan.pt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments])


@pytest.mark.parametrize(
    "arguments, status",
    [
        ("good.pt good.pt", 0),
        ("good.pt off.pt", 1),
        ("good.pt off.pt --rtol 0.1", 0),
        ("good.pt off.pt --rtol 0 --atol 1", 0),
        ("good.pt off.pt --golden exact.pt", 0),
        ("off.pt good.pt --golden exact.pt", 1),
        ("good.pt good.pt --strict", 0),
        ("good.pt off.pt --golden exact.pt --level L2 --small-value ascend --flash-rule", 0),
        ("off.pt good.pt --golden exact.pt --rtol 1", 0),
        ("off.pt good.pt --golden exact.pt --rtol 1 --level L0 --small-value 0.01", 1),
        ("off.pt good.pt --golden exact.pt --rtol 1 --small-value ascend", 1),
        ("off.pt good.pt --golden exact.pt --rtol 1 --flash-rule", 1),
        ("nan.pt nan.pt", 0),
        ("nan.pt nan.pt --unequal-nan", 1),
    ],
)
def test_status(folder: Path, arguments: str, status: int) -> None:
    result = run(*arguments.split())
    assert result.exit_code == status, result.output
    assert result.output.startswith("PASS" if status == 0 else "FAIL")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("good.pt none.pt", "none.pt: cannot be read: "),
        ("good.pt junk.pt", "junk.pt: cannot be read: "),
        ("good.pt short.pt", "shapes differ: actual is (4, 64), expected is (4, 3)"),
        ("good.pt exact.pt", "dtypes differ: actual is bfloat16, expected is float64"),
        ("good.pt good.pt --level L1", "level: needs expected (the other implementation) and"),
        ("good.pt off.pt --golden exact.pt --level L9", "level: expected one of L0, L1, L2"),
        ("good.pt good.pt --small-value some", '--small-value: expected a number or "ascend"'),
        ("good.pt good.pt --rtol nan", "rtol: expected a finite number"),
        ("good.pt good.pt --html no/such/page.html", "/no/such is no folder; make it first"),
    ],
)
def test_wrong_calls(folder: Path, arguments: str, message: str) -> None:
    result = run(*arguments.split())
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_json_and_page(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run("off.pt", "good.pt", "--json", "--worst", "2", "--html", "page.html")
    assert result.exit_code == 1
    report = Report.from_json(json.loads(result.stdout))
    again = compare(EXACT.bfloat16() * 1.05, EXACT.bfloat16(), worst=2, title=report.title)
    assert report == again
    assert report.title == "off.pt against good.pt"
    assert (folder / "page.html").read_text() == report.html()


def test_as_a_program(folder: Path, run_python: RunPython) -> None:
    done = run_python(
        """
import sys
from flashasc.__main__ import main
try:
    main()
except SystemExit as end:
    print("status", end.code)
assert not {"triton", "matplotlib", "jinja2"} & set(sys.modules)
""",
        *("compare", "good.pt", "off.pt"),
    )
    assert done.stdout.startswith("FAIL") and done.stdout.endswith("status 1\n")
    assert not done.stderr

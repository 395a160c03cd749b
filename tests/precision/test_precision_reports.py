"""Reports as text, JSON and page; golden results; files; what an import brings."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch

import flashasc
from flashasc.precision import Report, compare, golden, golden_attention, load, normal
from flashasc.testing import exact_attention
from tests.conftest import RunPython


@pytest.fixture
def report() -> Report:
    """Of a tree with everything that can be in one: NaN, infinities, a swap, integers."""
    exact = normal((2, 32, 8), torch.float64)
    ours, theirs = exact.bfloat16(), (exact * 1.01).bfloat16()
    ours[1, [3, 9]] = ours[1, [9, 3]]
    ours[0, 0, 0], ours[0, 0, 1] = math.nan, math.inf
    return compare(
        {"<b>out</b>": ours, "ids": torch.arange(3), "none": torch.zeros(0)},
        {"<b>out</b>": theirs, "ids": torch.tensor([0, 1, 9]), "none": torch.zeros(0)},
        golden={
            "<b>out</b>": exact,
            "ids": torch.tensor([0, 1, 9]),
            "none": torch.zeros(0).double(),
        },
        level="L1",
        small_value=0.01,
        title="a <script>title</script>",
    )


def test_json_and_back(report: Report) -> None:
    text = json.dumps(report.to_json(), allow_nan=False)
    again = Report.from_json(json.loads(text))
    # NaN is unlike itself, its text is not
    assert repr(again) == repr(report)
    assert json.loads(text)["ok"] is report.ok is False
    assert again.text() == report.text()


def test_saved(report: Report, tmp_path: Path) -> None:
    report.save_json(tmp_path / "report.json")
    again = Report.load_json(tmp_path / "report.json")
    assert repr(again) == repr(report)
    for wrong in ("report.json", [], None):
        with pytest.raises(ValueError, match=r"a dict; got .*Report.load_json\(path\)"):
            Report.from_json(wrong)  # type: ignore[arg-type]
    (tmp_path / "report.json").write_text("junk")
    with pytest.raises(ValueError):
        Report.load_json(tmp_path / "report.json")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"title": 3}, "Report.title: expected"),
        ({"tensors": [{}]}, "Report.tensors: expected the fields"),
        ({"more": 1}, "Report: expected the fields"),
    ],
)
def test_wrong_json(report: Report, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Report.from_json({**report.to_json(), **change})


def test_frozen(report: Report) -> None:
    with pytest.raises(FrozenInstanceError):
        report.title = "better"  # type: ignore[misc]


def test_text(report: Report) -> None:
    text = report.text()
    for part in (
        "FAIL  a <script>title</script>",
        "FAIL  ['<b>out</b>']: bfloat16 2x32x8, against golden, rounded once to bfloat16: "
        "rtol 0.005, atol 0.005, NaN equals NaN",
        "NaN 1 (expected 0), inf 1 (expected 0); 2 of these differ, the first at (0, 0, 0)",
        "relative errors are of |golden| from 0.01 on; smaller elements by absolute error",
        "(0, 0, 0): actual nan, expected ",
        "    (0, 0, 1): actual inf, expected ",
        "PASS  ['none']: float32 0, against golden",
    ):
        assert part in text
    for check in report.tensors[0].checks:
        assert re.search(rf"(pass|FAIL|\(met\)|\(not met\)) +{re.escape(check.name)} ", text)


def test_shown_with_and_without_rich(
    report: Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "400")
    report.show()
    rich = capsys.readouterr().out
    assert "FAIL  a <script>title</script>" in rich and "L1: RMSE" in rich
    assert all(finding in rich for t in report.tensors for finding in t.findings)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    report.show()
    assert capsys.readouterr().out == report.text() + "\n"


def test_page_stands_alone(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    page = report.html()
    # nothing is fetched: what is referred to is inside
    targets = re.findall(r"""(?:src|href|url|action|data)\s*[=(]\s*["']?([^"'\s)>]+)""", page)
    assert len(targets) == 4
    assert all(target.startswith(("data:image/svg+xml;base64,", "#t")) for target in targets)
    assert not re.search(r"<(script|link|iframe|object|embed)|@import|https?:", page)
    assert "a &lt;script&gt;title" in page and "&lt;b&gt;out" in page
    for tensor in report.tensors:
        for check in tensor.checks:
            assert f"<td>{check.name}</td>" in page
        for element in tensor.worst:
            assert f"{element.index}</td>" in page
    report.save_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page


def test_page_says_what_to_install(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("matplotlib.figure", "jinja2"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(ImportError, match=r"pip install 'flashasc\[precision\]'"):
                report.html()


def test_a_check_by_name(report: Report) -> None:
    with pytest.raises(KeyError, match="'bitwise' is none of"):
        report.tensors[0].check("bitwise")


def test_golden() -> None:
    x, i = normal((4, 4), torch.bfloat16), torch.arange(4)

    def operator(tree: dict[str, torch.Tensor], index: torch.Tensor, dtype: torch.dtype) -> object:
        assert index.dtype == torch.int64
        return [tree["x"].to(dtype) @ tree["x"], index]

    exact, same = golden(operator, {"x": x}, i, dtype=torch.float16)  # type: ignore[misc]
    assert torch.equal(exact, x.double() @ x.double())
    assert same is i
    layer = torch.nn.Linear(4, 3).bfloat16()
    weights = [p.double() for p in layer.parameters()]
    assert torch.allclose(golden(layer, x), x.double() @ weights[0].T + weights[1])
    assert layer.weight.dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"fn: its result\[0\] is torch.float32 for float64"):
        golden(lambda x: (x.float(),), x)


def test_golden_attention() -> None:
    q, k, v = (normal((1, 4, 20, 8), torch.bfloat16, seed) for seed in range(3))
    k, v = k[:, :2], v[:, :2]
    options = {"causal": True, "window": (5, 0), "softcap": 3.0}
    out, lse = golden_attention(q, k, v, return_lse=True, **options)
    exact = exact_attention(q, k, v, **options)
    assert out.dtype == torch.float64
    assert torch.allclose(out, exact.out, rtol=1e-12, atol=1e-14)
    assert torch.allclose(lse, exact.lse, rtol=1e-12)
    assert compare(flashasc.attention(q, k, v, causal=True), golden=golden_attention(
        q, k, v, causal=True)).ok  # fmt: skip
    with pytest.raises(TypeError, match="precision: says how to compute"):
        golden_attention(q, k, v, precision="high")


def test_files(tmp_path: Path) -> None:
    tree = {"a": torch.ones(2, dtype=torch.bfloat16), "b": [torch.arange(3)]}
    torch.save(tree, tmp_path / "tree.pt")
    np.save(tmp_path / "one.npy", np.arange(3.0))
    np.savez(tmp_path / "some.npz", x=np.arange(3), y=np.ones(2))
    assert compare(load(tmp_path / "tree.pt"), tree, strict=True).ok
    assert load(tmp_path / "one.npy").tolist() == [0, 1, 2]
    assert sorted(load(tmp_path / "some.npz")) == ["x", "y"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bad.pt").write_bytes(b"no tensors")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "bad.npy").write_bytes(b"no array")
    (tmp_path / "text.txt").write_text("1 2")
    # code in a pickle is not run
    torch.save(RunsCode(), tmp_path / "code.pt")
    for name in ("none.pt", "bad.pt", "empty.pt", "bad.npy", "code.pt"):
        with pytest.raises(ValueError, match=f"{name}: cannot be read: ."):
            load(tmp_path / name)
    with pytest.raises(ValueError, match="text.txt: expected a .pt"):
        load(tmp_path / "text.txt")


class RunsCode:
    """What a hostile file would hold."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("code in a file was run",)


def test_import_brings_torch_and_numpy_alone(run_python: RunPython) -> None:
    run_python("""
import sys
for name in ("rich", "jinja2", "matplotlib", "typer", "triton", "pandas"):
    sys.modules[name] = None
import torch
from flashasc.precision import compare, normal, sweep
x = normal((5, 5))
report = compare(x + 1, x)
report.show()
assert "as if +1 had been added" in report.text()
""")

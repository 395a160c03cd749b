"""blocks/README.md: its example runs, its catalogue is whole, and the tests it cites exist."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from block_device import Device
from hostile_numbers import U

HERE = Path(__file__).parent
BLOCKS = HERE.parent.parent / "blocks"
README = (BLOCKS / "README.md").read_text()


def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def test_the_catalogue_names_every_block() -> None:
    listed = re.findall(r"^\| `(\w+)\.(\w+)` \|", README, re.MULTILINE)
    there = {(path.stem, name) for path in BLOCKS.glob("*.py") for name in functions(path)}
    assert len(listed) == len(set(listed))
    assert set(listed) == there


def test_every_test_it_cites_exists() -> None:
    there = set().union(*map(functions, HERE.glob("test_*.py")))
    cited = set(re.findall(r"`(test_\w+)`", README))
    assert len(cited) > 15
    assert cited <= there
    assert set(re.findall(r"`(\w+\.py)`", README)) <= {path.name for path in HERE.glob("*.py")}


def test_the_example(device: Device, tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    path = tmp_path / "readme_example.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("readme_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # a multiple of no tile, and long enough for a plain sum to go wrong
    x = torch.full((20_003, 32), 0.1)
    (out,) = device.run(
        module.column_sums, {"x_ptr": x, "rows": 20_003, "stride": 32}, {"out_ptr": (32,)},
        COLS=32, BLOCK=16,
    )  # fmt: skip
    exact = x[0].double() * 20_003
    assert ((out - exact).abs() <= 18 * U * exact).all()

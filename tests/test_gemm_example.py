"""The example of a matrix product runs, and does what it says."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest
import torch

from flashasc import _triton
from tests.conftest import ROOT, RunPython

FILE = ROOT / "examples" / "gemm.py"


def test_it_is_short() -> None:
    assert len(FILE.read_text().splitlines()) <= 66


def test_it_runs(run_python: RunPython) -> None:
    """Natively where triton-ascend is, on the GPU where there is one."""
    if _triton.installed().kind != "ascend" and not torch.cuda.is_available():
        pytest.skip("needs triton-ascend, or a GPU")
    printed = run_python(
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')", str(FILE)
    ).stdout
    found = re.findall(r"K +(\d+) +(\w+) +relative error (\S+)", printed)
    errors = {(int(K), method): float(error) for K, method, error in found}
    assert len(errors) == 4
    assert errors[100_000, "kahan"] <= errors[1000, "kahan"] <= 2e-7
    assert errors[100_000, "plain"] > 8 * errors[100_000, "kahan"]


@pytest.mark.gpu
def test_it_runs_on_a_gpu() -> None:
    spec = importlib.util.spec_from_file_location("gemm_example", FILE)
    assert spec is not None and spec.loader is not None
    module = sys.modules["gemm_example"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    a, b = torch.rand(70, 500, device="cuda"), torch.rand(500, 90, device="cuda")
    torch.testing.assert_close(module.gemm(a, b), (a.double() @ b.double()).float())

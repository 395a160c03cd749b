"""The examples that are written from blocks, each against float64."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from flashasc import _triton
from flashasc.testing import relative_error
from tests.conftest import ROOT

pytest.importorskip("triton", reason="Triton is not installed")

EXAMPLES = ("rms_norm", "flash_attention", "sigmoid_attention")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cuda":
        yield "cuda"
        return
    if _triton.installed().kind != "ascend":
        pytest.skip(f"the native route needs triton-ascend: {_triton.installed().summary}")
    from flashasc import native

    with native.install():
        yield "cpu"


def inputs(device: str, *lengths: int, D: int = 32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, length, D, device=device) for length in lengths]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short(name: str) -> None:
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rms_norm(device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(37, 1000, device=device).to(dtype), torch.rand(1000, device=device)
    exact = torch.nn.functional.rms_norm(x.double(), (1000,), weight.double(), 1e-6)
    found = load("rms_norm").rms_norm(x, weight)
    assert found.dtype == dtype
    assert ((found - exact).abs() <= torch.finfo(dtype).eps * exact.abs() * 2).all()


def test_flash_attention(device: str) -> None:
    attention = load("flash_attention").attention
    q, k, v = inputs(device, 70, 1001, 1001)
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    for method in ("plain", "kahan"):
        assert relative_error(attention(q, k, v, method), exact) < 1e-6
    half = [x.half() for x in (q, k, v)]
    exact = torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in half))
    assert relative_error(attention(*half), exact) < 1e-3


def test_sigmoid_attention(device: str) -> None:
    q, k, v = inputs(device, 70, 1001, 1001)
    exact = (q.double() @ k.double().mT / math.sqrt(32) - math.log(1001)).sigmoid() @ v.double()
    assert relative_error(load("sigmoid_attention").sigmoid_attention(q, k, v), exact) < 1e-6

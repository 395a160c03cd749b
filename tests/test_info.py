"""`python -m flashasc info`: complete, also where little is installed."""

from __future__ import annotations

import json

import pytest
import torch

from flashasc import __version__, _target, _triton
from flashasc.workbench import info
from tests.conftest import RunPython


def test_the_facts_are_json_and_say_which_route_and_why() -> None:
    facts = json.loads(json.dumps(info.gather()))
    assert list(facts) == ["packages", "system", "found", "environment", "devices"]
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["found"]["flashasc"].startswith(__version__)
    cpu = facts["devices"][0]
    assert cpu["device"] == "cpu" and "Ascend910B3" in cpu["what"]
    assert cpu["float64, impl='auto'"].startswith("reference (plain PyTorch): cpu tensors")


def test_what_is_missing_is_said_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_triton, "installed", lambda: _triton.TritonInfo(None))
    monkeypatch.setattr(info, "installed", lambda: _triton.TritonInfo(None))
    monkeypatch.setenv("FLASHASC_NATIVE_ARCH", "Ascend950PR_9589")
    facts = info.gather()
    assert facts["found"]["triton"] == "no Triton is installed"
    assert "pip install" in facts["devices"][0]["bfloat16, impl='triton'"]
    assert facts["environment"]["FLASHASC_NATIVE_ARCH"] == "Ascend950PR_9589"
    assert "pip install" in info.as_text(facts)


def test_every_accelerator_is_listed_and_a_broken_driver_is_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(index: int) -> None:
        raise RuntimeError("driver too old")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    with pytest.raises(RuntimeError):
        _target.devices()
    devices = info.gather()["devices"]
    assert [device["device"] for device in devices] == ["cpu", "accelerators"]
    assert devices[1]["what"] == "RuntimeError: driver too old"


COMMAND = """
import runpy, sys
if sys.argv.pop(1) == "without typer":
    sys.modules["typer"] = sys.modules["rich"] = None
runpy.run_module("flashasc", run_name="__main__")
"""


@pytest.mark.parametrize("typer", ["with typer", "without typer"])
def test_on_the_command_line(run_python: RunPython, typer: str) -> None:
    if typer == "with typer":
        pytest.importorskip("typer")
    printed = run_python(COMMAND, typer, "info", "--json").stdout
    assert json.loads(printed)["found"]["flashasc"].startswith(__version__)
    printed = run_python(COMMAND, typer, "info").stdout
    assert "reference (plain PyTorch): cpu tensors" in printed

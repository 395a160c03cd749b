from __future__ import annotations

import os

import pytest
from block_device import Device

LINALG = pytest.param(Device("linalg"), id="linalg")
HFUSION = pytest.param(Device("hfusion"), id="hfusion")
GPU = pytest.param(Device("gpu"), id="gpu", marks=pytest.mark.gpu)
INTERPRETER = pytest.param(Device("interpreter"), id="interpreter")

# as `python -m tests.mutation` runs them: it takes no compiler a mutant
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(params=[INTERPRETER] if INTERPRETED else [LINALG, HFUSION, GPU])
def device(request: pytest.FixtureRequest) -> Device:
    """Every way of running a kernel on this machine."""
    chosen: Device = request.param
    chosen.require()
    return chosen


@pytest.fixture(params=[INTERPRETER] if INTERPRETED else [LINALG, GPU])
def fast_device(request: pytest.FixtureRequest) -> Device:
    """The same without HFusion, for variants whose arithmetic a sibling test runs there."""
    chosen: Device = request.param
    chosen.require()
    return chosen

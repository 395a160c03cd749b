from __future__ import annotations

import pytest
from block_device import Device

LINALG = pytest.param(Device("linalg"), id="linalg")
HFUSION = pytest.param(Device("hfusion"), id="hfusion")
GPU = pytest.param(Device("gpu"), id="gpu", marks=pytest.mark.gpu)


@pytest.fixture(params=[LINALG, HFUSION, GPU])
def device(request: pytest.FixtureRequest) -> Device:
    """Every way of running a kernel on this machine."""
    chosen: Device = request.param
    chosen.require()
    return chosen


@pytest.fixture(params=[LINALG, GPU])
def fast_device(request: pytest.FixtureRequest) -> Device:
    """The same without HFusion, for variants whose arithmetic a sibling test runs there."""
    chosen: Device = request.param
    chosen.require()
    return chosen

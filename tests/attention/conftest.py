"""The routes as fixtures that a test can take."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashasc.reference import scores
from tests.attention.routes import ROUTES, Route, prepare


def _params(*names: str) -> list[Any]:
    marks = {"cuda": pytest.mark.gpu}
    return [pytest.param(name, marks=marks.get(name, ()), id=name) for name in names]


@pytest.fixture(params=_params("reference", "native-linalg", "cuda"))
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    """The reference and the kernel."""
    return prepare(request.param, monkeypatch)


# what differs between the families at the first level shows in the core set
_EVERY = [name for name in ROUTES if name != "native-a5-linalg"]


@pytest.fixture(params=_params(*ROUTES))
def core_route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    """For the core set: the reference, and the kernel at both levels for both families."""
    return prepare(request.param, monkeypatch)


@pytest.fixture(params=_params(*_EVERY))
def every_route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    """The reference, and the kernel at each level of lowering, for each family of targets."""
    return prepare(request.param, monkeypatch)


@pytest.fixture(params=_params("native-linalg", "cuda"))
def kernel_route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    """The kernel alone."""
    return prepare(request.param, monkeypatch)


@pytest.fixture(params=_params(*[name for name in _EVERY if name != "reference"]))
def every_kernel_route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    """The kernel alone, at each level of lowering, for each family of targets."""
    return prepare(request.param, monkeypatch)


@pytest.fixture(params=_params("reference", "native-linalg", "cuda"))
def options_route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    """Every way that serves all options."""
    return prepare(request.param, monkeypatch)


@pytest.fixture
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference in tiles of 64 rows and 16 keys, so that small inputs have many."""
    monkeypatch.setattr(scores, "KEYS_PER_TILE", 16)
    monkeypatch.setattr(scores, "SCORES_PER_TILE", 1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)

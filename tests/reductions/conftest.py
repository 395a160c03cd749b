"""The routes of reductions as fixtures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.attention.routes import Route, prepare


def _params(*names: str) -> list[Any]:
    return [pytest.param(n, marks=pytest.mark.gpu if n == "cuda" else (), id=n) for n in names]


@pytest.fixture(params=_params("reference", "native-linalg", "cuda"))
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    """The reference and the kernels."""
    return prepare(request.param, monkeypatch)


@pytest.fixture(params=_params("native-linalg", "cuda"))
def kernel_route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    """The kernels alone."""
    return prepare(request.param, monkeypatch)


@pytest.fixture(params=_params("reference", "native-linalg", "native-hfusion", "cuda"))
def every_route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    """The reference, and the kernels at each level of lowering."""
    return prepare(request.param, monkeypatch)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)

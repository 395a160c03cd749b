from __future__ import annotations

import pytest
from gemm_routes import ROUTES, Route, prepare

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=[*(name for name in ROUTES if name != "cuda"), CUDA])
def gemm_route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    """Every route."""
    return prepare(request.param, monkeypatch)


@pytest.fixture(params=["reference", "native-linalg", CUDA])
def fast_gemm_route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Route:
    """The same with one level of the native route."""
    return prepare(request.param, monkeypatch)

"""Every way in which the package computes attention."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import flashasc
from flashasc import _triton


@dataclass(frozen=True)
class Route:
    """One way to compute attention: call it like `flashasc.attention`."""

    name: str
    impl: str
    device: str = "cpu"
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        return flashasc.attention(q, k, v, impl=self.impl, **options)

    def explain(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        return flashasc.explain(q, k, v, impl=self.impl, **options)

    def assert_same(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Fail unless both hold the same bits, for kernels, and the same up to rounding for the
        reference: how its products add up is PyTorch's choice, which depends on strides."""
        if self.name == "reference":
            rtol, atol = 2 * torch.finfo(actual.dtype).eps, 4 * torch.finfo(torch.float32).eps
            torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
        else:
            assert actual.dtype == expected.dtype
            assert torch.equal(actual, expected)

    @property
    def native(self) -> bool:
        return self.name.startswith("native")


def _native(level: str, arch: str) -> dict[str, str]:
    return {"FLASHASC_NATIVE_LEVEL": level, "FLASHASC_NATIVE_ARCH": arch}


ROUTES = {
    "reference": Route("reference", "reference"),
    "native-linalg": Route("native-linalg", "triton", "cpu", _native("linalg", "Ascend910B3")),
    "native-hfusion": Route("native-hfusion", "triton", "cpu", _native("hfusion", "Ascend910B3")),
    "native-a5": Route("native-a5", "triton", "cpu", _native("hfusion", "Ascend950PR_9589")),
    "native-a5-linalg": Route(
        "native-a5-linalg", "triton", "cpu", _native("linalg", "Ascend950PR_9589")
    ),
    "cuda": Route("cuda", "triton", "cuda"),
}


def prepare(name: str, monkeypatch: pytest.MonkeyPatch) -> Route:
    """The route of that name, its environment set; skips the test where it cannot run."""
    route = ROUTES[name]
    if route.native:
        if _triton.installed().kind != "ascend":
            pytest.skip(f"the native route needs triton-ascend: {_triton.installed().summary}")
        if os.environ.get("TRITON_INTERPRET") == "1":
            pytest.skip("TRITON_INTERPRET=1 puts the interpreter in the place of the native route")
    for variable, value in route.environment.items():
        monkeypatch.setenv(variable, value)
    return route

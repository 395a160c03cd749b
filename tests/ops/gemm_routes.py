"""Every way in which the package computes matrix products."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
import torch

from flashasc import _triton


@dataclass(frozen=True)
class Route:
    """One way to compute a product: what `impl` and `device` are."""

    name: str
    impl: str
    device: str = "cpu"
    environment: dict[str, str] = field(default_factory=dict)

    def assert_same(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Fail unless both hold the same bits, for kernels, and the same up to rounding for the
        reference: how its products add up is PyTorch's choice, which depends on shapes."""
        if self.name == "reference":
            rounding = 8 * torch.finfo(torch.float32).eps * expected.abs().max().item()
            torch.testing.assert_close(actual, expected, rtol=0.0, atol=rounding)
        else:
            assert torch.equal(actual, expected)


ROUTES = {
    "reference": Route("reference", "reference"),
    **{
        name: Route(
            name, "triton", "cpu", {"FLASHASC_NATIVE_LEVEL": level, "FLASHASC_NATIVE_ARCH": arch}
        )
        for name, level, arch in (
            ("native-linalg", "linalg", "Ascend910B3"),
            ("native-hfusion", "hfusion", "Ascend910B3"),
            ("native-a5", "hfusion", "Ascend950PR_9589"),
        )
    },
    "cuda": Route("cuda", "triton", "cuda"),
}


def prepare(name: str, monkeypatch: pytest.MonkeyPatch) -> Route:
    """The route of that name, its environment set; skips the test where it cannot run."""
    route = ROUTES[name]
    if route.name.startswith("native"):
        if _triton.installed().kind != "ascend":
            pytest.skip(f"the native route needs triton-ascend: {_triton.installed().summary}")
        if os.environ.get("TRITON_INTERPRET") == "1":
            pytest.skip("TRITON_INTERPRET=1 puts the interpreter in the place of the native route")
    for variable, value in route.environment.items():
        monkeypatch.setenv(variable, value)
    return route

"""Every way in which the package computes matrix products."""

from __future__ import annotations

import torch

from tests.attention.routes import ROUTES as OF_ATTENTION
from tests.attention.routes import Route, prepare

__all__ = ["ROUTES", "Route", "assert_same", "prepare"]

ROUTES = {
    name: OF_ATTENTION[name]
    for name in ("reference", "native-linalg", "native-hfusion", "native-a5", "cuda")
}


def assert_same(route: Route, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Fail unless both hold the same bits, for kernels, and the same up to rounding for the
    reference: how its products add up is PyTorch's choice, which depends on shapes."""
    if route.name == "reference":
        rounding = 8 * torch.finfo(torch.float32).eps * expected.abs().max().item()
        torch.testing.assert_close(actual, expected, rtol=0.0, atol=rounding)
    else:
        assert torch.equal(actual, expected)

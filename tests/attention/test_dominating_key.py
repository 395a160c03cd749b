"""A row with one dominating key returns that key's value."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flashasc.testing import Case, sink, ulps
from tests.attention.routes import Route

# the first key, one inside a tile of keys, the last one in a ragged tail
KEYS = (0, 300, 599)


def dominated(
    route: Route, dtype: torch.dtype, key: int, precision: str, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    case = Case(B=2, Hq=2, Hk=1, Sq=70, Sk=600, D=64, dtype=dtype, scale=scale)
    q, k, v = sink(case, device=route.device, key=key, nats=150.0)
    out, _ = route(q, k, v, precision=precision, return_lse=True, **case.options)
    return out, v[:, :, key, None].expand_as(out)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("precision", ["standard", "compensated"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_exactly_in_16_bits(
    every_route: Route, dtype: torch.dtype, precision: str, key: int
) -> None:
    out, value = dominated(every_route, dtype, key, precision)
    assert torch.equal(out, value)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("precision", ["standard", "compensated"])
def test_within_one_ulp_in_float32(every_route: Route, precision: str, key: int) -> None:
    out, value = dominated(every_route, torch.float32, key, precision)
    assert ulps(out, value.double()).max() <= 1.0


def test_with_a_negative_scale(route: Route) -> None:
    """The smallest product is the largest score."""
    out, value = dominated(route, torch.float16, 300, "compensated", scale=-0.2)
    assert torch.equal(out, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_single_visible_key(every_route: Route, dtype: torch.dtype) -> None:
    """The first row of a causal call, and a call with one key: nothing to average."""
    case = Case(B=2, Sq=130, Sk=130, D=64, dtype=dtype)
    q, k, v = sink(case, device=every_route.device, key=7)
    first = every_route(q * 3, k, v, causal=True)[:, :, 0]
    alone = every_route(q * 3, k[:, :, :1], v[:, :, :1])
    limit = 1.0 if dtype == torch.float32 else 0.0
    assert ulps(first, v[:, :, 0].double()).max() <= limit
    assert ulps(alone, v[:, :, :1].double()).max() <= limit


@pytest.mark.parametrize("size", [2.0**e for e in (22, 23.5, 24, 24.5, 25, 26.4, 27, 28, 31)])
def test_huge_scores_in_float16(route: Route, size: float) -> None:
    """Scores so large that float32 numbers lie further apart than the pivot is lowered by."""
    q = torch.full((1, 1, 2, 16), 2.0, device=route.device, dtype=torch.float16)
    k = torch.tensor([1.0, 0.5, -1.0], device=route.device, dtype=torch.float16)
    k = k[None, None, :, None].expand(1, 1, 3, 16)
    v = torch.randn(1, 1, 3, 16).to(route.device, torch.float16)
    for sign, winner in ((1, 0), (-1, 2)):
        out = route(q, k, v, scale=sign * size / 32)
        assert torch.equal(out, v[:, :, winner, None].expand_as(out))


def test_float16_products_beyond_its_range(route: Route) -> None:
    """q @ k^T is 8.4e6, far above 65504; one step in one column decides."""
    q = torch.full((1, 1, 2, 128), 256.0, device=route.device, dtype=torch.float16)
    k = torch.full((1, 1, 3, 128), 256.0, device=route.device, dtype=torch.float16)
    k[0, 0, 1] = 255.0
    k[0, 0, 2] = -256.0
    v = torch.eye(3, 16, device=route.device, dtype=torch.float16)[None, None]
    out = route(q, k, v)
    assert torch.equal(out, v[:, :, :1].expand_as(out))


def test_no_finite_score_stands_for_hidden(route: Route) -> None:
    """Row 0 sees one score of -2e6; the score hidden from it is 0, and must not win."""
    q = torch.full((1, 1, 2, 16), 1000.0, device=route.device)
    k = torch.zeros(1, 1, 2, 16, device=route.device)
    k[0, 0, 0] = -125.0
    v = torch.tensor([1.0, 9.0], device=route.device)[None, None, :, None].expand(1, 1, 2, 16)
    out = route(q, k, v, causal=True, scale=1.0)
    assert torch.equal(out, v)

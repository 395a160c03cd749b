"""blocks.reduce against float64 and exact sums."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from block_device import Device
from hostile_numbers import U, exact_sums, ill_conditioned, normals, uniforms
from reduce_kernels import lanes_kernel, scales_kernel, spread_kernel, tile_kernel
from torch import Tensor

from flashasc.testing import ulps

INF, NAN = math.inf, math.nan
CONDITIONS = (1e2, 1e3, 1e4, 1e5, 1e6, 1e7)


def lane_sums(device: Device, x: Tensor, tiles: int, method: str) -> tuple[Tensor, Tensor]:
    outputs = {"total_ptr": (x.shape[0],), "error_ptr": (x.shape[0],)}
    args = {"x_ptr": x, "tiles": tiles}
    total, error = device.run(
        lanes_kernel, args, outputs, M=x.shape[0], N=x.shape[1] // tiles, METHOD=method
    )
    return total, error


def long_rows(n: int) -> Tensor:
    """[8, n]: positive, cancelling to each of CONDITIONS, and normal."""
    rows = [uniforms(n, seed=1)]
    rows += [ill_conditioned(n, c, seed=i) for i, c in enumerate(CONDITIONS)]
    return torch.stack([*rows, normals(n, seed=2)])


def test_a_compensated_sum_of_lanes_keeps_kahans_bound(device: Device) -> None:
    tiles = device.steps(256, 16)
    x = long_rows(tiles * 16)
    total, error = lane_sums(device, x, tiles, "kahan")
    exact, size = exact_sums(x), exact_sums(x.abs())
    off = (total.double() + error.double() - exact).abs()
    lanes = 16**3 * 2.0**-46 * size
    assert (off <= (2 * U + 2 * tiles * U**2) * size + lanes).all(), (off / size / U).tolist()
    plain, _ = lane_sums(device, x, tiles, "plain")
    assert ((plain.double() - exact).abs() > 4 * off).sum() >= 4, "a plain sum is as good"


def test_sum2_is_right_to_the_last_digit(device: Device) -> None:
    tiles = device.steps(256, 16)
    x = long_rows(tiles * 16)
    total, error = lane_sums(device, x, tiles, "sum2")
    exact, size = exact_sums(x), exact_sums(x.abs())
    off = (total.double() + error.double() - exact).abs()
    assert (off <= (2 * tiles + 16) * U**2 * size).all(), (off / size / U**2).tolist()
    off_by = ulps(total + error, exact)
    assert (off_by <= 2).all(), off_by.tolist()
    kahan, error = lane_sums(device, x, tiles, "kahan")
    assert (ulps(kahan + error, exact) > 20).any(), "Kahan's sum is as good: the data is too kind"


def test_infinities_pass_through_lanes(device: Device) -> None:
    x = uniforms(8, 256)
    x[0, 20], x[1, 20], x[2, 20], x[3, 20], x[3, 36] = INF, -INF, NAN, INF, -INF
    x[4, 20], x[4, 200] = INF, -INF
    x[5] = 3e38
    for method in ("plain", "kahan", "sum2"):
        total, error = lane_sums(device, x, 16, method)
        expected = torch.tensor([INF, -INF, NAN, NAN, NAN, INF])
        torch.testing.assert_close(total[:6], expected, equal_nan=True)
        assert (error[:6] == 0).all(), method
        assert total[6:].isfinite().all()


class Tile(NamedTuple):
    sum: Tensor
    max: Tensor
    mean: Tensor
    spread: Tensor
    squares: Tensor
    norm: Tensor
    lse: Tensor
    softmax: Tensor
    over: Tensor
    normed: Tensor


def reduce_tile(device: Device, x: Tensor, count: int, method: str, eps: float = 1e-5) -> Tile:
    M, N = x.shape
    names = ("sum", "max", "mean", "spread", "square", "norm", "lse")
    outputs: dict[str, tuple[int, ...]] = {f"{name}_ptr": (M,) for name in names}
    outputs |= {f"{name}_ptr": (M, N) for name in ("soft", "over", "normed")}
    args = {"x_ptr": x, "count": float(count), "eps": eps}
    found = Tile(*device.run(tile_kernel, args, outputs, M=M, N=N, METHOD=method))
    return found._replace(
        softmax=found.softmax[:, :count], over=found.over[:, :count], normed=found.normed[:, :count]
    )


@pytest.mark.parametrize("method", ["plain", "kahan"])
def test_reductions_within_a_tile(device: Device, method: str) -> None:
    """Rows far from 0, wide and narrow, with NaN where they end."""
    count = 13
    x = torch.full((8, 16), NAN)
    x[:, :count] = normals(8, count) * torch.tensor([1, 1, 1e-3, 1e3, 1, 1e-6, 1, 30.0])[:, None]
    x[:, :count] += torch.tensor([0, 1e4, 1, 0, -300, 1e-3, 5, 0.0])[:, None]
    exact = x[:, :count].double()
    found = reduce_tile(device, x, count, method)
    mean = exact.mean(1, keepdim=True)
    size = exact.abs().sum(1)
    terms = count if method == "plain" else 2
    assert ((found.sum - exact.sum(1)).abs() <= (terms + 1) * U * size).all()
    assert torch.equal(found.max.double(), exact.amax(1))
    spread = (exact - mean).square().sum(1)
    # the mean's error, terms * u * |mean|, enters squared, and less what the correction takes
    assert ((found.spread - spread).abs() <= (terms + 6) * U * spread).all()
    squares = exact.square().sum(1)
    assert ((found.squares - squares).abs() <= (terms + 2) * U * squares).all()
    assert ((found.norm - squares.sqrt()).abs() <= (terms + 4) * U * squares.sqrt()).all()
    lse = exact.logsumexp(1)
    largest = exact.amax(1).abs()
    assert ((found.lse - lse).abs() <= 8 * U * (largest + terms)).all()
    softmax = exact.softmax(1)
    # a weight's exponent is rounded, u * |x - max|
    distance = (exact - exact.amax(1, keepdim=True)).abs().amax(1, keepdim=True)
    for weights in (found.softmax, found.over):
        assert (
            (weights - softmax).abs() <= (terms + 12 + 2 * distance) * U * softmax + 1e-37
        ).all()
    scale = (spread / count + 1e-5).rsqrt()[:, None]
    # the mean's own rounding has no part in it
    apart = (exact - mean).abs()
    rounding = (apart + apart.mean(1, keepdim=True)) * scale
    assert ((found.normed - (exact - mean) * scale).abs() <= (terms + 8) * U * rounding).all()


def test_what_is_not_finite_within_a_tile(device: Device) -> None:
    x = normals(8, 16)
    x[0, 3], x[1, 3], x[2, 3] = INF, -INF, NAN
    x[3] = -INF
    x[4, 3], x[4, 4] = INF, -INF
    x[5] = 3e38
    found = reduce_tile(device, x, 16, "kahan")
    same = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}
    torch.testing.assert_close(found.max, x.amax(1), **same)
    torch.testing.assert_close(found.sum, x.sum(1), **same)
    torch.testing.assert_close(found.lse, x.logsumexp(1), **same)
    torch.testing.assert_close(found.softmax, x.softmax(1), **same)
    assert found.spread[:5].isnan().all()
    assert found.norm[0] == INF
    assert found.norm[2].isnan()


def test_a_norm_overflows_only_where_it_must(device: Device) -> None:
    x = uniforms(8, 16) + 0.5
    x *= torch.tensor([2.0**126, 2.0**100, 2.0**-80, 2.0**-120, 2.0**-149, 1.0, 2.0**127, 0.0])[
        :, None
    ]
    exact = x.double().square().sum(1).sqrt()
    found = reduce_tile(device, x, 16, "kahan").norm
    assert exact[0] < torch.finfo(torch.float32).max < exact[6]
    assert found[6] == INF
    assert found[7] == 0
    rows = [0, 1, 2, 3, 4, 5]
    assert ((found[rows] - exact[rows]).abs() <= 4 * U * exact[rows] + 2.0**-149).all()


def test_scales_and_pivots(device: Device) -> None:
    exponents = torch.arange(-149, 128).double()
    x = torch.cat([2.0**exponents, 1.999 * 2.0**exponents]).float()
    x = torch.cat([x, torch.tensor([0.0, INF, -INF, NAN])])
    padded = torch.ones(1024)
    padded[: len(x)] = x
    outputs = dict.fromkeys(("scale_ptr", "unscale_ptr", "pivot_ptr"), (1024,))
    scale, unscale, pivot = device.run(scales_kernel, {"x_ptr": padded}, outputs, N=1024)
    assert (torch.frexp(scale).mantissa == 0.5).all()
    assert torch.equal(scale.double() * unscale, torch.ones(1024, dtype=torch.float64))
    normal = padded.isfinite() & (padded >= 2.0**-126)
    scaled = (padded * scale)[normal]
    assert ((scaled >= 1) & (scaled < 4)).all()
    finite = padded.isfinite()
    assert torch.equal(pivot[finite], padded[finite])
    assert (pivot[~finite] == 0).all()


def test_a_corrected_spread(device: Device) -> None:
    squares = torch.tensor([10.0, 10.0, 1.0, NAN] * 4)
    apart = torch.tensor([0.0, 4.0, 4.0, 1.0] * 4)
    args = {"squares_ptr": squares, "apart_ptr": apart, "count": 8.0}
    (found,) = device.run(spread_kernel, args, {"out_ptr": (16,)}, N=16)
    expected = torch.tensor([10.0, 8.0, 0.0, NAN] * 4)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)

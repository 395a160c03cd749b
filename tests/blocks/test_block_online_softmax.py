"""Whole rows of attention out of blocks.softmax, every constexpr variant, against float64."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from attention_bounds import (
    LN2,
    NEG_INF,
    Dv,
    Exact,
    M,
    N,
    Variant,
    hostile_scores,
    hostile_values,
    lse_bound,
    out_bound,
)
from block_device import Device
from hostile_numbers import U, normals, uniforms

HALF, BF16 = torch.float16, torch.bfloat16

CORE = [
    Variant(torch.float32, "kahan"),
    Variant(HALF, "kahan"),
    Variant(BF16, "kahan"),
    Variant(torch.float32, "plain"),
    Variant(BF16, "segment", SEGMENT=4, NATURAL=True),
    Variant(HALF, "segment", SEGMENT=3, SPLIT=True),
]
"""Run everywhere; between them every constexpr and every path of the pivot."""
COMPENSATED = [variant for variant in CORE if variant.METHOD != "plain"]
VARIANTS = [
    *CORE,
    Variant(torch.float32, "kahan", comp_dtype=BF16),
    Variant(HALF, "kahan", comp_dtype=BF16),
    Variant(BF16, "kahan", comp_dtype=BF16, WITH_LSE=False),
    Variant(HALF, "plain"),
    Variant(BF16, "plain", WITH_LSE=False),
    Variant(torch.float32, "segment", SEGMENT=4),
    Variant(HALF, "segment", SEGMENT=4),
    Variant(HALF, "kahan", NATURAL=True),
    Variant(BF16, "plain", NATURAL=True),
    Variant(BF16, "kahan", SPLIT=True),
    Variant(HALF, "kahan", SPLIT=True, comp_dtype=BF16),
    Variant(BF16, "segment", SEGMENT=4, SPLIT=True, WITH_LSE=False),
    Variant(torch.float32, "kahan", NATURAL_SCORES=True),
    Variant(HALF, "segment", SEGMENT=3, SPLIT=True, NATURAL_SCORES=True),
]
SIXTEEN = [HALF, BF16]


def rows_are_within_bounds(device: Device, variant: Variant, parts: int = 0) -> None:
    tiles = device.steps(32, 8) // max(parts, 1) * max(parts, 1)
    rows = hostile_scores(tiles * N)
    if variant.NATURAL_SCORES:
        # from 2**24 on pivots are rounded, which scores in their units do not show
        rows["close to 2**26"] += 2.0**23 - 2.0**26
    scores, values = torch.stack(list(rows.values())), hostile_values(tiles * N)
    out, lse = variant.run(device, scores, values, parts)
    exact = Exact.of(scores, values, variant)
    # a merge rounds each part's sums once, like a tile
    error, bound = (out - exact.out).abs(), out_bound(variant, exact, tiles + parts)
    wrong = {
        name: (e / b).max().item()
        for name, e, b in zip(rows, error, bound, strict=True)
        if not (e <= b).all()
    }
    assert not wrong, f"error / bound of out: {wrong}"
    empty = exact.lse == NEG_INF
    assert empty.sum() == 1
    assert (out[empty] == 0).all()
    assert (lse[empty] == NEG_INF).all()
    error, bound = (lse - exact.lse).abs(), lse_bound(variant, exact, tiles + parts)
    wrong = {
        name: (e / b).item()
        for name, e, b, skip in zip(rows, error, bound, empty, strict=True)
        if not skip and not e <= b
    }
    assert not wrong, f"error / bound of lse: {wrong}"


@pytest.mark.parametrize("index", range(len(VARIANTS)), ids=lambda i: str(VARIANTS[i]))
def test_hostile_rows(fast_device: Device, index: int) -> None:
    rows_are_within_bounds(fast_device, VARIANTS[index])


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
def test_natural_scores_of_any_size_lose_nothing(fast_device: Device, dtype: torch.dtype) -> None:
    """Times log2(e) those of 10 000 would be off by 3e-4, which is as much of a weight."""
    variant = Variant(dtype, "kahan", SPLIT=dtype != torch.float32, NATURAL_SCORES=True)
    sizes = torch.tensor([0.0, 90.0, 1000.0, 9990.0, 45421.0, 65530.0, 1e5, 3e5])
    sizes = torch.cat([sizes, -sizes])[:, None]
    tiles = fast_device.steps(16, 6)
    # a new maximum in every tile, so that pivots of several are at work
    steps = normals(M, tiles * N, seed=1) * 2 + torch.linspace(0, 6, tiles * N)
    scores = (sizes + steps).double() / LN2
    values = normals(tiles * N, Dv, seed=2)
    exact = Exact.of(scores, values, variant)
    out, lse = variant.run(fast_device, scores, values)
    # of the pivot's lower part, see blocks/README.md: a 256th of what rounding a score costs
    pivot = exact.top.abs() + 16
    lost = U * (2.0**-8 * pivot + torch.where(pivot < 2.0**16, 0.0, 200.0))
    deviation = exact.mean((exact.values - exact.out[:, None]).abs())
    error, bound = (out - exact.out).abs(), out_bound(variant, exact, tiles) + lost * deviation
    assert (error <= bound).all(), (error / bound).amax(1)
    assert ((lse - exact.lse).abs() <= lse_bound(variant, exact, tiles)).all()


@pytest.mark.parametrize("variant", CORE, ids=str)
def test_hostile_rows_at_hfusion(device: Device, variant: Variant) -> None:
    rows_are_within_bounds(device, variant)


@pytest.mark.parametrize("variant", COMPENSATED, ids=str)
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_merged_parts_are_within_the_same_bounds(
    fast_device: Device, parts: int, variant: Variant
) -> None:
    rows_are_within_bounds(fast_device, variant, parts)


@pytest.mark.parametrize("parts", range(2, 9))
def test_merged_parts_are_as_good_as_one_pass(fast_device: Device, parts: int) -> None:
    variant = CORE[0]
    Sk = parts * fast_device.steps(32, 4) * N
    scores, values = normals(M, Sk, seed=parts) * 4, uniforms(Sk, Dv, seed=1)
    exact = Exact.of(scores, values, variant).out
    merged, once = (
        float(((variant.run(fast_device, scores, values, n)[0] - exact) / exact).norm())
        for n in (parts, 0)
    )
    assert merged <= 1.25 * once


def relative_error(device: Device, variant: Variant, scores: torch.Tensor) -> float:
    """Root mean square of the relative error of `out` on positive values."""
    values = 0.5 + uniforms(scores.shape[1], Dv, seed=1)
    exact = Exact.of(scores, values, variant).out
    out, _ = variant.run(device, scores, values)
    return float(((out - exact) / exact).square().mean().sqrt())


def rising(rise: float, tiles: int) -> torch.Tensor:
    """Scores that rise smoothly: a new maximum in every tile; or, for 0, next to none."""
    scores = torch.linspace(0, rise, tiles * N) + torch.linspace(0, 1, M)[:, None]
    return scores if rise else scores + normals(M, tiles * N) * 0.01


# weights that keep their digits: only the sums are off, and no rescale rounds them
GROWTH = [
    Variant(torch.float32, "kahan"),
    Variant(torch.float32, "kahan", comp_dtype=BF16),
    Variant(torch.float32, "segment", SEGMENT=4),
    Variant(HALF, "segment", SEGMENT=3, SPLIT=True),
]


@pytest.mark.parametrize("rise", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("index", range(len(GROWTH)), ids=lambda i: str(GROWTH[i]))
def test_the_error_does_not_grow_with_the_keys(device: Device, index: int, rise: float) -> None:
    variant = GROWTH[index]
    if index and device.route == "hfusion":
        pytest.skip("one variant is enough at hfusion")
    few, many = device.steps(64, 16), device.steps(4096, 256)
    short, long = (relative_error(device, variant, rising(rise, tiles)) for tiles in (few, many))
    assert long <= max(1.5 * short, 1.5 * U), "the error grew with the number of keys"
    if rise < 50:
        plain = relative_error(device, Variant(torch.float32, "plain"), rising(rise, many))
        assert plain > 3 * long, "a plain sum is as good"


# every score its own maximum costs these a rounding: next to no new ones here
SIXTEEN_GROWTH = [
    variant
    for variant in VARIANTS
    if variant.sums_rounded_weights and variant.comp_dtype == torch.float32
]


@pytest.mark.parametrize("variant", SIXTEEN_GROWTH, ids=str)
def test_a_16_bit_error_does_not_grow_with_the_keys(fast_device: Device, variant: Variant) -> None:
    few, many = fast_device.steps(64, 16), fast_device.steps(4096, 256)
    errors = []
    for tiles in (few, many):
        # where values agree the roundings of the weights cancel: what is left is that of the sums
        values = (0.1 + uniforms(Dv, seed=2)).to(variant.dtype).expand(tiles * N, Dv).float()
        out, _ = variant.run(fast_device, rising(0.0, tiles), values.contiguous())
        errors.append(float(((out - values[0]) / values[0]).square().mean().sqrt()))
    assert errors[1] <= max(1.5 * errors[0], 1.5 * U)


@pytest.mark.parametrize("variant", CORE, ids=str)
def test_one_dominating_key_returns_its_value(device: Device, variant: Variant) -> None:
    tiles = device.steps(16, 8)
    scores = normals(M, tiles * N, seed=1) - 40
    winners = torch.arange(M) * (tiles * N - 1) // (M - 1)
    scores[torch.arange(M), winners] = 60 + normals(M, seed=2)
    values = normals(tiles * N, Dv, seed=3).to(variant.dtype)
    expected = values[winners]
    for parts in (0,) if device.route == "hfusion" else (0, 4):
        out, _ = variant.run(device, scores, values, parts)
        if variant.dtype == torch.float32:
            last_bits = (out.view(torch.int32) - expected.view(torch.int32)).abs()
            assert last_bits.max() <= 1
        else:
            assert torch.equal(out.to(variant.dtype), expected)


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_the_rounding_of_weights_cancels_where_values_agree(
    fast_device: Device, dtype: torch.dtype
) -> None:
    tiles = fast_device.steps(64, 16)
    scores = normals(M, tiles * N, seed=1) * 3
    values = (0.1 + uniforms(Dv, seed=2)).to(dtype).expand(tiles * N, Dv).contiguous()
    for compensated in SIXTEEN_GROWTH:
        if compensated.dtype == dtype:
            out, _ = compensated.run(fast_device, scores, values)
            assert torch.equal(out.to(dtype), values[:M])
            error = (out - values[0]).abs() / values[0].float()
            # the row's sum, and the column's: tiles of a segment are added up plainly
            assert (error <= 4 * N * compensated.SEGMENT * U).all()
    plain = Variant(dtype, "plain")
    out, _ = plain.run(fast_device, scores, values)
    plain_error = (out - values[0]).abs() / values[0].float()
    assert plain_error.max() > 8 * error.max(), "the rounding made no difference"


def test_rounding_the_sum_too_halves_the_error_on_positive_values(fast_device: Device) -> None:
    tiles = fast_device.steps(64, 16)
    scores = normals(M, tiles * N, seed=1) * 4
    compensated, plain = (
        relative_error(fast_device, Variant(torch.bfloat16, method), scores)
        for method in ("kahan", "plain")
    )
    assert compensated < 0.75 * plain


def correctly_rounded(
    device: Device, variant: Variant, scores: torch.Tensor, values: torch.Tensor
) -> float:
    """Share of outputs that are the exact ones, rounded to the variant's dtype."""
    out, _ = variant.run(device, scores, values)
    exact = Exact.of(scores, values, variant).out
    return float((out.to(variant.dtype) == exact.to(variant.dtype)).double().mean())


SPLIT = [Variant(HALF, "segment", SEGMENT=3, SPLIT=True), Variant(BF16, "kahan", SPLIT=True)]
KEYS = 2048


@pytest.mark.parametrize("sigma", [1, 4])
@pytest.mark.parametrize("variant", SPLIT, ids=str)
def test_split_weights_round_nearly_every_output_correctly(
    fast_device: Device, variant: Variant, sigma: int
) -> None:
    scores = normals(64, KEYS, seed=1) * sigma / LN2
    signed, positive = normals(KEYS, 64, seed=2), uniforms(KEYS, 64, seed=2)
    assert correctly_rounded(fast_device, variant, scores, signed) >= 0.995
    assert correctly_rounded(fast_device, variant, scores, positive) >= 0.999


@pytest.mark.parametrize("variant", SPLIT, ids=str)
def test_split_weights_below_a_sink(fast_device: Device, variant: Variant) -> None:
    values = uniforms(KEYS, 64, seed=2)
    values[700] = 0.0
    rest = normals(64, KEYS, seed=1) * 0.5
    for nats in (5, 10, 14, 17, 20):
        scores = rest - rest.amax(1, keepdim=True)
        scores[:, 700] = nats / LN2
        share = correctly_rounded(fast_device, variant, scores, values)
        assert share >= 0.999, f"a sink {nats} nats above the rest"


@pytest.mark.parametrize("variant", COMPENSATED, ids=str)
def test_nan_and_inf_reach_their_rows_only(fast_device: Device, variant: Variant) -> None:
    Sk = 4 * N
    scores, values = normals(M, Sk, seed=1), normals(Sk, Dv, seed=2)
    scores[0, 5], scores[1, 20] = math.nan, math.inf
    scores[2] = math.nan
    # a row hidden from all, beside them
    scores[3] = NEG_INF
    out, lse = variant.run(fast_device, scores, values)
    assert out[:3].isnan().all()
    assert lse[:3].isnan().all()
    assert (out[3] == 0).all()
    assert lse[3] == NEG_INF
    exact = Exact.of(scores[3:].repeat(2, 1)[:M], values, variant)
    assert torch.equal(out[4:].isfinite(), torch.ones(M - 4, Dv, dtype=torch.bool))
    torch.testing.assert_close(lse[4:], exact.lse[1 : M - 3].float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", COMPENSATED, ids=str)
def test_an_infinite_value_stays_infinite(fast_device: Device, variant: Variant) -> None:
    Sk = 4 * N
    scores, values = normals(M, Sk, seed=1), normals(Sk, Dv, seed=2)
    values[3, 1], values[N, 2], values[N, 3] = math.inf, -math.inf, math.nan
    values[2, 4], values[40, 4] = math.inf, -math.inf
    for parts in (0, 2):
        out, _ = variant.run(fast_device, scores, values, parts)
        assert (out[:, 1] == math.inf).all()
        assert (out[:, 2] == -math.inf).all()
        assert out[:, 3:5].isnan().all()
        assert out[:, 5:].isfinite().all()


def test_lse_is_logsumexp(device: Device) -> None:
    Sk = device.steps(256, 8) * N
    scores = normals(M, Sk, seed=1) * torch.logspace(-3, 2, M)[:, None]
    _, lse = CORE[0].run(device, scores, torch.ones(Sk, Dv))
    exact = torch.logsumexp(scores.double() * LN2, dim=1)
    assert ((lse - exact).abs() <= 4 * U * (exact.abs() + 4)).all()

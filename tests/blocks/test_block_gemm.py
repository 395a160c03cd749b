"""blocks.gemm against float64, every constexpr variant of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton.language as tl
from block_device import Device
from gemm_kernels import (
    products_kernel,
    round_pairs_kernel,
    rounded_away_kernel,
    sums_kernel,
)
from hostile_numbers import U, finite_bits, ill_conditioned, normals, uniforms
from torch import Tensor

M = K = N = 16

DTYPES = [torch.float32, torch.float16, torch.bfloat16]

# what a product of fp32 tiles may lose beside the rounding of its additions, times |a| |b|, and
# where the setting exists: operands of 11 (truncated: 10) bits, or three and six products of parts
PRECISIONS = {
    "ieee": (0.0, ("linalg", "hfusion", "gpu")),
    "hf32": (2 * 2.0**-11, ("linalg", "hfusion")),
    "tf32": (2 * 2.0**-10, ("gpu",)),
    "tf32x3": (2.0**-20, ("gpu",)),
    "bf16x6": (2.0**-22, ("gpu",)),
}


def hostile_factors(k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[M, k] and [k, N]: wide range, cancellation of known condition, signs, zeros."""
    a = normals(M, k, seed=1) * 2.0 ** (uniforms(M, k, seed=2) * 16 - 8).round()
    a[0] = uniforms(k, seed=3)
    a[1] = ill_conditioned(k, 1e3, seed=4)
    a[2] = 0.0
    a[3] = -0.0
    a[4] = 0.1
    b = normals(k, N, seed=5)
    b[:, 0] = uniforms(k, seed=6)
    # products with these are exact: the sum of row 1 keeps its condition
    b[:, 1], b[:, 2], b[:, 3] = 1.0, -2.0, 0.25
    return a.to(dtype), b.to(dtype)


def exact_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a @ b and |a| @ |b| in float64."""
    return a.double() @ b.double(), a.double().abs() @ b.double().abs()


@pytest.mark.parametrize(
    "dtype, precision",
    [(dtype, "ieee") for dtype in DTYPES[1:]] + [(torch.float32, name) for name in PRECISIONS],
    ids=str,
)
def test_products(fast_device: Device, dtype: torch.dtype, precision: str) -> None:
    lost, routes = PRECISIONS[precision]
    if fast_device.route not in routes:
        pytest.skip(f"{precision} is for {', '.join(routes)}")
    a, b = hostile_factors(K, dtype)
    start = normals(M, N, seed=9) * 100
    outputs = dict.fromkeys(("dot_ptr", "sum_ptr"), (M, N))
    args = {"a_ptr": a, "b_ptr": b, "start_ptr": start}
    results = fast_device.run(
        products_kernel, args, outputs, M=M, K=K, N=N, DOT_PRECISION=precision
    )
    exact, size = exact_product(a, b)
    # an addition may truncate (tensor cores do): one ulp, 2 * U
    begins = (torch.zeros(M, N), start)
    for result, begin in zip(results, begins, strict=True):
        whole = size + begin.double().abs()
        bound = (2 * U * (K + 1)) * whole + lost * size
        assert ((result.double() - exact - begin).abs() <= bound).all()


def test_products_at_hfusion(device: Device) -> None:
    a, b = hostile_factors(K, torch.float32)
    outputs = dict.fromkeys(("dot_ptr", "sum_ptr"), (M, N))
    args = {"a_ptr": a, "b_ptr": b, "start_ptr": torch.zeros(M, N)}
    results = device.run(products_kernel, args, outputs, M=M, K=K, N=N, DOT_PRECISION="ieee")
    exact, size = exact_product(a, b)
    for result in results:
        assert ((result.double() - exact).abs() <= 2 * U * K * size).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_rounded_in_pairs(dtype: torch.dtype) -> None:
    """The bits of the plain rounding: ties, subnormal numbers, what overflows, and no numbers."""
    device = Device("gpu")
    device.require()
    step = torch.finfo(dtype).eps
    edges = torch.tensor([1 + step / 2, 1 + 1.5 * step, -(2.0**-25), 65519.9, 65520.0, -3.4e38])
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-40])
    x = torch.cat([edges, special, finite_bits(1012, seed=4, largest=2.0**127)])
    outputs = dict.fromkeys(("rounded_ptr", "back_ptr"), (1024,))
    constants = {"N": 1024, "DTYPE": tl.float16 if dtype == torch.float16 else tl.bfloat16}
    for found in device.run(round_pairs_kernel, {"x_ptr": x}, outputs, **constants):
        expected = x.to(dtype).float()
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
        assert torch.equal(found.signbit()[~found.isnan()], x.signbit()[~x.isnan()])


def test_rounded_away(device: Device) -> None:
    ties = torch.tensor(
        [1 + 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -2048.5, 65504.0, 1.0, 0.0, -0.0]
    )
    random = finite_bits(1016, seed=1, largest=65504.0)
    # nothing that bf16 keeps in subnormals
    x = torch.cat([ties, random[:508], normals(508, seed=2) * 100])
    x = torch.where(x.abs() < 2.0**-100, 0.0, x)
    names = ("half_ptr", "half_lost_ptr", "bf16_ptr", "bf16_lost_ptr")
    half, half_lost, bf16, bf16_lost = device.run(
        rounded_away_kernel, {"x_ptr": x}, dict.fromkeys(names, (1024,)), N=1024
    )
    for dtype, rounded, lost, roundoff, smallest in (
        (torch.float16, half, half_lost, 2.0**-22, 2.0**-24),
        (torch.bfloat16, bf16, bf16_lost, 2.0**-16, 0.0),
    ):
        assert torch.equal(rounded, x.to(dtype).float())
        # the difference itself is exact; it is rounded once
        exact = x.double() - rounded.double()
        assert torch.equal(lost, exact.to(dtype).float())
        error = (x.double() - rounded.double() - lost.double()).abs()
        assert (error <= roundoff * x.double().abs() + smallest / 2).all()


@dataclass(frozen=True)
class Variant:
    """A way of keeping a long sum of products."""

    dtype: torch.dtype
    METHOD: str
    comp_dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        names = [str(self.dtype).removeprefix("torch."), self.METHOD]
        names += ["bf16 comp"] * (self.comp_dtype == torch.bfloat16)
        return " ".join(names)

    def run(self, device: Device, a: Tensor, b: Tensor, start_comp: Tensor | None = None) -> Tensor:
        """acc + comp in float64; a plain sum's comp is NaN throughout."""
        begin = math.nan if self.METHOD == "plain" else 0.0
        start_comp = torch.full((M, N), begin) if start_comp is None else start_comp
        args = {"a_ptr": a, "b_ptr": b, "start_comp_ptr": start_comp, "tiles": a.shape[1] // K}
        COMP_DTYPE = tl.bfloat16 if self.comp_dtype == torch.bfloat16 else tl.float32
        acc, comp = device.run(
            sums_kernel, args, {"acc_ptr": (M, N), "comp_ptr": (M, N)},
            M=M, K=K, N=N, METHOD=self.METHOD, COMP_DTYPE=COMP_DTYPE,
        )  # fmt: skip
        if self.METHOD == "plain":
            assert comp.isnan().all(), "a plain sum touched its compensation"
            return acc.double()
        assert comp.isfinite().all()
        return acc.double() + comp.double()

    def bound(self, tiles: int) -> float:
        """Error in units of |a| |b|, see blocks/README.md."""
        within = 2 * U * (K + 1)
        if self.METHOD == "plain":
            # every addition may be one to the whole sum
            return within * tiles
        kept = tiles * 2.0**-33 if self.comp_dtype == torch.bfloat16 else 0.0
        return within + 2 * U + 2 * (K + 2) * tiles * U**2 + kept


CORE = Variant(torch.float32, "kahan")
VARIANTS = [
    CORE,
    Variant(torch.float32, "plain"),
    Variant(torch.float32, "kahan", comp_dtype=torch.bfloat16),
    Variant(torch.float16, "plain"),
    Variant(torch.float16, "kahan"),
    Variant(torch.float16, "kahan", comp_dtype=torch.bfloat16),
    Variant(torch.bfloat16, "plain"),
    Variant(torch.bfloat16, "kahan"),
    Variant(torch.bfloat16, "kahan", comp_dtype=torch.bfloat16),
]


def sums_are_bounded(device: Device, variant: Variant) -> None:
    tiles = device.steps(256, 32)
    a, b = hostile_factors(tiles * K, variant.dtype)
    exact, size = exact_product(a, b)
    error = (variant.run(device, a, b) - exact).abs()
    assert (error <= variant.bound(tiles) * size).all()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_sum_of_products_is_bounded(fast_device: Device, variant: Variant) -> None:
    sums_are_bounded(fast_device, variant)


def test_a_sum_of_products_is_bounded_at_hfusion(device: Device) -> None:
    sums_are_bounded(device, CORE)


def relative_error(device: Device, variant: Variant, tiles: int) -> float:
    """Root mean square of the relative error on positive data."""
    a = uniforms(M, tiles * K, seed=1).to(variant.dtype)
    b = uniforms(tiles * K, N, seed=2).to(variant.dtype)
    exact, _ = exact_product(a, b)
    return float(((variant.run(device, a, b) - exact) / exact).square().mean().sqrt())


@pytest.mark.parametrize(
    "index",
    [i for i, variant in enumerate(VARIANTS) if variant.METHOD == "kahan"],
    ids=lambda i: str(VARIANTS[i]),
)
def test_a_compensated_error_does_not_grow(fast_device: Device, index: int) -> None:
    variant = VARIANTS[index]
    few, many = 16, fast_device.steps(1024, 128)
    short, long = (relative_error(fast_device, variant, tiles) for tiles in (few, many))
    assert long <= 1.2 * short, "the error grew with the number of tiles"
    plain = Variant(variant.dtype, "plain")
    assert relative_error(fast_device, plain, many) > 4 * long, "a plain sum is as good"


def test_a_sum_starts_from_its_compensation(device: Device) -> None:
    a, b = torch.eye(16), torch.diag(torch.arange(1.0, 17.0))
    # on the grid of 16: every sum is exact
    start_comp = (normals(M, N, seed=3) * 64).round() * 2.0**-19
    total = CORE.run(device, a, b, start_comp)
    assert torch.equal(total, b.double() + start_comp.double())


def test_a_plain_sum_leaves_the_compensation_alone(fast_device: Device) -> None:
    a, b = uniforms(M, 2 * K, seed=1), uniforms(2 * K, N, seed=2)
    # NaN: reading it would show
    found = Variant(torch.float32, "plain").run(fast_device, a, b)
    assert ((found - exact_product(a, b)[0]).abs() <= 2 * K * U * K).all()


@pytest.mark.parametrize("variant", [CORE, VARIANTS[4], VARIANTS[7]], ids=str)
def test_an_infinite_product_stays_infinite(fast_device: Device, variant: Variant) -> None:
    tiles = 8
    a = uniforms(M, tiles * K, seed=1).add(0.5).to(variant.dtype)
    b = uniforms(tiles * K, N, seed=2).to(variant.dtype)
    b[3 * K, 1], b[3 * K, 2], b[4 * K, 3] = math.inf, -math.inf, math.nan
    b[2 * K, 4], b[5 * K, 4] = math.inf, -math.inf
    found = variant.run(fast_device, a, b)
    assert (found[:, 1] == math.inf).all()
    assert (found[:, 2] == -math.inf).all()
    assert found[:, 3:5].isnan().all()
    assert found[:, [0, *range(5, N)]].isfinite().all()

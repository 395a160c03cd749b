"""Products through 16-bit parts, and elementwise ends of a kernel, against float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

import triton.language as tl
from block_device import Device
from gemm_kernels import activations_kernel, split_kernel, split_product_kernel
from hostile_numbers import U, normals, uniforms
from torch import Tensor

M = K = N = 16

# what is lost beside the roundings of sums, times |a| |b|
BOUNDS = {
    "bf16x3": 3 * 2.0**-16,
    "bf16x6": 4 * 2.0**-24,
    "fp16x3": 3 * 2.0**-22,
    "fp16x6": 2.0**-32,
}


def hostile() -> Tensor:
    """[1024] of the range that both dtypes have, ties and few digits among them."""
    x = normals(1024, seed=1) * 2.0 ** (uniforms(1024, seed=2) * 24 - 12).round()
    x[:6] = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, -1 - 2.0**-23, 0.0, 1.0])
    return x.clamp(-60000, 60000)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_split(device: Device, dtype: torch.dtype) -> None:
    x = hostile()
    half = dtype == torch.float16
    (parts,) = device.run(
        split_kernel, {"x_ptr": x}, {"out_ptr": (9, 1024)},
        N=1024, DTYPE=tl.float16 if half else tl.bfloat16,
    )  # fmt: skip
    scale = 2.0**11 if half else 1.0
    rest = x.double()
    for i, lost in enumerate((2.0**-11, 2.0**-22, 0.0) if half else (2.0**-8, 2.0**-16, 2.0**-24)):
        rounded = (rest * scale**i).float().to(dtype)
        assert torch.equal(parts[i], rounded.float())
        rest = rest - rounded.double() / scale**i
        # fp16 has no digits left below 2**-14, raised by the scale
        assert (rest.abs() <= lost * x.double().abs() + half * 2.0**-25 / scale**i).all()
    for copy, part in ((3, 0), (4, 0), (5, 0), (6, 1), (7, 1), (8, 2)):
        assert torch.equal(parts[copy], parts[part])


@pytest.mark.parametrize("product", BOUNDS)
def test_split_products(fast_device: Device, product: str) -> None:
    a, b = hostile()[: M * K].reshape(M, K), hostile()[512 : 512 + K * N].reshape(K, N)
    start = normals(M, N, seed=3) * 10
    (out,) = fast_device.run(
        split_product_kernel, {"a_ptr": a, "b_ptr": b, "start_ptr": start}, {"out_ptr": (M, N)},
        M=M, K=K, N=N, PRODUCT=product,
    )  # fmt: skip
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    # the first parts' sum, from start and the low products; those are added up apart
    bound = (2 * U * (K + 3)) * (size * (1 + 2.0**-7) + start.double().abs()) + BOUNDS[
        product
    ] * size
    assert ((out.double() - exact - start.double()).abs() <= bound).all()


def test_more_parts_keep_more_digits(fast_device: Device) -> None:
    # few terms, exact to add: what is left is the splitting
    a, b = torch.zeros(M, K), torch.zeros(K, N)
    a[:, 0], b[0] = normals(M, seed=1), normals(N, seed=2)
    errors = {}
    for product in BOUNDS:
        (out,) = fast_device.run(
            split_product_kernel,
            {"a_ptr": a, "b_ptr": b, "start_ptr": torch.zeros(M, N)}, {"out_ptr": (M, N)},
            M=M, K=K, N=N, PRODUCT=product,
        )  # fmt: skip
        exact = a.double() @ b.double()
        errors[product] = ((out.double() - exact) / exact).abs().max().item()
    assert 2.0**-20 < errors["bf16x3"] < 2.0**-14
    assert errors["fp16x3"] < 2.0**-19
    assert max(errors["bf16x6"], errors["fp16x6"]) <= 4 * U


def test_infinite_factors(fast_device: Device) -> None:
    a, b = uniforms(M, K, seed=1) + 0.5, uniforms(K, N, seed=2) + 0.5
    a[1, 3], a[2, 4], a[3, 5] = math.inf, -math.inf, math.nan
    for product in BOUNDS:
        (out,) = fast_device.run(
            split_product_kernel,
            {"a_ptr": a, "b_ptr": b, "start_ptr": torch.zeros(M, N)}, {"out_ptr": (M, N)},
            M=M, K=K, N=N, PRODUCT=product,
        )  # fmt: skip
        assert torch.equal(out.isfinite(), (a @ b).isfinite())
        assert (out[1] == math.inf).all() and (out[2] == -math.inf).all() and out[3].isnan().all()


@pytest.mark.parametrize("product", BOUNDS)
def test_what_a_part_cannot_hold_is_infinite(fast_device: Device, product: str) -> None:
    """In fp16 from 65520 on; bf16 has fp32's range."""
    a, b = torch.ones(M, K), torch.ones(K, N)
    a[3, 5] = 70000.0
    (out,) = fast_device.run(
        split_product_kernel,
        {"a_ptr": a, "b_ptr": b, "start_ptr": torch.zeros(M, N)}, {"out_ptr": (M, N)},
        M=M, K=K, N=N, PRODUCT=product,
    )  # fmt: skip
    expected = torch.full((M, N), float(K))
    expected[3] = math.inf if product.startswith("fp16") else 70000.0 + K - 1
    assert ((out == expected) | ((out - expected).abs() < 0.01)).all()


def test_activations(device: Device) -> None:
    x = torch.cat([normals(1000, seed=1) * 4, torch.linspace(-90, 90, 24)])
    x[:4] = torch.tensor([math.nan, math.inf, 0.0, -0.0])
    (found,) = device.run(activations_kernel, {"x_ptr": x}, {"out_ptr": (4, 1024)}, N=1024)
    wide = x.double()
    tanh = F.gelu(wide, approximate="tanh")
    for out, exact in zip(found, (F.relu(wide), F.silu(wide), F.gelu(wide), tanh), strict=True):
        assert torch.equal(out.isnan(), exact.isnan())
        known = ~exact.isnan() & (wide.abs() < math.inf)
        # 1 + erf and 1 + tanh lose what they cancel
        error = (out.double() - exact).abs()[known]
        assert (error <= 8 * U * (exact.abs() + wide.abs())[known]).all()
    assert (found[:, 1] == math.inf).all()

"""float32 and integers: arithmetic, and loops on runtime scalars."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from .bfloat16 import binary, number
from .registry import CHECKS, SEED, N, check, hostile, normals, same


@triton.jit
def _scalars(out_ptr, n, N: tl.constexpr):
    total = tl.zeros([N], tl.float32)
    for i in range(0, n):
        total += i
    if n > 3:
        total += 100
    k = n
    while k > 0:
        total += 1000
        k -= 1
    if tl.program_id(0) == 0:
        tl.store(out_ptr + tl.arange(0, N), total)
    else:
        tl.store(out_ptr + tl.arange(0, N), total, mask=tl.arange(0, N) < 0)


@check
def loops_and_branches_on_runtime_scalars() -> None:
    """int() and bool() of a one-element array: deprecated, and an error from NumPy 2.4 on."""
    out = torch.zeros(16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        _scalars[(2,)](out, 5, N=16)
    same(out, torch.full((16,), 10.0 + 100 + 5000))


FP32_OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "div": torch.div,
    "div_rn": torch.div,
    "abs": lambda x, y: x.abs(),
    "less": lambda x, y: torch.where(x < y, x, y),
    "equal": lambda x, y: torch.where(x == y, x, y),
    "maximum": lambda x, y: number(torch.maximum, x, y),
    "minimum": lambda x, y: number(torch.minimum, x, y),
    "maximum_nan": torch.maximum,
    "minimum_nan": torch.minimum,
    "sqrt_rn": lambda x, y: x.double().sqrt().float(),
}


def _fp32_op(op: str) -> None:
    x, y = hostile(torch.float32, 4096), hostile(torch.float32, 4096)
    x[:2048], y[:2048] = normals(2048), normals(2048)
    x[0], y[1] = float("nan"), float("nan")
    # which zero the maximum of +0 and -0 is stays open
    if "imum" in op:
        x, y = x + (x == 0), y + (y == 0)
    same(binary(op, x, y), FP32_OPS[op](x, y))


for _op in FP32_OPS:
    CHECKS[f"fp32_{_op}"] = lambda op=_op: _fp32_op(op)  # type: ignore[misc]


@check
def fp32_clamp_drops_nan() -> None:
    x = normals(N)
    x[0] = float("nan")
    same(binary("clamp", x, x), torch.fmin(torch.fmax(x, torch.tensor(-1.0)), torch.tensor(1.0)))


@check
def fp32_exp2_of_whole_numbers_is_exact() -> None:
    x = torch.arange(-149, 107, dtype=torch.float32)
    same(binary("exp2", x, x), torch.pow(torch.tensor(2.0).double(), x.double()).float())


@triton.jit
def _fma(x_ptr, y_ptr, z_ptr, out_ptr, N: tl.constexpr):
    offs = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    z = tl.load(z_ptr + offs)
    tl.store(out_ptr + offs, tl.fma(x, y, z))


@check
def fp32_fma_rounds_once() -> None:
    """The error of a product, which is what a fused multiply-add is used for."""
    x, y = normals(2048), normals(2048)
    product = x * y
    out = torch.empty_like(x)
    _fma[(8,)](x, y, -product, out, N=N)
    same(out, (x.double() * y.double() - product.double()).float())
    # x * y + z whose fp64 sum lies on the middle of two fp32 numbers without being it
    x[:2], y[:2] = 1 + 2.0**-12, 1 + 2.0**-12
    z = torch.full_like(x, 2.0**40)
    x[0], y[0], z[0] = 1.0, 1 + 2.0**-23, 2.0**24
    x[1], y[1], z[1] = 1.0, 1.0, 2.0**-60
    _fma[(8,)](x, y, z, out, N=N)
    assert out[0].item() == 2.0**24 + 2, "a sum just above the middle must be rounded up"
    assert out[1].item() == 1.0


@triton.jit
def _integers(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    low = ~(x > y) | ((x == 0) & (y == 0))
    tl.store(out_ptr + offs, tl.maximum(x, y))
    tl.store(out_ptr + N + offs, tl.minimum(x, y))
    tl.store(out_ptr + 2 * N + offs, x // y)
    tl.store(out_ptr + 3 * N + offs, x % y)
    tl.store(out_ptr + 4 * N + offs, low.to(tl.int32))
    tl.store(out_ptr + 5 * N + offs, x >> 2)


@check
def integers_and_masks() -> None:
    x, y = torch.randint(-999, 999, (2, N), generator=SEED, dtype=torch.int32)
    y[y == 0] = 7
    out = torch.empty(6, N, dtype=torch.int32)
    _integers[(1,)](x, y, out, N=N)
    quotient = torch.div(x, y, rounding_mode="trunc")
    expected = [torch.maximum(x, y), torch.minimum(x, y), quotient, x - quotient * y]
    expected += [(x <= y).int(), x >> 2]
    assert torch.equal(out, torch.stack(expected))


@triton.jit
def _bitcast(x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    exponent = (x.to(tl.int32, bitcast=True) >> 23) & 0xFF
    tl.store(out_ptr + offs, ((254 - exponent) << 23).to(tl.float32, bitcast=True))


@check
def bitcasts_and_shifts() -> None:
    x = torch.pow(2.0, torch.arange(-100.0, 100.0))
    x = torch.nn.functional.pad(x, (0, N - 200), value=1.0)
    out = torch.empty_like(x)
    _bitcast[(1,)](x, out, N=N)
    same(out, 1 / x)

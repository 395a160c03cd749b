"""Small kernels, each with the signature and constants it is lowered with in these tests."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

A2, A3, A5 = "Ascend910B3", "Ascend910_9392", "Ascend950PR_9589"
TARGETS = (A2, A3, A5)

Case = tuple[Any, dict[str, str], dict[str, object]]


@triton.jit
def normalise_rows(x_ptr, y_ptr, n_rows, eps, N: tl.constexpr, BLOCK_M: tl.constexpr):
    offs_n = tl.arange(0, N)
    for start in range(tl.program_id(0) * BLOCK_M, n_rows, tl.num_programs(0) * BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        mask = offs_m[:, None] < n_rows
        at = offs_m[:, None] * N + offs_n[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / N + eps)
        tl.store(y_ptr + at, (x * scale[:, None]).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def multiply(a_ptr, b_ptr, c_ptr, K, stride, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + offs[:, None] * stride + (k + offs)[None, :])
        b = tl.load(b_ptr + (k + offs)[:, None] * stride + offs[None, :])
        acc += tl.dot(a, b)
    tl.store(c_ptr + offs[:, None] * stride + offs[None, :], acc)


@triton.jit
def _hypotenuse(a, b):
    return tl.sqrt(a * a + b * b)


@triton.jit
def _largest_size(a, b):
    return tl.maximum(tl.abs(a), tl.abs(b))


@triton.jit
def _two_sum(a_high, a_low, b_high, b_low):
    total = a_high + b_high
    b_part = total - a_high
    return total, a_low + b_low + ((a_high - (total - b_part)) + (b_high - b_part))


@triton.jit
def reduce_rows(x_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr, HOW: tl.constexpr):
    offs_m = tl.arange(0, M)
    x = tl.load(x_ptr + offs_m[:, None] * N + tl.arange(0, N)[None, :])
    if HOW == "sum":
        y = tl.sum(x, axis=1)
    elif HOW == "max":
        y = tl.max(x, axis=1)
    elif HOW == "argmax":
        y = tl.argmax(x, axis=1).to(tl.float32)
    elif HOW == "hypotenuse":
        y = tl.reduce(x, 1, _hypotenuse)
    elif HOW == "largest_size":
        y = tl.reduce(x, 1, _largest_size)
    else:
        high, low = tl.reduce((x, x * 0), 1, _two_sum)
        y = high + low
    tl.store(y_ptr + offs_m, y)


@triton.jit
def type_error(x_ptr, n):
    tl.store(x_ptr, tl.load(n))


def rows(n: int = 256, block_m: int = 16) -> Case:
    signature = {"x_ptr": "*fp16", "y_ptr": "*fp16", "n_rows": "i32", "eps": "fp32"}
    return normalise_rows, signature, {"N": n, "BLOCK_M": block_m}


def product(block: int = 64) -> Case:
    signature = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "K": "i32", "stride": "i32"}
    return multiply, signature, {"BLOCK": block}


def reduction(how: str) -> Case:
    return reduce_rows, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"M": 32, "N": 64, "HOW": how}

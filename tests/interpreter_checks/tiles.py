"""Tiles: products, reductions, block pointers."""

from __future__ import annotations

import time

import torch
import triton
import triton.language as tl

from .registry import CHECKS, check, normals, same


@triton.jit
def _dot(a_ptr, b_ptr, c_ptr, TRANSPOSE: tl.constexpr, ACC: tl.constexpr, S: tl.constexpr):
    rows = tl.arange(0, S)[:, None]
    cols = tl.arange(0, S)[None, :]
    a = tl.load(a_ptr + rows * S + cols)
    if TRANSPOSE == "trans":
        b = tl.trans(tl.load(b_ptr + rows * S + cols))
    elif TRANSPOSE == "T":
        b = tl.load(b_ptr + rows * S + cols).T
    else:
        b = tl.load(b_ptr + cols * S + rows)
    tl.static_assert(b.shape[0] == S, "a transposed tile keeps its shape")
    if ACC:
        c = tl.dot(a, b, acc=tl.full([S, S], 1.0, tl.float32), input_precision="ieee")
    else:
        c = tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rows * S + cols, c)


def _dot_check(dtype: torch.dtype, transpose: str, with_acc: bool) -> None:
    size = 32
    a, b = normals(size, size, dtype=dtype), normals(size, size, dtype=dtype)
    out = torch.full((size, size), float("nan"))
    _dot[(1,)](a, b, out, TRANSPOSE=transpose, ACC=with_acc, S=size)
    exact = a.double() @ b.double().T + with_acc
    bound = size * torch.finfo(torch.float32).eps * (a.double().abs() @ b.double().abs().T + 1)
    error = (out.double() - exact).abs()
    assert (error <= bound).all(), f"off by {error.max():.3g}, allowed {bound.min():.3g}"


for _dtype in (torch.bfloat16, torch.float16, torch.float32):
    for _transpose in ("load", "trans", "T"):
        for _acc in (False, True):
            _name = f"dot_{str(_dtype)[6:]}_{_transpose}{'_acc' if _acc else ''}"
            CHECKS[_name] = lambda d=_dtype, t=_transpose, w=_acc: _dot_check(d, t, w)  # type: ignore[misc]


@triton.jit
def _reduce(x_ptr, out_ptr, OP: tl.constexpr, AXIS: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])
    if OP == "max":
        y = tl.max(x, axis=AXIS)
    elif OP == "min":
        y = tl.min(x, axis=AXIS)
    elif OP == "argmax":
        y = tl.argmax(x, axis=AXIS).to(tl.float32)
    else:
        y = tl.sum(x, axis=AXIS)
    if AXIS == 0:
        tl.store(out_ptr + tl.arange(0, C), y)
    else:
        tl.store(out_ptr + tl.arange(0, R), y)


def reduce(op: str, x: torch.Tensor, axis: int) -> torch.Tensor:
    rows, cols = x.shape
    out = torch.empty(cols if axis == 0 else rows)
    _reduce[(1,)](x, out, OP=op, AXIS=axis, R=rows, C=cols)
    return out


@check
def row_and_column_max_and_min() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = normals(16, 32, dtype=dtype)
        x[3] = float("-inf")
        for axis in (0, 1):
            same(reduce("max", x, axis), x.float().amax(axis))
            same(reduce("min", x, axis), x.float().amin(axis))


@check
def max_and_min_pass_over_nan() -> None:
    x = normals(16, 32)
    x[2, 5] = x[4, 0] = float("nan")
    x[7] = float("nan")
    lowest, highest = (x.nan_to_num(nan=value) for value in (float("-inf"), float("inf")))
    expected = lowest.amax(1), highest.amin(1)
    for row in expected:
        row[7] = float("nan")
    same(reduce("max", x, 1), expected[0])
    same(reduce("min", x, 1), expected[1])


@check
def argmax() -> None:
    x = normals(16, 32)
    same(reduce("argmax", x, 1), x.argmax(1).float())


@check
def row_sum() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = normals(16, 32, dtype=dtype)
        error = (reduce("sum", x, 1).double() - x.double().sum(1)).abs()
        # upstream 3.6 returns the sum of a bf16 tile in bf16
        assert (error <= torch.finfo(dtype).eps * x.double().abs().sum(1)).all()


@check
def max_is_not_much_slower_than_sum() -> None:
    x = normals(64, 128)

    def seconds(op: str) -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            reduce(op, x, 1)
            times.append(time.perf_counter() - start)
        return min(times)

    ratio = seconds("max") / seconds("sum")
    assert ratio < 5, f"{ratio:.0f} times as long"


@triton.jit
def _block_pointer(x_ptr, out_ptr, rows, cols, first, S: tl.constexpr):
    block = tl.make_block_ptr(x_ptr, (rows, cols), (cols, 1), (first, 0), (S, S), (1, 0))
    x = tl.load(block, boundary_check=(0, 1), padding_option="zero")
    tl.store(out_ptr + tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :], x)


@check
def block_pointers_check_both_ends() -> None:
    storage = normals(64, 16)
    x = storage[32:48]  # what lies before and after is not the tensor's
    for first in (-3, 0, 5):
        out = torch.empty(16, 16)
        _block_pointer[(1,)](x, out, 16, 16, first, S=16)
        expected = torch.zeros(16, 16)
        rows = torch.arange(16) + first
        inside = (rows >= 0) & (rows < 16)
        expected[inside] = x[rows[inside]]
        same(out, expected)

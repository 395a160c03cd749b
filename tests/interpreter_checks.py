"""Checks of Triton's interpreter against torch and exact arithmetic, one function each.

`python -m tests.interpreter_checks cured|uncured` under TRITON_INTERPRET=1 prints one JSON object:
check name -> "" or what went wrong.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable

import torch
import triton
import triton.language as tl

N = 256

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def same(found: torch.Tensor, exact: torch.Tensor) -> None:
    """Equal as bits, any NaN for any NaN."""
    assert found.dtype == exact.dtype
    wrong = (bits(found) != bits(exact)) & ~(found.isnan() & exact.isnan())
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} differ, first at {where}: "
            f"{found[tuple(where)].item()!r}, exact {exact[tuple(where)].item()!r}"
        )


def hostile(dtype: torch.dtype, count: int = 65536) -> torch.Tensor:
    """Random bit patterns: every magnitude, subnormals, infinities and NaNs among them."""
    size = dtype.itemsize
    raw = torch.randint(-(2**63), 2**63 - 1, (count * size // 8,), generator=SEED)
    return raw.view(dtype)


SEED = torch.Generator().manual_seed(0)


def normals(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=SEED).to(dtype)


# --- scalars ------------------------------------------------------------------------------------


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


# --- bfloat16 -----------------------------------------------------------------------------------


@triton.jit
def _cast(x_ptr, out_ptr, ROUNDING: tl.constexpr, N: tl.constexpr):
    offs = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, x.to(out_ptr.dtype.element_ty, fp_downcast_rounding=ROUNDING))


def cast(x: torch.Tensor, dtype: torch.dtype, rounding: str | None = None) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    _cast[(x.numel() // N,)](x, out, ROUNDING=rounding, N=N)
    return out


EVERY_BF16 = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)


@check
def bf16_load_and_store() -> None:
    same(cast(EVERY_BF16, torch.bfloat16), EVERY_BF16)


@check
def bf16_to_fp32() -> None:
    same(cast(EVERY_BF16, torch.float32), EVERY_BF16.float())


@check
def bf16_to_fp16_and_fp64() -> None:
    same(cast(EVERY_BF16, torch.float16), EVERY_BF16.half())
    same(cast(EVERY_BF16, torch.float64), EVERY_BF16.double())


@check
def fp32_to_bf16_rounds_to_nearest_even() -> None:
    x = torch.cat([normals(2048), hostile(torch.float32)])
    same(cast(x, torch.bfloat16), x.bfloat16())
    same(cast(x, torch.bfloat16, "rtne"), x.bfloat16())
    ties = (EVERY_BF16.float().view(torch.int32) | 0x8000).view(torch.float32)
    same(cast(ties, torch.bfloat16), ties.bfloat16())


@check
def fp32_to_bf16_toward_zero() -> None:
    x = normals(2048)
    truncated = (x.view(torch.int32) & -65536).view(torch.float32).bfloat16()
    same(cast(x, torch.bfloat16, "rtz"), truncated)


@check
def fp64_to_bf16_rounds_once() -> None:
    x = torch.cat([normals(2048).double(), hostile(torch.float64, 8192)])
    half = 1 + 2.0**-8  # the middle of two bf16 numbers; what follows is lost in fp32
    near = [half + 2.0**-40, half - 2.0**-40, -half - 2.0**-40, half]
    x[:4] = torch.tensor(near, dtype=torch.float64)
    found = cast(x, torch.bfloat16)
    assert found[:4].tolist() == [1 + 2.0**-7, 1.0, -1 - 2.0**-7, 1.0], found[:4]
    nearest = x.float().bfloat16()  # rounds twice: right but for near-ties
    gap = (found.double() - x).abs() - (nearest.double() - x).abs()
    assert not (gap > 0).any(), "a bf16 number nearer than the result exists"
    assert (found.isnan() == x.isnan()).all()


@check
def integers_to_and_from_bf16() -> None:
    x = torch.randint(-70000, 70000, (2048,), generator=SEED, dtype=torch.int32)
    same(cast(x, torch.bfloat16), x.float().bfloat16())
    y = normals(2048).mul(100).bfloat16()
    assert (cast(y, torch.int32) == y.int()).all()


@triton.jit
def _binary(x_ptr, y_ptr, out_ptr, OP: tl.constexpr, N: tl.constexpr):
    offs = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    if OP == "add":
        z = x + y
    elif OP == "sub":
        z = x - y
    elif OP == "mul":
        z = x * y
    elif OP == "div":
        z = x / y
    elif OP == "neg":
        z = -x
    elif OP == "abs":
        z = tl.abs(x)
    elif OP == "less":
        z = tl.where(x < y, x, y)
    elif OP == "equal":
        z = tl.where(x == y, x, y)
    elif OP == "where_scalar":
        z = tl.where(x < y, x, 0.0)
    elif OP == "maximum":
        z = tl.maximum(x, y)
    elif OP == "minimum":
        z = tl.minimum(x, y)
    elif OP == "maximum_nan":
        z = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "minimum_nan":
        z = tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "full":
        z = x + tl.full([N], 1.5, x.dtype)
    elif OP == "div_rn":
        z = tl.div_rn(x, y)
    elif OP == "sqrt_rn":
        z = tl.sqrt_rn(x)
    elif OP == "exp2":
        z = tl.exp2(x)
    elif OP == "clamp":
        z = tl.clamp(x, -1.0, 1.0)
    tl.store(out_ptr + offs, z)


def binary(op: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, float("nan"))
    _binary[(x.numel() // N,)](x, y, out, OP=op, N=N)
    return out


def number(pick: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Maximum or minimum that passes over NaN, signalling or not (torch.fmax looks which)."""
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, pick(x, y)))


BF16_OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "less": lambda x, y: torch.where(x < y, x, y),
    "equal": lambda x, y: torch.where(x == y, x, y),
    "where_scalar": lambda x, y: torch.where(x < y, x, torch.zeros_like(x)),
    "maximum": lambda x, y: number(torch.maximum, x, y),
    "minimum": lambda x, y: number(torch.minimum, x, y),
    "full": lambda x, y: x + 1.5,
}


def _bf16_op(op: str) -> None:
    x, y = hostile(torch.bfloat16, 4096), hostile(torch.bfloat16, 4096)
    x[:2048], y[:2048] = normals(2048), normals(2048)
    x[:1024].copy_(y[512:1536])
    x[7], y[7] = 1.0, 1.0
    same(binary(op, x, y), BF16_OPS[op](x, y))


for _op in BF16_OPS:
    CHECKS[f"bf16_{_op}"] = lambda op=_op: _bf16_op(op)  # type: ignore[misc]


# --- fp32 arithmetic ----------------------------------------------------------------------------

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


# --- tiles --------------------------------------------------------------------------------------


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


def main(mode: str) -> None:
    if mode == "cured":
        from flashasc import _interpreter

        _interpreter.apply()
        _interpreter.apply()
    answers = {}
    for name, function in CHECKS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                function()
            answers[name] = ""
        except Exception:
            answers[name] = traceback.format_exc()
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])

"""Kernels that trip a lint, and beside each a close relative that doesn't."""

from __future__ import annotations

import triton
import triton.language as tl
from ascend_kernels import Case

F16, F32, I32 = "*fp16", "*fp32", "*i32"


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _linear(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def _square_of_second(a, b):
    return b * b


@triton.jit
def _second(a, b):
    return b


@triton.jit
def reduce_with(x_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr, HOW: tl.constexpr):
    offs_m = tl.arange(0, M)
    x = tl.load(x_ptr + offs_m[:, None] * N + tl.arange(0, N)[None, :])
    if HOW == "square":
        y = tl.reduce(x, 1, _square_of_second)
    elif HOW == "second":
        y = tl.reduce(x, 1, _second)
    else:
        y = tl.reduce(x, 1, _add)
    tl.store(y_ptr + offs_m, y)


@triton.jit
def scan(x_ptr, y_ptr, N: tl.constexpr, HOW: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    if HOW == "cumsum":
        y = tl.cumsum(x, 0)
    elif HOW == "cumprod":
        y = tl.cumprod(x, 0)
    elif HOW == "add":
        y = tl.associative_scan(x, 0, _add)
    elif HOW == "max":
        y = tl.associative_scan(x, 0, _larger)
    elif HOW == "linear":
        _, y = tl.associative_scan((x, x), 0, _linear)
    else:
        y = tl.sum(x, 0) + x
    tl.store(y_ptr + offs, y)


@triton.jit
def scan_tile(
    x_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, SUM: tl.constexpr
):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    y = tl.cumsum(x, AXIS) if SUM else tl.associative_scan(x, AXIS, _larger)
    tl.store(y_ptr + at, y)


@triton.jit
def look_up(x_ptr, index_ptr, y_ptr, n, N: tl.constexpr, HOW: tl.constexpr):
    offs = tl.arange(0, N)
    if HOW == "gather":
        y = tl.load(x_ptr + tl.load(index_ptr + offs))
    elif HOW == "masked gather":
        mask = offs < n
        index = tl.load(index_ptr + offs, mask=mask, other=0)
        y = tl.load(x_ptr + index, mask=mask, other=0.0)
    elif HOW == "wrapped":
        y = tl.load(x_ptr + (tl.program_id(0) * N + offs) % n)
    elif HOW == "repeated":
        y = tl.load(x_ptr + offs // 4)
    elif HOW == "strided":
        y = tl.load(x_ptr + offs * n)
    elif HOW == "paged":
        # one index for the whole tile
        y = tl.load(x_ptr + tl.load(index_ptr + tl.program_id(0)) * N + offs)
    elif HOW == "pages":
        y = tl.zeros((N,), tl.float32)
        for page in range(16):
            y += tl.load(x_ptr + tl.load(index_ptr + page) * N + offs)
    elif HOW == "flip":
        y = tl.flip(tl.load(x_ptr + offs))
    elif HOW == "sort":
        y = tl.sort(tl.load(x_ptr + offs))
    else:
        y = tl.gather(tl.load(x_ptr + offs), tl.load(index_ptr + offs), 0)
    tl.store(y_ptr + offs, y)


@triton.jit
def scatter(x_ptr, index_ptr, y_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(y_ptr + tl.load(index_ptr + offs), tl.load(x_ptr + offs))


@triton.jit
def gather_rows(x_ptr, index_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr):
    offs_m, offs_n = tl.arange(0, M), tl.arange(0, N)
    index = tl.load(index_ptr + offs_m)
    rows = tl.load(x_ptr + index[:, None] * N + offs_n[None, :])
    tl.store(y_ptr + offs_m[:, None] * N + offs_n[None, :], rows)


@triton.jit
def gather_2d(x_ptr, index_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y_ptr + at, tl.load(x_ptr + tl.load(index_ptr + at)))


@triton.jit
def product_and_rows(a_ptr, b_ptr, c_ptr, sum_ptr, n, BLOCK: tl.constexpr, HOW: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    at = offs[:, None] * BLOCK + offs[None, :]
    a = tl.load(a_ptr + at)
    b = tl.load(b_ptr + at)
    if HOW == "after":
        tl.store(c_ptr + at, tl.dot(a, b))
        tl.store(sum_ptr + offs, tl.sum(a.to(tl.float32), axis=1))
    elif HOW == "after, computed":
        half = tl.exp(a.to(tl.float32)).to(a.dtype)
        tl.store(c_ptr + at, tl.dot(half, b))
        tl.store(sum_ptr + offs, tl.sum(half.to(tl.float32), axis=1))
    elif HOW == "before":
        tl.store(sum_ptr + offs, tl.sum(a.to(tl.float32), axis=1))
        tl.store(c_ptr + at, tl.dot(a, b))
    elif HOW == "right operand":
        tl.store(c_ptr + at, tl.dot(a, b))
        tl.store(sum_ptr + offs, tl.sum(b.to(tl.float32), axis=1))
    elif HOW == "two products":
        tl.store(c_ptr + at, tl.dot(a, b) + tl.dot(a, tl.trans(b)))
    elif HOW == "loaded again":
        tl.store(c_ptr + at, tl.dot(a, b))
        again = tl.load(a_ptr + at)
        tl.store(sum_ptr + offs, tl.sum(again.to(tl.float32), axis=1))
    elif HOW == "next iteration":
        acc = tl.zeros((BLOCK, BLOCK), tl.float32)
        for i in range(4):
            acc += tl.sum(a.to(tl.float32) * i, axis=1)[:, None]
            acc += tl.dot(a, tl.load(b_ptr + i * BLOCK * BLOCK + at))
        tl.store(c_ptr + at, acc)
    else:
        # as attention reads its queries
        acc = tl.zeros((BLOCK, BLOCK), tl.float32)
        for i in range(tl.maximum(n, 1)):
            acc += tl.dot(a, tl.load(b_ptr + i * BLOCK * BLOCK + at))
        tl.store(c_ptr + at, acc)


@triton.jit
def add_products(a_ptr, b_ptr, c_ptr, n, first, BLOCK: tl.constexpr, HOW: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    at = offs[:, None] * BLOCK + offs[None, :]
    b = tl.load(b_ptr + at)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    if HOW == "n":
        for i in range(n):
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "at least one":
        for i in range(tl.maximum(n, 1)):
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "cdiv":
        for i in range(tl.cdiv(tl.maximum(n, 1), BLOCK)):
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "cdiv of n":
        for i in range(tl.cdiv(n, BLOCK)):
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "constant":
        for i in range(8):
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "from first":
        for i in range(first, first + 4):
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "first to n":
        for i in range(first, n):
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "first to the later":
        for i in range(first, tl.maximum(n, first + 1)):
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "triangle":
        for i in range(tl.program_id(0) + 1):
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "own share":
        for i in range(tl.program_id(0), n, tl.num_programs(0)):
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "into acc":
        for i in range(n):
            acc = tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b, acc)
    elif HOW == "guarded":
        if n > 0:
            for i in range(n):
                acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "wrong guard":
        if n >= 0:
            for i in range(n):
                acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "other branch":
        if n < 1:
            acc += 1.0
        else:
            for i in range(n):
                acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "while":
        i = first
        while i < n:
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
            i += 1
    elif HOW == "while once":
        i = 0
        while i < tl.maximum(n, 1):
            acc += tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
            i += 1
    elif HOW == "rescaled":
        # as attention does; a vector operation
        for i in range(n):
            acc = acc * 0.5 + tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
    elif HOW == "kahan":
        # the sum goes through UB, because more than the addition reads it
        comp = tl.load(c_ptr + at)
        for i in range(n):
            product = tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b, comp)
            total = acc + product
            comp = product - (total - acc)
            acc = total
        tl.store(c_ptr + BLOCK * BLOCK + at, comp)
    elif HOW == "no product":
        for i in range(n):
            acc += tl.load(a_ptr + i * BLOCK * BLOCK + at).to(tl.float32)
    else:
        for i in range(n):
            product = tl.dot(tl.load(a_ptr + i * BLOCK * BLOCK + at), b)
            tl.store(c_ptr + (i + 1) * BLOCK * BLOCK + at, product)
    tl.store(c_ptr + at, acc)


@triton.jit
def scale(x_ptr, y_ptr, factor, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, (tl.load(x_ptr + offs) * factor).to(y_ptr.dtype.element_ty))


@triton.jit
def print_tile(x_ptr, BLOCK: tl.constexpr):
    tl.device_print("x", tl.load(x_ptr + tl.arange(0, BLOCK)))


def reducing(how: str) -> Case:
    return reduce_with, {"x_ptr": F32, "y_ptr": F32}, {"M": 16, "N": 64, "HOW": how}


def scanning(how: str) -> Case:
    return scan, {"x_ptr": F32, "y_ptr": F32}, {"N": 64, "HOW": how}


def looking_up(how: str) -> Case:
    signature = {"x_ptr": F32, "index_ptr": I32, "y_ptr": F32, "n": "i32"}
    return look_up, signature, {"N": 64, "HOW": how}


def multiplying(how: str, dtype: str = F16) -> Case:
    signature = {"a_ptr": dtype, "b_ptr": dtype, "c_ptr": F32, "sum_ptr": F32, "n": "i32"}
    return product_and_rows, signature, {"BLOCK": 64, "HOW": how}


def adding(how: str) -> Case:
    signature = {"a_ptr": F16, "b_ptr": F16, "c_ptr": F32, "n": "i32", "first": "i32"}
    return add_products, signature, {"BLOCK": 64, "HOW": how}


def scaling(factor: str) -> Case:
    return scale, {"x_ptr": F16, "y_ptr": F16, "factor": factor}, {"BLOCK": 64}


def scanning_tile(axis: int, *, sums: bool) -> Case:
    constants = {"M": 16, "N": 64, "AXIS": axis, "SUM": sums}
    return scan_tile, {"x_ptr": F32, "y_ptr": F32}, constants


def gathering(*, rows: bool) -> Case:
    signature = {"x_ptr": F32, "index_ptr": I32, "y_ptr": F32}
    return gather_rows if rows else gather_2d, signature, {"M": 16, "N": 64}


def scattering() -> Case:
    return scatter, {"x_ptr": F32, "index_ptr": I32, "y_ptr": F32}, {"N": 64}


def printing() -> Case:
    return print_tile, {"x_ptr": F32}, {"BLOCK": 64}

"""Small kernels for the tests of the native CPU route."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.ascend import libdevice

FACTOR: tl.constexpr = tl.constexpr(2.0)


@triton.jit
def scale_by_global(x):
    return x * FACTOR


@triton.jit
def doubled(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, scale_by_global(tl.load(x_ptr + offs, mask=offs < n)), mask=offs < n)


@triton.jit
def scaled(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, x * factor, mask=offs < n)


@triton.jit
def functions(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, tl.exp2(x))
    tl.store(y_ptr + n + offs, tl.exp(x))
    tl.store(y_ptr + 2 * n + offs, tl.log2(tl.abs(x)))
    tl.store(y_ptr + 3 * n + offs, tl.log(tl.abs(x)))
    tl.store(y_ptr + 4 * n + offs, tl.sqrt(tl.abs(x)))
    tl.store(y_ptr + 5 * n + offs, tl.erf(x))
    tl.store(y_ptr + 6 * n + offs, libdevice.tanh(x))
    tl.store(y_ptr + 7 * n + offs, tl.sigmoid(x))
    tl.store(y_ptr + 8 * n + offs, tl.rsqrt(tl.abs(x)))


@triton.jit
def exponentials(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, tl.exp2(x))
    tl.store(y_ptr + n + offs, tl.exp(x))


@triton.jit
def exact_functions(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, tl.floor(x))
    tl.store(y_ptr + n + offs, tl.ceil(x))
    tl.store(y_ptr + 2 * n + offs, tl.abs(x))
    tl.store(y_ptr + 3 * n + offs, tl.where(x > 0.25, x, -x))
    tl.store(y_ptr + 4 * n + offs, tl.maximum(x, 0.5))
    tl.store(y_ptr + 5 * n + offs, tl.minimum(x, 0.5))
    tl.store(y_ptr + 6 * n + offs, x / 3.0)
    tl.store(y_ptr + 7 * n + offs, tl.clamp(x, -1.0, 1.0))
    tl.store(y_ptr + 8 * n + offs, x * x + x)
    # not a number is unequal to itself
    tl.store(y_ptr + 9 * n + offs, tl.where(x != x, 1.0, 0.0))


@triton.jit
def cast_through(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0)
    tl.store(y_ptr + offs, x.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def cast_towards_zero(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, x.to(tl.float16, fp_downcast_rounding="rtz"))


@triton.jit
def integers(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    bits = (x < y).to(tl.int32) + 2 * (x <= y).to(tl.int32) + 4 * (x > y).to(tl.int32)
    bits += 8 * (x >= y).to(tl.int32) + 16 * (x == y).to(tl.int32) + 32 * (x != y).to(tl.int32)
    tl.store(z_ptr + offs, bits)
    tl.store(z_ptr + n + offs, tl.maximum(x, y).to(tl.int32))
    tl.store(z_ptr + 2 * n + offs, tl.minimum(x, y).to(tl.int32))
    tl.store(z_ptr + 3 * n + offs, (x & y).to(tl.int32))
    tl.store(z_ptr + 4 * n + offs, (x | y).to(tl.int32))
    tl.store(z_ptr + 5 * n + offs, (x ^ y).to(tl.int32))
    tl.store(z_ptr + 6 * n + offs, (x >> 3).to(tl.int32))
    tl.store(z_ptr + 7 * n + offs, (x << 2).to(tl.int32))
    tl.store(z_ptr + 8 * n + offs, (x * y + x - y).to(tl.int32))


@triton.jit
def product(
    a_ptr,
    b_ptr,
    c_ptr,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    offs_m = tl.arange(0, M)
    offs_n = tl.arange(0, N)
    offs_k = tl.arange(0, K)
    a = tl.load(a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b = tl.load(b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], tl.dot(a, b))


@triton.jit
def accumulated_product(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tile = offs[:, None] * BLOCK + offs[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + tile + k * BLOCK)
        b = tl.load(b_ptr + tile + k * BLOCK)
        acc = acc * 0.5
        acc = tl.dot(a, tl.trans(b), acc)
    tl.store(c_ptr + tile, acc)


@triton.jit
def batched_product(a_ptr, b_ptr, c_ptr, B: tl.constexpr, N: tl.constexpr):
    b = tl.arange(0, B)[:, None, None] * N * N
    offs = b + tl.arange(0, N)[None, :, None] * N + tl.arange(0, N)[None, None, :]
    tl.store(c_ptr + offs, tl.dot(tl.load(a_ptr + offs), tl.load(b_ptr + offs)))


@triton.jit
def reductions(x_ptr, row_ptr, column_ptr, M: tl.constexpr, N: tl.constexpr):
    offs_m = tl.arange(0, M)
    offs_n = tl.arange(0, N)
    x = tl.load(x_ptr + offs_m[:, None] * N + offs_n[None, :])
    tl.store(row_ptr + offs_m, tl.sum(x, axis=1))
    tl.store(row_ptr + M + offs_m, tl.max(x, axis=1))
    tl.store(row_ptr + 2 * M + offs_m, tl.min(x, axis=1))
    tl.store(column_ptr + offs_n, tl.sum(x, axis=0))
    tl.store(column_ptr + N + offs_n, tl.max(x, axis=0))


@triton.jit
def larger_magnitude(a, b):
    return tl.maximum(tl.abs(a), tl.abs(b))


@triton.jit
def own_reduction(x_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr):
    offs_m = tl.arange(0, M)
    x = tl.load(x_ptr + offs_m[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(y_ptr + offs_m, tl.reduce(x, 1, larger_magnitude))


@triton.jit
def largest_index(x_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr):
    offs_m = tl.arange(0, M)
    x = tl.load(x_ptr + offs_m[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(y_ptr + offs_m, tl.argmax(x, axis=1))


@triton.jit
def add_pairs(sum_a, err_a, sum_b, err_b):
    total = sum_a + sum_b
    part = total - sum_a
    return total, err_a + err_b + ((sum_a - (total - part)) + (sum_b - part))


@triton.jit
def scans(x_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr):
    offs = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, tl.cumsum(x, 1))
    tl.store(y_ptr + M * N + offs, tl.cumsum(x, 0))


@triton.jit
def scanned_pairs(x_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr):
    offs = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offs)
    total, error = tl.associative_scan((x, x * 0), 1, add_pairs)
    tl.store(y_ptr + offs, total + error)


@triton.jit
def rearranged(x_ptr, y_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, tl.flip(x))
    tl.store(y_ptr + N + tl.arange(0, 2 * N), tl.interleave(x, -x))
    tl.store(y_ptr + 3 * N + offs, tl.gather(x, (offs * 7) % N, 0))
    shaped = tl.permute(tl.reshape(x, (N // 16, 4, 4)), (0, 2, 1))
    tl.store(y_ptr + 4 * N + offs, tl.reshape(shaped, (N,)))


@triton.jit
def softmax_rows(x_ptr, y_ptr, stride_xm, stride_xn, n_rows, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    if row >= n_rows:
        return
    x = tl.load(x_ptr + row * stride_xm + offs * stride_xn, mask=offs < n, other=-float("inf"))
    x = x.to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + offs, p / tl.sum(p, axis=0), mask=offs < n)


@triton.jit
def gathered(x_ptr, index_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + tl.load(index_ptr + offs)))


@triton.jit
def counted(count_ptr, old_ptr, x_ptr, sum_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(old_ptr + tl.program_id(0), tl.atomic_add(count_ptr, 1))
    tl.atomic_add(sum_ptr + offs, tl.load(x_ptr + offs, mask=offs < n, other=0.0), mask=offs < n)


@triton.jit
def swapped(x_ptr, y_ptr, old_ptr, lock_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(old_ptr + offs, tl.atomic_xchg(y_ptr + offs, tl.load(x_ptr + offs)))
    tl.atomic_cas(lock_ptr, 3, 7)


@triton.jit
def mark_programs(y_ptr, value):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(y_ptr + at, at + value)


@triton.jit
def summed(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Kahan's sum of a long row, in a loop whose state is replaced in every round."""
    offs = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    lost = tl.zeros((BLOCK,), tl.float32)
    i = 0
    while i < n:
        y = tl.load(x_ptr + i * BLOCK + offs) - lost
        t = total + y
        lost = (t - total) - y
        total = t
        i += 1
    tl.store(y_ptr + offs, total)


@triton.jit
def typed(y_ptr, flag, small, large, maybe_ptr, ratio, N: tl.constexpr = 4):
    offs = tl.arange(0, N)
    value = tl.where(flag, ratio, -ratio) + small
    if maybe_ptr is not None:
        value = value + tl.load(maybe_ptr)
    tl.store(y_ptr + offs, value + (large // 1099511627776).to(tl.float32) + offs)


@triton.jit(do_not_specialize=["kept"])
def unspecialised(y_ptr, kept, dropped):
    tl.store(y_ptr, kept + 10 * dropped)


@triton.jit
def unsigned(y_ptr, x: tl.uint32):
    tl.store(y_ptr, (x >> 1).to(tl.int64))


@triton.jit
def sixty_four_bits(y_ptr, x):
    tl.store(y_ptr, x + 1)


@triton.jit
def printing(x_ptr):
    tl.device_print("x", tl.load(x_ptr + tl.arange(0, 8)))


@triton.jit
def sorting(x_ptr, y_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(y_ptr + offs, tl.sort(tl.load(x_ptr + offs)))


@triton.jit
def reducing_pairs(x_ptr, y_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    total, error = tl.reduce((x, x * 0), 0, add_pairs)
    tl.store(y_ptr, total + error)


@triton.jit
def inline_assembly(x_ptr, y_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    y = tl.inline_asm_elementwise("nop;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y_ptr + offs, y)


@triton.jit
def misspelt(x_ptr):
    tl.store(x_ptr, tl.no_such_function(1))


@triton.jit
def hungry(x_ptr, y_ptr, rounds, BLOCK: tl.constexpr):
    """A tile of 4 MB in several copies."""
    offs = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, rounds):
        total = total * 0.5 + tl.load(x_ptr + offs + i)
    tl.store(y_ptr + offs, total + tl.sum(total, axis=0))


@triton.jit
def divided(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    tl.store(z_ptr + offs, x // y)
    tl.store(z_ptr + n + offs, x % y)

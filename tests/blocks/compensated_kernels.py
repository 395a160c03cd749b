"""Wrapper kernels for the tests of `blocks.compensated`."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.compensated import (
    fast_two_sum,
    fold,
    kahan_add,
    merge,
    power_of_two,
    row_sum,
    two_sum,
)

PAIR_ROWS = ("two_sum", "fast_two_sum", "fold", "kahan_add", "merge", "merge_swapped")


@triton.jit
def pairs_kernel(a_ptr, b_ptr, comp_a_ptr, comp_b_ptr, sum_ptr, error_ptr, N: tl.constexpr):
    """Rows of the outputs, [6, N]: see PAIR_ROWS; kahan_add adds b to (a, comp_a)."""
    offs = tl.arange(0, N)
    a = tl.load(a_ptr + offs)
    b = tl.load(b_ptr + offs)
    comp_a = tl.load(comp_a_ptr + offs)
    comp_b = tl.load(comp_b_ptr + offs)
    total, error = two_sum(a, b)
    tl.store(sum_ptr + offs, total)
    tl.store(error_ptr + offs, error)
    total, error = fast_two_sum(a, b)
    tl.store(sum_ptr + N + offs, total)
    tl.store(error_ptr + N + offs, error)
    total, error = fold(a, b)
    tl.store(sum_ptr + 2 * N + offs, total)
    tl.store(error_ptr + 2 * N + offs, error)
    total, error = kahan_add(a, comp_a, b)
    tl.store(sum_ptr + 3 * N + offs, total)
    tl.store(error_ptr + 3 * N + offs, error)
    total, error = merge(a, comp_a, b, comp_b)
    tl.store(sum_ptr + 4 * N + offs, total)
    tl.store(error_ptr + 4 * N + offs, error)
    total, error = merge(b, comp_b, a, comp_a)
    tl.store(sum_ptr + 5 * N + offs, total)
    tl.store(error_ptr + 5 * N + offs, error)


@triton.jit
def chain_kernel(x_ptr, acc_ptr, comp_ptr, plain_ptr, steps, M: tl.constexpr):
    """Sum over the rows of part `program_id` of x, [parts, steps, M], one kahan_add a row."""
    part = tl.program_id(0)
    offs = tl.arange(0, M)
    acc = tl.zeros((M,), tl.float32)
    comp = tl.zeros((M,), tl.float32)
    plain = tl.zeros((M,), tl.float32)
    for step in range(0, steps):
        x = tl.load(x_ptr + (part * steps + step) * M + offs)
        acc, comp = kahan_add(acc, comp, x)
        plain += x
    tl.store(acc_ptr + part * M + offs, acc)
    tl.store(comp_ptr + part * M + offs, comp)
    tl.store(plain_ptr + part * M + offs, plain)


@triton.jit
def merge_chain_kernel(acc_ptr, comp_ptr, out_acc_ptr, out_comp_ptr, parts, M: tl.constexpr):
    """Merge the rows of (acc, comp), [parts, M] each, first to last."""
    offs = tl.arange(0, M)
    acc = tl.load(acc_ptr + offs)
    comp = tl.load(comp_ptr + offs)
    for part in range(1, parts):
        other = tl.load(acc_ptr + part * M + offs)
        other_comp = tl.load(comp_ptr + part * M + offs)
        acc, comp = merge(acc, comp, other, other_comp)
    tl.store(out_acc_ptr + offs, acc)
    tl.store(out_comp_ptr + offs, comp)


@triton.jit
def row_sum_kernel(x_ptr, total_ptr, comp_ptr, M: tl.constexpr, N: tl.constexpr):
    """row_sum of x, [M, N]."""
    rows = tl.arange(0, M)
    x = tl.load(x_ptr + rows[:, None] * N + tl.arange(0, N)[None, :])
    total, comp = row_sum(x)
    tl.store(total_ptr + rows, total)
    tl.store(comp_ptr + rows, comp)


@triton.jit
def power_of_two_kernel(exponent_ptr, out_ptr, N: tl.constexpr):
    """power_of_two of N exponents."""
    offs = tl.arange(0, N)
    tl.store(out_ptr + offs, power_of_two(tl.load(exponent_ptr + offs)))

"""Kernels as people write them for triton-ascend: none of them knows of flashasc."""

import triton
import triton.language as tl


@triton.jit
def rms_norm(
    X,
    W,
    Y,
    RSTD,
    stride_x,
    stride_y,
    n_rows,
    n_cols,
    eps,
    BLOCK_SIZE: tl.constexpr,
):
    """y = x / sqrt(mean(x^2) + eps) * w, a row at a time, rows shared out over the cores."""
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    w = tl.load(W + cols, mask=mask, other=0.0)
    for row in range(pid, n_rows, tl.num_programs(0)):
        x = tl.load(X + row * stride_x + cols, mask=mask, other=0.0).to(tl.float32)
        rstd = 1 / tl.sqrt(tl.sum(x * x, axis=0) / n_cols + eps)
        tl.store(RSTD + row, rstd)
        y = x * rstd * w
        tl.store(Y + row * stride_y + cols, y, mask=mask)


@triton.jit
def softmax_kernel(
    output_ptr, input_ptr, row_stride, n_rows, n_cols,
    XBLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """The rows' softmax, XBLOCK rows at a time."""
    pid = tl.program_id(0)
    for start in range(pid * XBLOCK, n_rows, tl.num_programs(0) * XBLOCK):
        rows = start + tl.arange(0, XBLOCK)[:, None]
        cols = tl.arange(0, BLOCK_SIZE)[None, :]
        mask = (rows < n_rows) & (cols < n_cols)
        x = tl.load(input_ptr + rows * row_stride + cols, mask=mask, other=-float("inf"))
        x = x - tl.max(x, 1)[:, None]
        num = tl.exp(x.to(tl.float32))
        out = num / tl.sum(num, 1)[:, None]
        tl.store(output_ptr + rows * row_stride + cols, out, mask=mask)


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128}),
    ],
    key=["M", "N", "K"],
)
@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr = "",
):  # fmt: skip
    """c = activation(a @ b)."""
    pid = tl.program_id(0)
    num_n = tl.cdiv(N, BLOCK_N)
    offs_m = (pid // num_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (pid % num_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        a = tl.load(a_ptrs, mask=(offs_m[:, None] < M) & (offs_k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(offs_k[:, None] < left) & (offs_n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == "silu":
        acc = acc * tl.sigmoid(acc)
    c = acc.to(c_ptr.dtype.element_ty)
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, c, mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))

"""A matrix product from blocks, whose error does not grow with K.

`python examples/gemm.py`: on a GPU it runs there; elsewhere natively, as lowered for Ascend.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blocks.gemm import gemm_tile
from blocks.layout import store_block
from flashasc import native


@triton.jit  # type: ignore[untyped-decorator]
def gemm_kernel(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    METHOD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of c = a @ b a program."""
    start_m = tl.program_id(0) * BLOCK
    start_n = tl.program_id(1) * BLOCK
    acc, comp = gemm_tile(
        a_ptr, b_ptr, start_m, start_n, 0, K, M, N,
        stride_am, stride_ak, stride_bk, stride_bn, BLOCK, BLOCK, BLOCK, METHOD,
    )  # fmt: skip
    store_block(c_ptr, acc + comp, start_m, M, start_n, N, stride_cm, stride_cn, False)


def gemm(a: Tensor, b: Tensor, method: str = "kahan", block: int = 32) -> Tensor:
    """a @ b of any strides and sizes; method is "kahan" or "plain"."""
    (M, K), N = a.shape, b.shape[1]
    c = a.new_empty(M, N, dtype=torch.float32)
    names = ("stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn")
    strides = dict(zip(names, (*a.stride(), *b.stride(), *c.stride()), strict=True))
    arguments = {"a_ptr": a, "b_ptr": b, "c_ptr": c, "M": M, "N": N, "K": K, **strides}
    constants = {"METHOD": method, "BLOCK": block}
    grid = (triton.cdiv(M, block), triton.cdiv(N, block))
    if a.is_cuda:
        # a product fused into a sum is not the number whose rounding error comes next
        gemm_kernel[grid](**arguments, **constants, enable_fp_fusion=False)
    else:
        native.launch(gemm_kernel, grid, arguments, constants)
    return c


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for K in (1000, 100_000):
        a, b = torch.rand(50, K, device=device), torch.rand(K, 40, device=device)
        exact = a.double() @ b.double()
        for method in ("plain", "kahan"):
            error = (gemm(a, b, method) - exact).norm() / exact.norm()
            print(f"K {K:>6}  {method}  relative error {error:.1e}")

"""A new attention written from blocks: sigmoid instead of softmax, its sums compensated.

out = sum over keys of sigmoid(q . k / sqrt(D) - log(Sk)) v (Ramapuram et al., arXiv:2409.04431).
python examples/sigmoid_attention.py runs it on a GPU, or natively on the CPU.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from blocks.gemm import accumulate_product, dot
from blocks.layout import advance, load_tile, store_tile
from blocks.masking import within


@triton.jit
def sigmoid_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, Sq, Sk, scale, shift,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head; q, k, v and out are contiguous [heads, length, D]."""
    start_m, head = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    k_ptr, v_ptr = advance(k_ptr, head, Sk * D), advance(v_ptr, head, Sk * D)
    q = load_tile(
        advance(q_ptr, head, Sq * D), start_m, Sq, D, 1, D, BLOCK_M, D, CHECK_ROWS=True, WIDE=False
    )
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    comp = tl.zeros((BLOCK_M, D), tl.float32)
    for start_n in range(0, Sk, BLOCK_N):
        k = load_tile(k_ptr, start_n, Sk, D, 1, D, BLOCK_N, D, CHECK_ROWS=True, WIDE=False)
        v = load_tile(v_ptr, start_n, Sk, D, 1, D, BLOCK_N, D, CHECK_ROWS=True, WIDE=False)
        scores = dot(q, tl.trans(k), "ieee") * scale + shift
        seen = within(start_n + tl.arange(0, BLOCK_N), Sk)[None, :]
        weights = tl.where(seen, 1.0 / (1.0 + tl.exp(-scores)), 0.0).to(v.dtype)
        acc, comp = accumulate_product(acc, comp, weights, v, "kahan", "ieee")
    store_tile(advance(out_ptr, head, Sq * D), acc + comp, start_m, Sq, D, 1, D, WIDE=False)


def sigmoid_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sigmoid attention of contiguous [heads, length, D]; D is 16, 32, 64 or 128."""
    out, (heads, Sq, D), Sk = torch.empty_like(q), q.shape, k.shape[1]
    grid, facts = (triton.cdiv(Sq, 32), heads), (Sq, Sk, D**-0.5, -math.log(Sk))
    sigmoid_attention_kernel[grid](q, k, v, out, *facts, D=D, BLOCK_M=32, BLOCK_N=32)
    return out


if __name__ == "__main__":
    from flashasc import native

    if not torch.cuda.is_available():
        native.install()
    q, k, v = torch.randn(3, 2, 300, 64, device="cuda" if torch.cuda.is_available() else "cpu")
    exact = (q.double() @ k.double().mT / 8 - math.log(300)).sigmoid() @ v.double()
    print(f"largest error on {q.device}: {(sigmoid_attention(q, k, v) - exact).abs().max():.1e}")

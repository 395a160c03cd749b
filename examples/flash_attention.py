"""FlashAttention's forward in textbook form, written from blocks.

python examples/flash_attention.py runs it on a GPU, or natively on the CPU.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
import torch
import triton
import triton.language as tl
from torch import Tensor

from blocks.constants import LOG2E, NEG_INF
from blocks.gemm import dot
from blocks.layout import advance, load_tile, store_tile
from blocks.masking import within
from blocks.softmax import online_finalize, online_init, online_update


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, Sq, Sk, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head; q, k, v and out are contiguous [heads, length, D]."""
    start_m, head = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    k_ptr, v_ptr = advance(k_ptr, head, Sk * D), advance(v_ptr, head, Sk * D)
    q = load_tile(
        advance(q_ptr, head, Sq * D), start_m, Sq, D, 1, D, BLOCK_M, D, CHECK_ROWS=True, WIDE=False
    )
    pivot, total, total_c, lse, lse_c, acc, acc_c = online_init(BLOCK_M, D, tl.float32)
    for start_n in range(0, Sk, BLOCK_N):
        k = load_tile(k_ptr, start_n, Sk, D, 1, D, BLOCK_N, D, CHECK_ROWS=True, WIDE=False)
        v = load_tile(v_ptr, start_n, Sk, D, 1, D, BLOCK_N, D, CHECK_ROWS=True, WIDE=False)
        scores = dot(q, tl.trans(k), "ieee") * (scale * LOG2E)
        scores = tl.where(within(start_n + tl.arange(0, BLOCK_N), Sk)[None, :], scores, NEG_INF)
        pivot, total, total_c, lse, lse_c, acc, acc_c = online_update(
            pivot, total, total_c, lse, lse_c, acc, acc_c, scores, v,
            METHOD=METHOD, SPLIT=False, WITH_LSE=False, NATURAL=False, DOT_PRECISION="ieee",
        )  # fmt: skip
    out, _ = online_finalize(pivot, total, total_c, lse, lse_c, acc, acc_c, False, False, False)
    store_tile(advance(out_ptr, head, Sq * D), out, start_m, Sq, D, 1, D, WIDE=False)


def attention(q: Tensor, k: Tensor, v: Tensor, method: str = "plain") -> Tensor:
    """softmax(q @ k^T / sqrt(D)) @ v of contiguous [heads, length, D]; D is 16, 32, 64 or 128."""
    out, (heads, Sq, D) = torch.empty_like(q), q.shape
    grid, tile = (triton.cdiv(Sq, 32), heads), {"BLOCK_M": 32, "BLOCK_N": 32, "METHOD": method}
    attention_kernel[grid](q, k, v, out, Sq, k.shape[1], D**-0.5, D=D, **tile)
    return out


if __name__ == "__main__":
    from flashasc import native

    if not torch.cuda.is_available():
        native.install()
    q, k, v = torch.randn(3, 2, 300, 64, device="cuda" if torch.cuda.is_available() else "cpu")
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    print(f"largest error on {q.device}: {(attention(q, k, v) - exact).abs().max():.1e}")

"""RMS norm written from blocks: rows of any length, their sums of squares compensated.

python examples/rms_norm.py runs it on a GPU, or natively on the CPU as lowered for an Ascend NPU.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
import torch
import triton
import triton.language as tl
from torch import Tensor

from blocks.layout import load_spread, store_block
from blocks.reduce import accumulate, normalised, row_total


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, out_ptr, rows, numbers, eps, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Normalise rows [program_id * BLOCK_M, ...) of a contiguous [rows, numbers]."""
    start_m = tl.program_id(0) * BLOCK_M
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    comp = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start_n in range(0, numbers, BLOCK_N):
        x = load_spread(
            x_ptr, start_m, rows, start_n, numbers, numbers, 1, "full", BLOCK_M, BLOCK_N, False
        ).to(tl.float32)
        acc, comp = accumulate(acc, comp, x * x, "kahan")
    total, error = row_total(acc, comp, "kahan")
    mean_square = ((total + error) / numbers)[:, None]
    for start_n in range(0, numbers, BLOCK_N):
        x = load_spread(
            x_ptr, start_m, rows, start_n, numbers, numbers, 1, "full", BLOCK_M, BLOCK_N, False
        ).to(tl.float32)
        weight = load_spread(
            weight_ptr, 0, 1, start_n, numbers, 0, 1, "columns", BLOCK_M, BLOCK_N, False
        )
        y = normalised(x, mean_square, mean_square, eps, False) * weight.to(tl.float32)
        store_block(out_ptr, y, start_m, rows, start_n, numbers, numbers, 1, False)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x**2) + eps) * weight of a contiguous [rows, numbers]."""
    out = torch.empty_like(x)
    rows, numbers = x.shape
    grid = (triton.cdiv(rows, 4),)
    rms_norm_kernel[grid](x, weight, out, rows, numbers, eps, BLOCK_M=4, BLOCK_N=256)
    return out


if __name__ == "__main__":
    from flashasc import native

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        native.install()
    x, weight = torch.randn(37, 1000, device=device), torch.rand(1000, device=device)
    exact = torch.nn.functional.rms_norm(x.double(), (1000,), weight.double(), 1e-6)
    print(f"largest error on {device}: {(rms_norm(x, weight) - exact).abs().max():.1e}")

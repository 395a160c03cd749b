"""Give a PyTorch model that is there flashasc's attention, without training anything.

    python examples/swap_attention.py

Two ways: modules replaced, for `torch.nn.MultiheadAttention`; calls routed, for code that calls
`F.scaled_dot_product_attention`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import flashasc


class Block(torch.nn.Module):
    """What people write."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Causal self-attention of x, [B, S, width]."""
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return x + out


@torch.inference_mode()
def main() -> None:
    """Swap both ways and print how far the outputs are from PyTorch's."""
    torch.manual_seed(0)
    x = torch.randn(2, 100, 64)
    padding = torch.arange(100).expand(2, 100) >= torch.tensor([[100], [70]])

    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    before = encoder(x, src_key_padding_mask=padding)
    names = flashasc.nn.replace_attention(encoder)
    after = encoder(x, src_key_padding_mask=padding)
    difference = (after - before)[~padding].abs().max()
    print(f"replaced {', '.join(names)}; largest difference {difference:.1e}")

    block = Block(64, 4).eval()
    before = block(x)
    with flashasc.route_sdpa() as calls:
        after = block(x)
    difference = (after - before).abs().max()
    print(f"routed {calls.taken} call, left {len(calls.left)}; largest difference {difference:.1e}")


if __name__ == "__main__":
    main()

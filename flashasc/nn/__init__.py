"""Attention as modules: bare, as `torch.nn.MultiheadAttention` has it, and with grouped heads.

| module | parameters |
|---|---|
| `Attention` | none: takes q, k and v, holds the options of `flashasc.attention` |
| `MultiheadAttention` | those of `torch.nn.MultiheadAttention`, in whose place it stands |
| `GroupedQueryAttention` | those of a decoder's attention: projections, rotary positions |

`replace_attention(model)` puts the second in place of every `torch.nn.MultiheadAttention` of a
model, with the parameters that are there.
"""

from .attention import Attention
from .grouped import GroupedQueryAttention
from .multihead import MultiheadAttention
from .replace import replace_attention
from .rotary import RotaryEmbedding

__all__ = [
    "Attention",
    "GroupedQueryAttention",
    "MultiheadAttention",
    "RotaryEmbedding",
    "replace_attention",
]

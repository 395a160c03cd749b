"""Fused attention for Ascend NPUs, in Triton, whose accuracy does not fall with the sequence."""

from .attention import attention
from .caches import KVCache, PagedKVCache
from .decoding import decode
from .inspection import check, explain
from .merging import merge_attention_states

__version__ = "0.1.0.dev0"

__all__ = [
    "KVCache",
    "PagedKVCache",
    "attention",
    "check",
    "decode",
    "explain",
    "merge_attention_states",
]

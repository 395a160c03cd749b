"""Fused attention for Ascend NPUs, in Triton, whose accuracy does not fall with the sequence."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .attention import attention
from .inspection import check, explain

if TYPE_CHECKING:
    from . import nn
    from .caches import KVCache, PagedKVCache
    from .decoding import decode
    from .merging import merge_attention_states
    from .routing import route_sdpa
    from .sdpa import scaled_dot_product_attention

__version__ = "0.1.0.dev0"

__all__ = [
    "KVCache",
    "PagedKVCache",
    "attention",
    "check",
    "decode",
    "explain",
    "merge_attention_states",
    "nn",
    "route_sdpa",
    "scaled_dot_product_attention",
]

# imported when first asked for: who only calls `attention` does not wait for them
_LATER = {
    "KVCache": "caches",
    "PagedKVCache": "caches",
    "decode": "decoding",
    "merge_attention_states": "merging",
    "route_sdpa": "routing",
    "scaled_dot_product_attention": "sdpa",
}


def __getattr__(name: str) -> Any:
    if name == "nn":
        return importlib.import_module(".nn", __name__)
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Everything a caller can get wrong, checked before anything is computed."""

from .arguments import Arguments
from .attention import validate_attention
from .decoding import (
    DecodeFacts,
    cache_tensors,
    check_cache,
    new_tokens,
    paged_tensors,
    validate_decode,
)
from .derivatives import no_forward_mode
from .merging import validate_merge
from .products import validate_bmm, validate_linear, validate_matmul
from .values import check_values

__all__ = [
    "Arguments",
    "DecodeFacts",
    "cache_tensors",
    "check_cache",
    "check_values",
    "new_tokens",
    "no_forward_mode",
    "paged_tensors",
    "validate_attention",
    "validate_bmm",
    "validate_decode",
    "validate_linear",
    "validate_matmul",
    "validate_merge",
]

"""Everything a caller can get wrong, checked before anything is computed."""

from .arguments import Arguments
from .attention import validate_attention
from .caches import (
    cache_tensors,
    check_cache,
    count_of,
    counts_of,
    may_write,
    not_a_cache,
    paged_tensors,
    pages_are_handed_out,
    pages_fit,
    sequence_of,
    still_a_cache,
)
from .decoding import DecodeFacts, validate_append, validate_decode
from .derivatives import no_transforms
from .merging import validate_merge
from .multihead import validate_multihead
from .products import validate_bmm, validate_linear, validate_matmul
from .sdpa import validate_sdpa
from .values import check_values

__all__ = [
    "Arguments",
    "DecodeFacts",
    "cache_tensors",
    "check_cache",
    "check_values",
    "count_of",
    "counts_of",
    "may_write",
    "no_transforms",
    "not_a_cache",
    "paged_tensors",
    "pages_are_handed_out",
    "pages_fit",
    "sequence_of",
    "still_a_cache",
    "validate_append",
    "validate_attention",
    "validate_bmm",
    "validate_decode",
    "validate_linear",
    "validate_matmul",
    "validate_merge",
    "validate_multihead",
    "validate_sdpa",
]

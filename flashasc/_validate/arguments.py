"""What a caller of `flashasc.attention` passed, before anybody looked at it."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._problem import Extras


class Arguments(NamedTuple):
    """The arguments of `flashasc.attention`, with its defaults; nothing is known of their types."""

    q: Any
    k: Any
    v: Any
    layout: Any = "BNSD"
    causal: Any = False
    causal_align: Any = "bottom_right"
    scale: Any = None
    window: Any = None
    softcap: Any = None
    mask: Any = None
    bias: Any = None
    alibi_slopes: Any = None
    sinks: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    max_seqlen_q: Any = None
    max_seqlen_k: Any = None
    kv_lens: Any = None
    precision: Any = "compensated"
    out_dtype: Any = None
    return_lse: Any = False
    impl: Any = "auto"

    @property
    def extras(self) -> Extras:
        """The tensors beside q, k and v."""
        return Extras(
            self.mask,
            self.bias,
            self.alibi_slopes,
            self.sinks,
            self.cu_seqlens_q,
            self.cu_seqlens_k,
            self.kv_lens,
        )

    @property
    def options(self) -> tuple[Any, ...]:
        """What is no tensor."""
        return (*self[3:9], *self[15:17], *self[18:])

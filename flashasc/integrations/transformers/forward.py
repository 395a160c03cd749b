"""Attention as Transformers calls it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._dispatch import Impl
from ..._problem import Precision
from ...attention import attention
from .options import reject_others

__all__ = ["attention_forward"]


class _Packed(NamedTuple):
    """Where packed sequences start and end; all None where there are none."""

    cu_seq_lens_q: Tensor | None
    cu_seq_lens_k: Tensor | None
    max_length_q: Any
    max_length_k: Any


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: Any = None,
    max_length_k: Any = None,
    precision: Precision = "compensated",
    impl: Impl = "auto",
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer.

    Args:
        module: the layer; its `is_causal` says whether it is a decoder's.
        query: [B, Hq, Sq, D].
        key, value: [B, Hk, Sk, D], those of the cache included.
        attention_mask: None; bool, True where a query may see a key; or float, added to the scores.
            Broadcasts to [B, Hq, Sq, Sk] and holds everything: causality, padding, window, chunks.
        dropout: must be 0.
        scaling: factor of the scores; None: 1 / sqrt(D).
        is_causal: instead of the module's.
        sliding_window: keys that a query sees, its own among them; counts without a mask alone,
            and on both sides where not causal.
        softcap: of the scores.
        s_aux: [Hq]. Sinks.
        position_bias: added to the scores.
        cu_seq_lens_q, cu_seq_lens_k: [sequences + 1] integers. Sequences packed into a batch of 1.
        max_length_q, max_length_k: the longest of them.
        precision, impl: as for `flashasc.attention`; given by `register`.
        options: whatever else the model passes, see `options.py`.

    Returns:
        ([B, Sq, Hq, D], None).

    Raises:
        NotImplementedError: dropout, or an option that is not known.
        TypeError, ValueError: a mask that is neither bool nor float, or of the wrong shape; packed
            sequences in a batch of more than 1.
        What else `flashasc.attention` raises.
    """
    if dropout:
        raise NotImplementedError(
            f"attention dropout of {dropout} in training is not supported; set it to 0 in the "
            "model's config (attention_dropout, attention_probs_dropout_prob), or call .eval()"
        )
    reject_others(options, module)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    mask, bias = _mask_and_bias(attention_mask, position_bias)
    packed = _Packed(cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    call: dict[str, Any] = {"scale": scaling, "softcap": softcap, "sinks": s_aux}
    call |= {"precision": precision, "impl": impl}
    if packed.cu_seq_lens_q is not None or packed.cu_seq_lens_k is not None:
        _check_packed(query, packed)
        if attention_mask is None and position_bias is None:
            return _packed(query, key, value, packed, is_causal, sliding_window, call), None
        # whoever made the mask may not have known of the sequences
        within = _same_sequence(packed, query.shape[2], key.shape[2])
        mask = within if mask is None else mask & within
    out = _padded(
        query, key, value, mask, bias, is_causal and attention_mask is None, sliding_window, call
    )
    return out, None


def _padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    sliding_window: int | None,
    call: dict[str, Any],
) -> Tensor:
    """[B, Sq, Hq, D] of a batch; `causal` where no mask says so."""
    queries, keys = query.shape[2], key.shape[2]
    # One query is the last of all. Of several, without a mask, the first is: either there are as
    # many keys, or a static cache holds room for later ones behind those of these queries.
    causal = causal and queries > 1
    out: Tensor = attention(
        *(x.transpose(1, 2) for x in (query, key, value)),
        layout="BSND",
        causal=causal,
        causal_align="top_left" if causal else "bottom_right",
        window=None if mask is not None else _window(sliding_window, keys, causal or queries == 1),
        mask=mask,
        bias=bias,
        **call,
    )
    return out


def _packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: _Packed,
    causal: bool,
    sliding_window: int | None,
    call: dict[str, Any],
) -> Tensor:
    """[1, tokens, Hq, D] of packed sequences, whose masks are their lengths."""
    longest = [None if x is None else int(x) for x in packed[2:]]
    keys = key.shape[2] if longest[1] is None else longest[1]
    out: Tensor = attention(
        *(x[0].transpose(0, 1) for x in (query, key, value)),
        layout="TND",
        causal=causal,
        window=_window(sliding_window, keys, causal),
        cu_seqlens_q=packed.cu_seq_lens_q,
        cu_seqlens_k=packed.cu_seq_lens_k,
        max_seqlen_q=longest[0],
        max_seqlen_k=longest[1],
        **call,
    )
    return out[None]


def _mask_and_bias(
    attention_mask: Tensor | None, position_bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    if attention_mask is None:
        return None, position_bias
    if not isinstance(attention_mask, Tensor):
        raise TypeError(
            "attention_mask must be a torch.Tensor or None; got "
            f"{type(attention_mask).__name__}, made for another implementation"
        )
    if attention_mask.dim() != 4:
        raise ValueError(
            "attention_mask must have 4 dimensions, [B, 1 or Hq, Sq, Sk], when it gets to a layer; "
            f"got {tuple(attention_mask.shape)}. Was the model built before register() was called?"
        )
    if attention_mask.dtype == torch.bool:
        return attention_mask, position_bias
    if not attention_mask.is_floating_point():
        raise TypeError(
            "attention_mask must be bool, True = may be seen, or float, added to the scores; got "
            f"{attention_mask.dtype}"
        )
    return None, attention_mask if position_bias is None else attention_mask + position_bias


def _window(size: int | None, keys: int, causal: bool) -> tuple[int | None, int | None] | None:
    """(left, right) of a sliding window as Transformers counts it, where it hides anything."""
    if size is None or keys <= size:
        return None
    return (size - 1, 0 if causal else size - 1)


def _check_packed(query: Tensor, packed: _Packed) -> None:
    for name, ends in packed._asdict().items():
        if ends is None and name.startswith("cu_"):
            raise ValueError(f"cu_seq_lens_q and cu_seq_lens_k belong together; {name} is None")
    if query.shape[0] != 1:
        raise ValueError(
            "cu_seq_lens_q and cu_seq_lens_k are for sequences packed into a batch of 1; got a "
            f"batch of {query.shape[0]}"
        )


def _same_sequence(packed: _Packed, queries: int, keys: int) -> Tensor:
    """[1, 1, Sq, Sk] bool: query and key belong to one packed sequence."""
    of = [
        torch.searchsorted(ends, torch.arange(size, device=ends.device), right=True)
        for ends, size in zip(packed[:2], (queries, keys), strict=True)
        if ends is not None
    ]
    return (of[0][:, None] == of[1])[None, None]

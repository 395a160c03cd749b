"""The facts of one attention call, as validated: what every later layer reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Layout = Literal["BNSD", "BSND", "TND"]
Precision = Literal["standard", "compensated", "high"]


class Extras(NamedTuple):
    """The tensors of a call beside q, k and v, as the caller gave them."""

    mask: Tensor | None = None
    """bool, broadcasts to [B, Hq, Sq, Sk]; True where a query may see a key."""
    bias: Tensor | None = None
    """Any float dtype, broadcasts to [B, Hq, Sq, Sk]."""
    alibi_slopes: Tensor | None = None
    """[Hq] or [B, Hq], any float dtype."""
    sinks: Tensor | None = None
    """[Hq], any float dtype, natural-log units."""
    cu_seqlens_q: Tensor | None = None
    """[B + 1] int32 or int64: where each packed sequence of queries starts, and the last ends."""
    cu_seqlens_k: Tensor | None = None
    """[B + 1] int32 or int64: the same of keys."""
    kv_lens: Tensor | None = None
    """[B] int32 or int64: how many keys of each sequence are valid."""
    diagonals: Tensor | None = None
    """[B] int32 or int64: query i of each sequence is aligned with key i + diagonal, whatever
    the lengths say; for parts of longer sequences."""


@dataclass(frozen=True)
class AttentionProblem:
    """One validated attention call.

    Sizes: B batch, Hq query heads, Hk key/value heads, Sq queries, Sk keys, D size of a query or
    key, Dv size of a value. In layout TND B is the number of sequences, and Sq and Sk are the
    largest lengths that were announced, or the number of tokens where none was.
    """

    B: int
    Hq: int
    Hk: int
    Sq: int
    Sk: int
    D: int
    Dv: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    device: torch.device
    layout: Layout
    causal: bool
    """No query sees a key to the right of the one that it is aligned with."""
    diagonal: int
    """Query i is aligned with key i + diagonal; 0 in layout TND, see `bottom_right`."""
    scale: float
    precision: Precision
    with_lse: bool
    in_pieces: bool = True
    """Head vectors of q, k and v lie in one piece each (last stride 1), or their columns do; rows
    of a mask and a bias do."""
    bottom_right: bool = True
    """The last query is aligned with the last key (of each sequence), not the first with the
    first."""
    softcap: float | None = None
    window_left: int | None = None
    """How many keys to the left of the aligned one a query sees; None: all."""
    window_right: int | None = None
    """The same to the right; always None where `causal`, which hides them all."""
    has_mask: bool = False
    has_bias: bool = False
    has_alibi: bool = False
    has_sinks: bool = False
    has_kv_lens: bool = False
    has_diagonals: bool = False
    """Each sequence brings its own diagonal, see `Extras.diagonals`."""
    tokens_q: int = 0
    """Queries of all sequences of a packed batch; 0 in other layouts."""
    tokens_k: int = 0
    """Keys of all sequences of a packed batch; 0 in other layouts."""

    @property
    def packed(self) -> bool:
        """Sequences lie one after another, without a batch dimension."""
        return self.layout == "TND"

    @property
    def score_options(self) -> frozenset[str]:
        """The options in use that a kernel pays for in every tile of scores."""
        used = {
            "window": self.window_left is not None or self.window_right is not None,
            "softcap": self.softcap is not None,
            "mask": self.has_mask,
            "bias": self.has_bias,
            "alibi": self.has_alibi,
        }
        return frozenset(name for name, is_used in used.items() if is_used)

    @property
    def group(self) -> int:
        """Query heads that share one key/value head; 1 where there are no heads."""
        return self.Hq // self.Hk if self.Hk else 1

    @property
    def reach_right(self) -> int | None:
        """How many keys to the right of the aligned one a query sees; None: all."""
        return 0 if self.causal else self.window_right

    @property
    def empty(self) -> bool:
        """Nothing to compute: no output element, or no key to attend to."""
        sizes = (self.B, self.Hq, self.Sq, self.Sk, self.Dv)
        return 0 in sizes or (self.packed and 0 in (self.tokens_q, self.tokens_k))


def attention_problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    extras: Extras,
    *,
    scale: float,
    softcap: float | None,
    causal: bool,
    bottom_right: bool,
    window_left: int | None,
    window_right: int | None,
    layout: Layout,
    precision: Precision,
    out_dtype: torch.dtype,
    with_lse: bool,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
) -> AttentionProblem:
    """The facts of a call whose arguments are right.

    Args:
        q: [B, Hq, Sq, D] view, whatever the layout; [Hq, tokens, D] for layout TND.
        k, v: likewise.
        extras: the other tensors.
        scale, ...: as the fields of `AttentionProblem`; the largest lengths as for
            `flashasc.attention`.
    """
    tokens_q = tokens_k = 0
    if layout == "TND":
        assert extras.cu_seqlens_q is not None
        B = extras.cu_seqlens_q.shape[0] - 1
        tokens_q, tokens_k = q.shape[1], k.shape[1]
        Sq = tokens_q if max_seqlen_q is None else max_seqlen_q
        Sk = tokens_k if max_seqlen_k is None else max_seqlen_k
    else:
        B, Sq, Sk = q.shape[0], q.shape[2], k.shape[2]
    return AttentionProblem(
        B=B,
        Hq=q.shape[-3],
        Hk=k.shape[-3],
        Sq=Sq,
        Sk=Sk,
        D=q.shape[-1],
        Dv=v.shape[-1],
        dtype=q.dtype,
        out_dtype=out_dtype,
        device=q.device,
        layout=layout,
        causal=causal,
        diagonal=Sk - Sq if bottom_right and layout != "TND" else 0,
        scale=scale,
        precision=precision,
        with_lse=with_lse,
        in_pieces=_in_pieces(q, k, v) and _rows_in_pieces(extras.mask, extras.bias),
        bottom_right=bottom_right,
        softcap=softcap,
        window_left=window_left,
        window_right=window_right,
        has_mask=extras.mask is not None,
        has_bias=extras.bias is not None,
        has_alibi=extras.alibi_slopes is not None,
        has_sinks=extras.sinks is not None,
        has_kv_lens=extras.kv_lens is not None,
        has_diagonals=extras.diagonals is not None,
        tokens_q=tokens_q,
        tokens_k=tokens_k,
    )


def heads_first(x: Tensor, layout: Layout) -> Tensor:
    """View [B, H, S, D] of a tensor in its layout, or [H, tokens, D] of one in layout TND.

    The same call turns such a view back.
    """
    match layout:
        case "BSND":
            return x.transpose(1, 2)
        case "TND":
            return x.transpose(0, 1)
    return x


def _rows_in_pieces(*tensors: Tensor | None) -> bool:
    """Whether the last stride is 1 in all tensors there are that have more than one column."""
    return all(x is None or not x.dim() or x.stride(-1) == 1 or x.shape[-1] == 1 for x in tensors)


def _in_pieces(*tensors: Tensor) -> bool:
    """Whether the last stride, or the one before it, is 1 in all tensors.

    A single column has no neighbour to be apart from.
    """
    return all(
        tensor.stride(-1) == 1 or tensor.stride(-2) == 1 or tensor.shape[-1] == 1
        for tensor in tensors
    )

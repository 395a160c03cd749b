"""The facts of one attention call, as validated: what every later layer reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Layout = Literal["BNSD", "BSND"]
Precision = Literal["standard", "compensated"]


@dataclass(frozen=True)
class AttentionProblem:
    """One validated attention call.

    Sizes: B batch, Hq query heads, Hk key/value heads, Sq queries, Sk keys, D size of a query or
    key, Dv size of a value.
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
    diagonal: int
    """Query i is aligned with key i + diagonal."""
    scale: float
    precision: Precision
    with_lse: bool
    adjacent_columns: bool = True
    """The numbers of one head vector lie next to each other in q, k and v (last stride 1)."""

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.Hq // self.Hk

    @property
    def empty(self) -> bool:
        """Nothing to compute: no output element, or no key to attend to."""
        return 0 in (self.B, self.Hq, self.Sq, self.Sk, self.Dv)


def columns_adjacent(*tensors: torch.Tensor) -> bool:
    """Whether the last stride is 1 in all tensors; one column has no neighbour to be apart from."""
    return all(tensor.stride(-1) == 1 or tensor.shape[-1] == 1 for tensor in tensors)

"""The calls that computation is checked on, and what is right for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._arguments import Arguments
from ...testing import error_budget
from .._placement import Placement, Shard, shards, stream_index


@dataclass(frozen=True)
class VerifyCase:
    """A call of all ranks together.

    Attributes:
        name: of the check.
        placement: of the sequence.
        Hk: key/value heads.
        lengths: of the sequences: one of a padded batch, or several packed ones.
        options: causal and window of `flashasc.attention`.
        sinks: whether there are any.
        poison: the last key is NaN, which is to reach the last query alone (causal).
    """

    name: str
    placement: Placement
    Hk: int
    lengths: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    sinks: bool = False
    poison: bool = False

    @property
    def packed(self) -> bool:
        """Several sequences one after another."""
        return len(self.lengths) > 1

    def heads(self, world: int) -> int:
        """Query heads: as many for each rank."""
        return 2 * world * self.Hk // math.gcd(world, self.Hk)


D, DV = 16, 8


def verify_cases(world: int) -> list[VerifyCase]:
    """Calls for so many ranks: lengths that no number of ranks divides."""
    S = 16 * world + 5
    causal = {"causal": True}
    return [
        VerifyCase("plain", "contiguous", 2, (S,)),
        VerifyCase("causal, zigzag", "zigzag", 1, (S,), causal),
        VerifyCase("causal, sinks", "contiguous", 2, (S,), causal, sinks=True),
        VerifyCase("window, zigzag, sinks", "zigzag", 2, (S,), {"window": (S // 2, 3)}, sinks=True),
        VerifyCase("packed, causal, zigzag", "zigzag", 2, (S, 0, 2 * world + 3), causal),
        VerifyCase("NaN in the last key", "zigzag", 2, (S,), causal, poison=True),
    ]


@dataclass(frozen=True)
class Inputs:
    """Whole tensors: [B, H, S, D], or [H, tokens, D] of packed sequences."""

    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | None


def draw(case: VerifyCase, world: int, dtype: torch.dtype, seed: int) -> Inputs:
    """Inputs from a seed, the same on every rank, on the CPU.

    Values are positive for the most part, so that an output that lacks some is far off.
    """
    generator = torch.Generator().manual_seed(seed)
    batch = () if case.packed else (1,)
    tokens, Hq = sum(case.lengths), case.heads(world)
    q = torch.randn(*batch, Hq, tokens, D, generator=generator)
    k = torch.randn(*batch, case.Hk, tokens, D, generator=generator)
    v = torch.randn(*batch, case.Hk, tokens, DV, generator=generator) + 1.0
    # later keys count for more: what is left out or taken twice is seen
    v += torch.linspace(0, 4, tokens)[:, None]
    if case.poison:
        k[..., -1, :] = math.nan
    sinks = torch.randn(Hq, generator=generator) + 2.0 if case.sinks else None
    return Inputs(q.to(dtype), k.to(dtype), v.to(dtype), sinks)


def held(case: VerifyCase, world: int) -> list[Shard]:
    """What each rank holds."""
    return shards(case.lengths, world, case.placement)


def own_rows(case: VerifyCase, world: int, rank: int) -> Tensor:
    """[tokens of a rank]: places of a rank's tokens in the whole."""
    return stream_index(held(case, world)[rank], case.lengths)


def sdpa(inputs: Inputs, case: VerifyCase, dtype: torch.dtype) -> Tensor:
    """The output of the whole, by torch's scaled_dot_product_attention in a dtype.

    Returns:
        Heads first, like q; 0 where a query sees nothing.
    """
    q, k, v = (x.to(dtype) for x in (inputs.q, inputs.k, inputs.v))
    outputs = []
    for part in _sequences(case.lengths):
        q_one, k_one, v_one = (x[..., part, :] for x in (q, k, v))
        group = q_one.shape[-3] // k_one.shape[-3]
        k_one, v_one = (x.repeat_interleave(group, -3) for x in (k_one, v_one))
        S = q_one.shape[-2]
        seen = _seen(S, case.options).to(q.device)
        bias = torch.zeros(S, S, dtype=dtype, device=q.device).masked_fill(~seen, -math.inf)
        if inputs.sinks is not None:
            # one more key of value 0, whose score is the sink
            heads = inputs.sinks.to(q.device, dtype)[:, None, None].expand(-1, S, 1)
            bias = torch.cat([bias.expand(len(heads), -1, -1), heads], -1)
            k_one, v_one = (F.pad(x, (0, 0, 0, 1)) for x in (k_one, v_one))
        hidden = ~seen.any(0)
        v_one = v_one.clone()
        v_one[..., : len(hidden), :].masked_fill_(hidden[:, None], 0.0)
        outputs.append(F.scaled_dot_product_attention(q_one, k_one, v_one, attn_mask=bias))
    return torch.cat(outputs, -2)


def _sequences(lengths: Sequence[int]) -> Iterator[slice]:
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length


def _seen(S: int, options: dict[str, Any]) -> Tensor:
    """[S, S] bool: which query sees which key."""
    i, j = torch.arange(S)[:, None], torch.arange(S)
    seen = torch.ones(S, S, dtype=torch.bool)
    if options.get("causal"):
        seen &= j <= i
    if "window" in options:
        left, right = options["window"]
        seen &= (i - j <= left) & (j - i <= right)
    return seen


def judge(found: Tensor, inputs: Inputs, case: VerifyCase, rows: Tensor) -> str:
    """What is wrong with an output; "" if it is as right as that of SDPA in its dtype.

    Args:
        found: heads first, the rows of one rank.
        inputs, case: of the whole.
        rows: places of the rows in the whole.

    Allowed is twice the sum of SDPA's own error against float64 and a rounding of the output.
    """
    found = found.detach().cpu()
    rows = rows.to(inputs.q.device)
    clean = inputs
    if case.poison:
        k = inputs.k.clone()
        k[..., -1, :] = 0.0
        clean = Inputs(inputs.q, k, inputs.v, inputs.sinks)
    exact, same = (
        sdpa(clean, case, dtype)[..., rows, :].cpu() for dtype in (torch.float64, found.dtype)
    )
    if found.shape != exact.shape:
        return f"{tuple(found.shape)} instead of {tuple(exact.shape)}"
    if case.poison:
        spoilt = rows.cpu() == case.lengths[0] - 1
        if not found[..., spoilt, :].isnan().all():
            return "the last query does not show the NaN that it sees"
        found, exact, same = (x[..., ~spoilt, :] for x in (found, exact, same))
        if found.isnan().any():
            return "a NaN reached queries that do not see it"
    if not found.numel():
        return ""
    if not found.isfinite().all():
        return f"{int((~found.isfinite()).sum())} outputs are not finite"
    allowed = error_budget(exact, same)
    error = (found.double() - exact).abs()
    worst = error.max().item()
    if worst <= allowed:
        return ""
    at = (error == worst).nonzero()[0].tolist()
    bad = int((error > allowed).any(-1).sum())
    return (
        f"error {worst:.2e} where {allowed:.2e} is allowed, at {at} of {list(found.shape)}; "
        f"{bad} of {error[..., 0].numel()} rows are off"
    )


def arguments_of(case: VerifyCase, q: Tensor, k: Tensor, v: Tensor, inputs: Inputs) -> Arguments:
    """The call of one rank, from tensors with heads first."""
    device = q.device
    edges = None
    if case.packed:
        lengths = torch.tensor([0, *case.lengths], dtype=torch.int32, device=device)
        edges = lengths.cumsum(0, dtype=torch.int32)
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    sinks = None if inputs.sinks is None else inputs.sinks.to(device)
    return Arguments(
        q,
        k,
        v,
        layout="TND" if case.packed else "BNSD",
        sinks=sinks,
        cu_seqlens_q=edges,
        cu_seqlens_k=edges,
        **case.options,
    )

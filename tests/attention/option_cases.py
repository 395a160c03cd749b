"""Options of every kind, alone and drawn together, for the tests of all of them."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from flashasc.testing import Case

BASE = Case(B=3, Hq=4, Hk=2, Sq=90, Sk=70, D=16)

ALONE = (
    "window", "window to the left", "window to the right", "softcap", "mask", "mask of keys",
    "mask of pairs", "mask of heads", "bias", "bias of heads", "bias of keys", "bias of -inf",
    "alibi_slopes", "alibi_slopes of each sequence", "sinks", "kv_lens",
)  # fmt: skip
PACKED = tuple(name for name in ALONE if not name.startswith(("mask", "bias", "kv_lens")))


def option(name: str, case: Case, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """The option of that name for a case."""
    generator = torch.Generator().manual_seed(seed)
    B, Hq, Sq, Sk = case.B, case.Hq, case.Sq, case.Sk

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    match name:
        case "window":
            return {"window": (7, 3)}
        case "window to the left":
            return {"window": (20, None)}
        case "window to the right":
            return {"window": [None, 11]}
        case "softcap":
            return {"softcap": 1.5}
        case "mask":
            return {"mask": random(B, Hq, Sq, Sk) > 0}
        case "mask of keys":
            return {"mask": random(B, 1, 1, Sk) > 0}
        case "mask of pairs":
            return {"mask": random(Sq, Sk) > 0.5}
        case "mask of heads":
            return {"mask": random(Hq, Sq, 1) > -1}
        case "bias":
            return {"bias": random(B, Hq, Sq, Sk)}
        case "bias of heads":
            return {"bias": random(Hq, Sq, Sk).transpose(0, 1).contiguous().transpose(0, 1)}
        case "bias of keys":
            return {"bias": random(B, 1, 1, Sk).to(torch.float16)}
        case "bias of -inf":
            return {"bias": random(Sq, Sk).masked_fill(random(Sq, Sk) > 0, -torch.inf).double()}
        case "alibi_slopes":
            return {"alibi_slopes": 2.0 ** -torch.arange(1, Hq + 1, device=device)}
        case "alibi_slopes of each sequence":
            return {"alibi_slopes": random(B, Hq).abs().to(torch.bfloat16)}
        case "sinks":
            return {"sinks": 3 * random(Hq)}
        case "kv_lens":
            lengths = torch.randint(0, Sk + 1, (B,), generator=generator)
            return {"kv_lens": lengths.to(device, torch.int32)}
    raise ValueError(name)


@st.composite
def combinations(draw: Any, names: tuple[str, ...]) -> list[str]:
    """Names of options that can be given together."""
    chosen: dict[str, str] = {}
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)):
        chosen.setdefault(name.split()[0], name)
    return list(chosen.values())


def together(names: list[str], case: Case, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """All options of these names."""
    options: dict[str, Any] = {}
    for place, name in enumerate(names):
        options |= option(name, case, seed + place, device)
    return options


def packed(
    case: Case, lengths_q: list[int], lengths_k: list[int], seed: int = 0, device: str = "cpu"
) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    """q, k and v of packed sequences in the case's heads and dtype, and the options to say so."""
    generator = torch.Generator().manual_seed(seed)
    Hk = case.Hk or case.Hq
    shapes = (
        (sum(lengths_q), case.Hq, case.D),
        (sum(lengths_k), Hk, case.D),
        (sum(lengths_k), Hk, case.Dv or case.D),
    )
    q, k, v = (torch.randn(s, generator=generator).to(device, case.dtype) for s in shapes)
    edges = [torch.tensor([0, *lengths]).cumsum(0) for lengths in (lengths_q, lengths_k)]
    options = {
        "layout": "TND",
        "cu_seqlens_q": edges[0].to(device, torch.int32),
        "cu_seqlens_k": edges[1].to(device),
        "max_seqlen_q": max(lengths_q, default=0),
        "max_seqlen_k": max(lengths_k, default=0),
    }
    return (q, k, v), options

"""Random calls of `flashasc.attention`, each from its number alone."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.views import View, draw_view, lay_out

CALLS_PER_MOULD = 100
"""Calls that share what a kernel is specialised for: compiling one takes seconds."""

_HEAD_SIZES = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 40, 63, 64, 64, 65, 72, 80, 96, 100, 127, 128)
_LARGE_HEAD_SIZES = (129, 160, 192, 200, 255, 256)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SPREADS = ("full", "full", "keys", "queries", "one", "heads")


@dataclass(frozen=True)
class Call:
    """Arguments of one call."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]
    mould: Mould
    hostile: str


@dataclass(frozen=True)
class Mould:
    """What a kernel is specialised for."""

    dtype: torch.dtype
    D: int
    Dv: int
    layout: str
    causal: bool
    window: tuple[bool, bool]
    """Bounds to the left and to the right."""
    mask: str | None
    bias: tuple[str, torch.dtype] | None
    softcap: bool
    alibi: torch.dtype | None
    sinks: torch.dtype | None
    lengths: torch.dtype | None
    """dtype of kv_lens or cumulative lengths."""
    precision: str
    out_dtype: torch.dtype | None
    with_lse: bool
    views: tuple[View, View, View]
    settled: int | None
    """Seed of whatever else decides about strides: heads, lengths modulo 16, how masks lie. None:
    each call draws it anew, and most calls compile a kernel of their own."""


def places(budget: int, moulds: int) -> Iterator[int]:
    """Numbers of so many calls, spread over so many moulds, the first call of each first."""
    for number in range(budget):
        yield number % moulds * CALLS_PER_MOULD + number // moulds


def draw(route: str, seed: int, number: int) -> Call:
    """Call `number` of a run."""
    mould = _draw_mould(random.Random(f"{route} {seed} mould {number // CALLS_PER_MOULD}"), route)
    rng = random.Random(f"{route} {seed} call {number}")
    return _draw_call(rng, mould)


def _draw_mould(rng: random.Random, route: str) -> Mould:
    dtype = rng.choice((*_DTYPES, torch.float64) if route == "reference" else _DTYPES)
    D = rng.choice(_HEAD_SIZES if rng.random() < 0.85 else _LARGE_HEAD_SIZES)
    Dv = D if rng.random() < 0.6 else rng.choice(_HEAD_SIZES)
    layout = rng.choice(("BNSD", "BNSD", "BSND", "TND"))
    packed = layout == "TND"

    def chance(share: float) -> bool:
        return rng.random() < share

    precisions = ["standard", "compensated", "compensated"]
    if dtype.itemsize == 2:
        precisions.append("high")
    return Mould(
        dtype=dtype,
        D=D,
        Dv=Dv,
        layout=layout,
        causal=chance(0.4),
        window=(chance(0.25), chance(0.2)),
        mask=rng.choice(_SPREADS) if chance(0.3) and not packed else None,
        bias=(rng.choice(_SPREADS), rng.choice(_FLOATS)) if chance(0.3) and not packed else None,
        softcap=chance(0.2),
        alibi=rng.choice(_FLOATS) if chance(0.25) else None,
        sinks=rng.choice(_FLOATS) if chance(0.25) else None,
        lengths=rng.choice((torch.int32, torch.int64)) if packed or chance(0.3) else None,
        precision=rng.choice(precisions),
        out_dtype=torch.float32 if chance(0.25) else None,
        with_lse=chance(0.6),
        views=(draw_view(rng), draw_view(rng), draw_view(rng)),
        settled=rng.getrandbits(30) if route != "reference" and chance(0.9) else None,
    )


def _draw_call(rng: random.Random, mould: Mould) -> Call:
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    shared = rng if mould.settled is None else random.Random(mould.settled)
    B = rng.choice((0, 1, 1, 2, 3)) if rng.random() < 0.3 else rng.choice((1, 2, 3))
    Hk, group = shared.choice((1, 1, 2, 3)), shared.choice((1, 1, 2, 3, 4))
    if rng.random() < 0.01:
        Hk = 0
    Hq, packed = Hk * group, mould.layout == "TND"
    Sq, Sk = _length(rng), _length(rng)
    if mould.settled is not None:
        rest_q, rest_k = shared.randrange(16), shared.randrange(16)
        Sq, Sk = _with_rest(Sq, rest_q), _with_rest(Sk, rest_q if shared.random() < 0.4 else rest_k)
    if rng.random() < 0.25:
        Sq = Sk
    options: dict[str, Any] = {"layout": mould.layout}
    hidden_k: Tensor | None = None
    if packed:
        edges_q, edges_k = _edges(rng, Sq, B), _edges(rng, Sk, B)
        options["cu_seqlens_q"] = torch.tensor(edges_q, dtype=mould.lengths)
        options["cu_seqlens_k"] = torch.tensor(edges_k, dtype=mould.lengths)
        for letter, edges, tokens in (("q", edges_q, Sq), ("k", edges_k, Sk)):
            longest = max((b - a for a, b in pairwise(edges)), default=0)
            if rng.random() < 0.5:
                options[f"max_seqlen_{letter}"] = max(longest, 0) + rng.choice((0, 0, 1, tokens))
    elif mould.lengths is not None:
        far = [-(2**31), 2**31 - 1] if mould.lengths == torch.int32 else [-(2**60), 2**60]
        lens = [rng.choice([0, 1, Sk - 1, Sk, Sk + 5, -3, *far]) if rng.random() < 0.4 else
                rng.randint(0, Sk) for _ in range(B)]  # fmt: skip
        options["kv_lens"] = torch.tensor(lens, dtype=mould.lengths)
        hidden_k = torch.arange(Sk) >= options["kv_lens"].clamp(0, Sk)[:, None]
    shapes = {
        name: {"BNSD": (B, H, S, C), "BSND": (B, S, H, C), "TND": (S, H, C)}[mould.layout]
        for name, H, S, C in (
            ("q", Hq, Sq, mould.D),
            ("k", Hk, Sk, mould.D),
            ("v", Hk, Sk, mould.Dv),
        )
    }
    values, hostile = _values(rng, generator, shapes, mould, hidden_k)
    q, k, v = (
        lay_out(values[name].to(mould.dtype), view, shared)
        for name, view in zip("qkv", mould.views, strict=True)
    )
    options |= _scalars(rng, mould)
    options |= _tensors(rng, shared, generator, mould, B, Hq, Sq, Sk)
    return Call(q, k, v, options, mould, hostile)


def _length(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.06:
        return 0
    if kind < 0.5:
        return rng.randint(1, 20)
    if kind < 0.75:
        return rng.choice((31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 257))
    return rng.randint(1, 150) if rng.random() < 0.8 else rng.randint(150, 700)


def _with_rest(length: int, rest: int) -> int:
    """A length near by that leaves this rest modulo 16; 0 stays 0."""
    return length and ((length - 1) // 16 * 16 + (rest or 16))


def _edges(rng: random.Random, tokens: int, B: int) -> list[int]:
    edges = sorted(rng.randint(0, tokens) for _ in range(max(B - 1, 0)))
    edges = [0, *edges, tokens] if B else [0]
    if rng.random() < 0.1:
        place = rng.randrange(len(edges))
        edges[place] = rng.choice((-5, tokens + 7, tokens, 0, 2**31 - 1, -(2**31)))
    return edges


def _values(
    rng: random.Random,
    generator: torch.Generator,
    shapes: dict[str, tuple[int, ...]],
    mould: Mould,
    hidden_k: Tensor | None,
) -> tuple[dict[str, Tensor], str]:
    """q, k and v in float32 (float64), and what is wrong with them."""
    wide = torch.promote_types(mould.dtype, torch.float32)
    x = {n: torch.randn(s, generator=generator, dtype=wide) for n, s in shapes.items()}
    hostile = rng.choice(
        ("none", "none", "none", "positive", "constant v", "huge scores", "subnormal", "equal",
         "nan in v", "nan in k", "nan in q", "inf", "one key", "large v")
    )  # fmt: skip
    some = rng.choice("qkv")
    match hostile:
        case "positive":
            x["v"] = x["v"].abs()
        case "constant v":
            x["v"] = torch.full_like(x["v"], rng.choice((1.0, -3.0, 0.1)))
        case "huge scores":
            x["q"] *= rng.choice((30.0, 200.0))
            x["k"] *= rng.choice((1.0, 20.0, 200.0))
        case "subnormal":
            x[some] *= 1e-40 if wide == torch.float32 and mould.dtype != torch.float16 else 1e-7
        case "equal":
            x["q"] = torch.zeros_like(x["q"])
        case "one key" if x["k"].numel():
            x["q"][..., 0] = rng.choice((4.0, 20.0))
            spot = rng.randrange(x["k"].shape[0])
            x["k"][spot, ..., 0] = rng.choice((4.0, 20.0))
        case "large v":
            x["v"] *= 1e4 if mould.dtype == torch.float16 else 1e30
        case "nan in v" | "nan in k" | "nan in q" | "inf":
            name = hostile[-1] if hostile != "inf" else some
            flat = x[name].flatten()
            for _ in range(rng.randint(1, 3) if flat.numel() else 0):
                value = math.nan if hostile != "inf" else rng.choice((math.inf, -math.inf))
                flat[rng.randrange(flat.numel())] = value
            x[name] = flat.view(shapes[name])
    # what is hidden from everybody must not matter at all
    if hidden_k is not None and rng.random() < 0.7:
        fill = rng.choice((math.nan, math.inf))
        for name in "kv":
            hidden = (
                hidden_k[:, None, :, None] if mould.layout == "BNSD" else hidden_k[..., None, None]
            )
            x[name] = x[name].masked_fill(hidden, fill)
    return x, hostile


def _scalars(rng: random.Random, mould: Mould) -> dict[str, Any]:
    options: dict[str, Any] = {"precision": mould.precision, "return_lse": mould.with_lse}
    if mould.causal:
        options["causal"] = True
    options["causal_align"] = rng.choice(("bottom_right", "bottom_right", "top_left"))
    if any(mould.window):
        sides = [rng.choice((0, 1, 5, 40, 130, 2**31 - 2, 1 << 40)) for _ in range(2)]
        # no right window of 0, which is causal, where the mould is not
        sides[1] = max(sides[1], 1)
        options["window"] = tuple(
            s if bound else None for s, bound in zip(sides, mould.window, strict=True)
        )
    scale = rng.choice((None, None, None, 1.0, 0.3, -0.2, 0.0, 1e-3, 3))
    if scale is not None:
        options["scale"] = scale
    if mould.softcap:
        options["softcap"] = rng.choice((0.5, 5, 30.0, 1e4))
    if mould.out_dtype is not None:
        options["out_dtype"] = mould.out_dtype if mould.dtype != torch.float64 else None
    return options


def _tensors(
    rng: random.Random,
    shared: random.Random,
    generator: torch.Generator,
    mould: Mould,
    B: int,
    Hq: int,
    Sq: int,
    Sk: int,
) -> dict[str, Tensor]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    found: dict[str, Tensor] = {}
    if mould.mask is not None:
        mask = normal(*_spread(shared, mould.mask, B, Hq, Sq, Sk)) > rng.choice((-1.5, 0.0, 1.0))
        found["mask"] = lay_out(mask, draw_view(shared), shared, fill=True)
    if mould.bias is not None:
        size = rng.choice((0.1, 3.0, 50.0))
        bias = normal(*_spread(shared, mould.bias[0], B, Hq, Sq, Sk)) * size
        bias = bias.to(mould.bias[1])
        if rng.random() < 0.4:
            lowest = torch.finfo(mould.bias[1] if mould.bias[1] != torch.float64 else torch.float32)
            low = rng.choice((-math.inf, lowest.min))
            bias = torch.where(torch.rand(bias.shape, generator=generator) < 0.5, low, bias)
        found["bias"] = lay_out(bias.to(mould.bias[1]), draw_view(shared), shared)
    if mould.alibi is not None:
        shape = (B, Hq) if rng.random() < 0.4 else (Hq,)
        slopes = normal(*shape).abs() * rng.choice((0.01, 1.0, -1.0))
        found["alibi_slopes"] = lay_out(slopes.to(mould.alibi), draw_view(rng), rng)
    if mould.sinks is not None:
        sinks = normal(Hq) * rng.choice((1.0, 10.0, 1000.0))
        if rng.random() < 0.2:
            sinks = sinks.masked_fill(normal(Hq) > 0, -math.inf)
        found["sinks"] = lay_out(sinks.to(mould.sinks), draw_view(rng), rng)
    return found


def _spread(rng: random.Random, spread: str, B: int, Hq: int, Sq: int, Sk: int) -> tuple[int, ...]:
    b, h = rng.choice((1, B)), rng.choice((1, Hq))
    match spread:
        case "full":
            return rng.choice(((b, h, Sq, Sk), (h, Sq, Sk), (Sq, Sk)))
        case "keys":
            return rng.choice(((b, h, 1, Sk), (1, Sk), (Sk,)))
        case "queries":
            return rng.choice(((b, h, Sq, 1), (Sq, 1)))
        case "heads":
            return (Hq, 1, 1)
    return rng.choice(((), (1,), (b, 1, 1, 1)))

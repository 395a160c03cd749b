"""Calls on several ranks, and how far they are from one process: run inside a rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

import flashasc
from flashasc.distributed import ContextParallel, count_transfers
from flashasc.testing import exact_attention


@dataclass(frozen=True)
class ContextCase:
    """One call, the same on all ranks."""

    mode: str
    placement: str = "contiguous"
    layout: str = "BNSD"
    Hq: int = 12
    Hk: int = 3
    Sq: int = 37
    Sk: int | None = None
    lengths: tuple[int, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    sinks: bool = False

    @property
    def id(self) -> str:
        size = f"{self.Hq}x{self.Hk}x{self.lengths or (self.Sq, self.Sk or self.Sq)}"
        parts = [self.mode, self.placement, self.layout, size, "sinks" if self.sinks else ""]
        return " ".join(filter(None, [*parts, *(f"{k}={v}" for k, v in self.options.items())]))


CAUSAL = {"causal": True}
CASES = [
    ContextCase("ring"),
    ContextCase("ring", "zigzag", "BSND", options=CAUSAL),
    ContextCase("ring", "zigzag", Hk=1, Sk=50, options=CAUSAL, sinks=True),
    # fewer keys than queries: the first see nothing; fewer tokens than chunks
    ContextCase("ring", "zigzag", Sq=37, Sk=20, options=CAUSAL),
    ContextCase("ring", "zigzag", Sq=5, options=CAUSAL),
    ContextCase("ring", options={"window": (9, 0)}),
    ContextCase("ring", "zigzag", "BSND", options={"window": (5, 3), "softcap": 3.0}, sinks=True),
    ContextCase("ring", "zigzag", Sk=50, options={"causal": True, "causal_align": "top_left"}),
    ContextCase("ring", layout="TND", lengths=(17, 0, 1, 30), options=CAUSAL, sinks=True),
    ContextCase("ring", "zigzag", "TND", lengths=(17, 0, 1, 30), options={"window": (7, 2)}),
    ContextCase("ring", options={"precision": "standard", "scale": -0.5, "impl": "reference"}),
    ContextCase("ulysses", options=CAUSAL),
    ContextCase("ulysses", "zigzag", "BSND", Hk=1, options={"window": (9, 0)}, sinks=True),
    # key/value heads that no number of ranks divides
    ContextCase("ulysses", Hq=24, Hk=8, Sk=50, options={**CAUSAL, "softcap": 3.0}),
    ContextCase("ulysses", "zigzag", "TND", lengths=(17, 0, 1, 30), options=CAUSAL, sinks=True),
    ContextCase("hybrid", "zigzag", options=CAUSAL, sinks=True),
    ContextCase("hybrid", layout="BSND", Hk=1, options={"window": (9, 0)}),
    ContextCase("hybrid", "zigzag", "TND", lengths=(17, 0, 1, 30), options=CAUSAL),
]


def measured() -> dict[str, dict[str, float]]:
    """Figures of every case on this rank, by its id."""
    world = dist.get_world_size()
    # as many ranks of the ring as there can be, beside two that share heads
    shape = (world // 2, 2) if world % 2 == 0 else (world, 1)
    mesh = init_device_mesh("cpu", shape)
    return {case.id: measure(case, mesh) for case in CASES}


def context_of(case: ContextCase, mesh: Any) -> ContextParallel:
    group = mesh if case.mode == "hybrid" else None
    return ContextParallel(group, case.mode, case.placement)  # type: ignore[arg-type]


def inputs_of(case: ContextCase) -> tuple[list[Tensor], dict[str, Any]]:
    """Whole q, k and v in the case's layout, and the options."""
    generator = torch.Generator().manual_seed(7)
    options = dict(case.options)
    Sq, Sk = case.Sq, case.Sk or case.Sq
    batch: tuple[int, ...] = (2,)
    if case.lengths:
        Sq = Sk = sum(case.lengths)
        batch = ()
        edges = torch.tensor([0, *case.lengths]).cumsum(0).to(torch.int32)
        options |= {"cu_seqlens_q": edges, "cu_seqlens_k": edges}
    sizes = ((case.Hq, Sq, 8), (case.Hk, Sk, 8), (case.Hk, Sk, 5))
    tensors = [torch.randn(*batch, *size, generator=generator) for size in sizes]
    if case.layout != "BNSD":
        tensors = [x.transpose(-2, -3) for x in tensors]
    if case.sinks:
        options["sinks"] = torch.randn(case.Hq, generator=generator)
    return tensors, {**options, "layout": case.layout}


def measure(case: ContextCase, mesh: Any) -> dict[str, float]:
    """The largest distances of this rank's results from those of one process, and counts."""
    tensors, options = inputs_of(case)
    context = context_of(case, mesh)
    dim = {"BNSD": 2, "BSND": 1, "TND": 0}[case.layout]
    edges = options.get("cu_seqlens_q")

    def own(x: Tensor, along: int = dim) -> Tensor:
        return context.shard(x, along, edges)

    leaves = [x.clone().requires_grad_() for x in tensors]
    sinks = options.get("sinks")
    whole_options = dict(options)
    if sinks is not None:
        whole_options["sinks"] = sinks.clone().requires_grad_()
    out, lse = flashasc.attention(*leaves, return_lse=True, **whole_options)
    toward, toward_lse = torch.randn_like(out.detach()), torch.randn_like(lse.detach())
    for random in (toward, toward_lse):
        dist.broadcast(random, 0)
    _loss(out, lse, toward, toward_lse).backward()

    mine = [own(x).requires_grad_() for x in tensors]
    if sinks is not None:
        options["sinks"] = sinks.clone().requires_grad_()
    with CommDebugMode() as mode, count_transfers() as counts:
        found, found_lse = context.attention(*mine, return_lse=True, **options)
    _loss(found, found_lse, own(toward), own(toward_lse, -1)).backward()
    result = {
        "out": _distance(found, own(out)),
        "lse": _distance(found_lse, own(lse, -1)),
        "grad": max(_distance(a.grad, own(b.grad)) for a, b in zip(mine, leaves)),
        "contiguous": float(found.is_contiguous()),
        "unshard": _distance(context.unshard(found.detach(), dim, edges), out),
        "collectives": mode.get_total_counts(),
        "own collectives": counts.collectives,
        "sends": counts.sends,
        "receives": counts.receives,
    }
    if sinks is not None:
        total = options["sinks"].grad
        dist.all_reduce(total)
        result["grad"] = max(result["grad"], _distance(total, whole_options["sinks"].grad))
    return result


def uneven() -> dict[str, float]:
    """Distances where ranks hold any number of tokens, one of them none; and on the kernels."""
    rank, world = dist.get_rank(), dist.get_world_size()
    counts = [0, 9, 2, 5][:world]
    edges = [sum(counts[:r]) for r in range(world + 1)]
    generator = torch.Generator().manual_seed(5)
    q, k = (torch.randn(1, heads, edges[-1], 8, generator=generator) for heads in (6, 2))
    found = {}
    for name, dtype, options in (
        ("float64", torch.float64, {}),
        ("float16", torch.float16, {"precision": "high", "out_dtype": torch.float32}),
        ("kernels", torch.float32, {"impl": "triton"}),
    ):
        whole = [x.to(dtype) for x in (q, k, k + 1)]
        mine = [x[:, :, edges[rank] : edges[rank + 1]] for x in whole]
        options = {"causal": True, **options}
        for mode in ("ring", "ulysses"):
            context = ContextParallel(None, mode)  # type: ignore[arg-type]
            out = context.attention(*mine, **options)
            expected = flashasc.attention(*whole, **options)
            own = expected[:, :, edges[rank] : edges[rank + 1]]
            found[f"{mode} {name}"] = _distance(out, own)
            found[f"{mode} {name} unshard"] = _distance(context.unshard(out, 2), expected)
    # the last rank holds what it held, the others do not
    whole = [x.double() for x in (q, k, k + 1)]
    for turn, counts in enumerate(([4, 5, 2], [9, 0, 2], [4, 5, 2])):
        start = sum(counts[:rank])
        own = slice(start, start + counts[rank])
        out = ContextParallel().attention(*(x[:, :, own] for x in whole), causal=True)
        expected = flashasc.attention(*whole, causal=True)[:, :, own]
        found[f"float64, turn {turn}"] = _distance(out, expected)
    return found


def _loss(out: Tensor, lse: Tensor, toward: Tensor, toward_lse: Tensor) -> Tensor:
    lse = lse.masked_fill(lse.detach() == -torch.inf, 0.0)
    return (out * toward).sum() + (lse * toward_lse).sum()


def _distance(a: Tensor, b: Tensor) -> float:
    """Largest difference; infinite where shapes differ, or what is infinite does."""
    if a.shape != b.shape or not torch.equal(a.isinf(), b.isinf()):
        return float("inf")
    if not a.numel():
        return 0.0
    return (a - b).detach().nan_to_num(0.0, neginf=0.0).abs().max().item()


PRECISE = [("ring", "contiguous"), ("ring", "zigzag"), ("ulysses", "zigzag")]


def precise() -> dict[tuple[str, ...], tuple[float, ...]]:
    """(RMS error, that of one process, share of equal bits) in bfloat16, at each level."""
    generator = torch.Generator().manual_seed(3)
    heads, S = dist.get_world_size(), 192
    q, k, v = (torch.randn(1, heads, S, 32, generator=generator) for _ in range(3))
    q, k, v = (x.to(torch.bfloat16) for x in (3 * q, k, v + 1))
    exact = exact_attention(q, k, v, causal=True).out
    figures = {}
    for precision in ("compensated", "high"):
        single = flashasc.attention(q, k, v, causal=True, precision=precision)
        for mode, placement in PRECISE:
            context = ContextParallel(None, mode, placement)  # type: ignore[arg-type]
            mine = [context.shard(x, 2) for x in (q, k, v)]
            out = context.attention(*mine, causal=True, precision=precision)
            whole = context.unshard(out, 2)
            errors = [(x.double() - exact).square().mean().sqrt().item() for x in (whole, single)]
            equal = (whole == single).double().mean().item()
            figures[mode, placement, precision] = (*errors, equal)
    return figures


def subgroups() -> tuple[float, float, bool]:
    """Distances of two groups of two ranks each with its own sequence, and of groups of one."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    alone = [dist.new_group([r]) for r in range(4)][rank]
    generator = torch.Generator().manual_seed(rank // 2)
    q = torch.randn(1, 2, 11, 8, generator=generator)
    context = ContextParallel(groups[rank // 2], "ring", "zigzag")
    out = context.attention(*[context.shard(q, 2)] * 3, causal=True)
    whole = flashasc.attention(q, q, q, causal=True)
    single = ContextParallel(alone, "ulysses").attention(q, q, q, causal=True)
    # a mesh of one dimension stands for its group
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "sequence"))
    by_mesh = ContextParallel(mesh["sequence"], "ring", "zigzag")
    same = by_mesh.attention(*[by_mesh.shard(q, 2)] * 3, causal=True)
    return (
        _distance(context.unshard(out, 2), whole),
        _distance(single, whole),
        torch.equal(same, out),
    )

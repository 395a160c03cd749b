"""Layer 1: does the data arrive where it should? No computation, tagged values, every bit."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from ..._problem import AttentionProblem
from .._call import Geometry
from .._placement import shards
from .._ring import Ring
from .._transport import Transport
from .outcomes import Check, Finding, Op
from .peers import return_checks
from .setting import Setting
from .tags import difference, tagged

# torch 2.13 has a new name for it
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
# no power of two, and another one for each rank: sizes that only fit by accident don't
_ROWS = 13


def communication_checks(setting: Setting, ops: tuple[Op, ...]) -> Iterator[Check]:
    """The checks of this layer, in the order in which all ranks run them."""
    yield "all_gather", lambda: _all_gather(setting)
    yield "all_reduce", lambda: _all_reduce(setting)
    yield "reduce_scatter", lambda: _reduce_scatter(setting)
    yield "all_to_all_single", lambda: _all_to_all(setting)
    ring_group, head_group = setting.mesh.get_group(0), setting.mesh.get_group(1)
    if "ring" in ops:
        yield "ring exchange", lambda: _ring(setting, setting.ranks())
    if "ulysses" in ops:
        yield "heads for sequence", lambda: _heads(setting, setting.ranks())
        yield "sequence for heads", lambda: _heads_back(setting, setting.ranks())
    if "ulysses-fused" in ops:
        yield from return_checks(setting)
    if "hybrid" in ops:
        yield "ring exchange (mesh)", lambda: _ring(setting, setting.ranks(ring_group))
        yield "heads for sequence (mesh)", lambda: _heads(setting, setting.ranks(head_group))
        yield "sequence for heads (mesh)", lambda: _heads_back(setting, setting.ranks(head_group))


def _tag(setting: Setting, rank: int, block: int, shape: tuple[int, ...]) -> Tensor:
    """A block of this run: another run has other numbers for it."""
    tags = tagged(rank, (block + 8 * setting.seed) % 125, shape, setting.dtype)
    return tags.to(setting.device)


def _all_gather(setting: Setting) -> str:
    ranks, official = setting.ranks(), setting.official()
    mine = _tag(setting, ranks.rank, 0, (_ROWS, 3))
    found = ranks.all_gather(mine, "all_gather")
    expected = [torch.empty_like(mine) for _ in range(ranks.world)]
    official.collective("official all_gather", dist.all_gather, expected, mine)
    blocks = {f"the block of rank {r}": expected[r] for r in range(ranks.world)}
    for rank in range(ranks.world):
        if not torch.equal(expected[rank], _tag(setting, rank, 0, (_ROWS, 3))):
            return f"the official all_gather is wrong for the block of rank {rank}"
        if wrong := difference(found[rank], expected[rank], blocks):
            return f"where the block of rank {rank} belongs: {wrong}"
    return ""


def _small(setting: Setting, rank: int, rows: int) -> Tensor:
    """Values whose sum over 60 ranks is exact in every dtype."""
    return (_tag(setting, rank, 1, (rows, 3)) % 5).contiguous()


def _summed(setting: Setting, world: int, rows: int) -> Tensor:
    # on the CPU: not every device has float64
    parts = [_small(setting, rank, rows).cpu().double() for rank in range(world)]
    return torch.stack(parts).sum(0).to(setting.device, setting.dtype)


def _all_reduce(setting: Setting) -> str:
    ranks, official = setting.ranks(), setting.official()
    found = _small(setting, ranks.rank, _ROWS)
    expected = found.clone()
    ranks.collective("all_reduce", dist.all_reduce, found)
    official.collective("official all_reduce", dist.all_reduce, expected)
    if not torch.equal(expected, _summed(setting, ranks.world, _ROWS)):
        return "the official all_reduce is wrong"
    parts = {
        f"the sum without rank {r}": expected - _small(setting, r, _ROWS)
        for r in range(ranks.world)
    }
    twice = {
        f"the sum with rank {r} counted twice": expected + _small(setting, r, _ROWS)
        for r in range(ranks.world)
    }
    return difference(found, expected, {**parts, **twice})


def _reduce_scatter(setting: Setting) -> str:
    ranks, official = setting.ranks(), setting.official()
    rows = _ROWS * ranks.world
    mine = _small(setting, ranks.rank, rows)
    found = mine.new_empty(_ROWS, 3)
    ranks.collective("reduce_scatter", _REDUCE_SCATTER, found, mine)
    whole = mine.clone()
    official.collective("official all_reduce", dist.all_reduce, whole)
    if not torch.equal(whole, _summed(setting, ranks.world, rows)):
        return "the official all_reduce is wrong"
    shares = whole.unflatten(0, (ranks.world, _ROWS))
    right = shares[ranks.rank].contiguous()
    names = {f"shard {r}": shares[r].contiguous() for r in range(ranks.world)}
    for r in range(ranks.world):
        given = _small(setting, r, rows).unflatten(0, (ranks.world, _ROWS))
        for s in range(ranks.world):
            name = f"the sum with shard {s} of rank {r} in place of its shard {ranks.rank}"
            names[name] = right - given[ranks.rank] + given[s]
    wrong = difference(found, right, names)
    return wrong and f"where shard {ranks.rank} of the sum belongs: {wrong}"


def _all_to_all(setting: Setting) -> str:
    ranks, official = setting.ranks(), setting.official()
    world, rank = ranks.world, ranks.rank
    # rank i sends i + 2 + j % 2 rows to rank j
    rows = [[i + 2 + j % 2 for j in range(world)] for i in range(world)]
    send = torch.cat([_tag(setting, rank, j, (rows[rank][j], 3)) for j in range(world)])
    incoming = [rows[i][rank] for i in range(world)]
    found, expected = (send.new_empty(sum(incoming), 3) for _ in range(2))
    raw = [x.view(torch.uint8) for x in (found, send)]
    ranks.all_to_all(raw[0], raw[1], incoming, rows[rank], "all_to_all_single").wait()
    official.collective(
        "official all_to_all_single",
        dist.all_to_all_single,
        expected,
        send,
        incoming,
        rows[rank],
    )
    names = {
        f"what rank {i} means for rank {j}": _tag(setting, i, j, (rows[i][j], 3))
        for i in range(world)
        for j in range(world)
    }
    parts = zip(found.split(incoming), expected.split(incoming), strict=True)
    for i, (part, right) in enumerate(parts):
        if not torch.equal(right, names[f"what rank {i} means for rank {rank}"]):
            return f"the official all_to_all_single is wrong for what rank {i} sent"
        if wrong := difference(part, right, names):
            return f"where what rank {i} means for this rank belongs: {wrong}"
    return ""


def _ring(setting: Setting, ranks: Transport) -> Finding:
    world = ranks.world
    lengths = [_ROWS + 2 * r for r in range(world)]
    held = shards([sum(lengths)], world, "contiguous", lengths)
    geometry = Geometry(held, held, (0,))
    ring = Ring(ranks, _dummy(setting), "auto", geometry)

    def block(rank: int) -> tuple[Tensor, Tensor]:
        shape = (1, 2, lengths[rank])
        return _tag(setting, rank, 0, (*shape, 3)), _tag(setting, rank, 1, (*shape, 5))

    everything = {
        f"the {name} of rank {ranks.name(r)}": tensor
        for r in range(world)
        for name, tensor in zip(("keys", "values"), block(r), strict=True)
    }
    wrong: list[tuple[str, int]] = []
    # all steps, also behind one that went wrong: the others take part in them
    for step, (source, tensors) in enumerate(ring.rotate(block(ranks.rank), world)):
        for name, found, right in zip(("keys", "values"), tensors, block(source), strict=True):
            if said := difference(found, right, everything):
                where = f"step {step}: where the {name} of rank {ranks.name(source)} belong"
                wrong.append((f"{where}: {said}", step))
    return wrong[0] if wrong else ""


def _dummy(setting: Setting) -> AttentionProblem:
    """A problem for a ring that computes nothing."""
    return AttentionProblem(
        B=1,
        Hq=1,
        Hk=1,
        Sq=1,
        Sk=1,
        D=1,
        Dv=1,
        dtype=setting.dtype,
        out_dtype=setting.dtype,
        device=setting.device,
        layout="BNSD",
        causal=False,
        diagonal=0,
        scale=1.0,
        precision="compensated",
        with_lse=False,
    )


def _head_sizes(ranks: Transport) -> tuple[tuple[int, ...], int, int]:
    """(tokens of each rank, query heads, key/value heads): fewer of the last than ranks."""
    return tuple(5 + 2 * r for r in range(ranks.world)), 4 * ranks.world, 2


def _of_heads(setting: Setting, rank: int, heads: list[int], tokens: int) -> Tensor:
    """[1, heads, tokens, 3]: a block for each head of a rank's tokens."""
    found = [_tag(setting, rank, head, (1, 1, tokens, 3)) for head in heads]
    return torch.cat(found, 1)


def _heads(setting: Setting, ranks: Transport) -> str:
    counts, Hq, Hk = _head_sizes(ranks)
    heads = setting.exchange(ranks, counts, counts, Hq, Hk)
    mine = range(ranks.rank * heads.heads, (ranks.rank + 1) * heads.heads)
    every_query = _of_heads(setting, ranks.rank, list(range(Hq)), counts[ranks.rank])
    every_key = _of_heads(setting, ranks.rank, list(range(Hk)), counts[ranks.rank])
    queries, keys, values = heads.all_tokens(every_query, every_key, every_key)
    # query heads share a key/value head in runs of one length, here as in the whole
    run = heads.heads // keys.shape[1]
    read = [head // (Hq // Hk) for head in mine]
    if read != [head for head in read[::run] for _ in range(run)]:
        return f"{keys.shape[1]} key heads arrived for query heads that read {read}"
    for name, found, expected, total in (
        ("query", queries, list(mine), Hq),
        ("key", keys, read[::run], Hk),
        # the same tags: values are sent as keys are
        ("key", values, read[::run], Hk),
    ):
        if found.shape[1] != len(expected):
            return f"{found.shape[1]} {name} heads arrived instead of {expected}"
        for rank, part in enumerate(found.split(list(counts), 2)):
            names = {
                f"{name} head {h} of rank {ranks.name(r)}": _of_heads(setting, r, [h], counts[rank])
                for h in range(total)
                for r in range(ranks.world)
            }
            for place, head in enumerate(expected):
                wanted = f"{name} head {head} of rank {ranks.name(rank)}"
                if said := difference(part[:, place : place + 1], names[wanted], names):
                    return f"where {wanted} belongs: {said}"
    return ""


def _heads_back(setting: Setting, ranks: Transport) -> str:
    counts, Hq, Hk = _head_sizes(ranks)
    heads = setting.exchange(ranks, counts, counts, Hq, Hk)
    mine = list(range(ranks.rank * heads.heads, (ranks.rank + 1) * heads.heads))
    whole = torch.cat([_of_heads(setting, r, mine, n) for r, n in enumerate(counts)], 2)
    found, _ = heads.back(whole)
    expected = _of_heads(setting, ranks.rank, list(range(Hq)), counts[ranks.rank])
    if found.shape != expected.shape:
        return f"{tuple(found.shape)} instead of {tuple(expected.shape)}"
    names = {f"head {h}": expected[:, h : h + 1] for h in range(Hq)}
    for head in range(Hq):
        if said := difference(found[:, head : head + 1], names[f"head {head}"], names):
            return f"where head {head} belongs: {said}"
    return ""

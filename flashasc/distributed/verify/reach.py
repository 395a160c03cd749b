"""Where each fault can act: one that cannot would be taken for checks that find nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .outcomes import ALL_OPS, OPS, Layer, Op

_RING: tuple[Op, ...] = ("ring", "hybrid")
_FUSED: tuple[Op, ...] = ("ulysses-fused",)


@dataclass(frozen=True)
class Reach:
    """What a fault needs.

    Attributes:
        ops: that it acts in, by layer.
        ranks: how many, at least.
        ring: those of a ring are meant, which a mesh has fewer of.
    """

    ops: Mapping[Layer, tuple[Op, ...]]
    ranks: int = 2
    ring: bool = False


_ARRIVALS = Reach({"comm": ALL_OPS, "fused": ALL_OPS})
_SUMS = Reach({"comm": ALL_OPS})
_TRANSFERS = Reach({"comm": OPS, "fused": ALL_OPS})
_BLOCKS = Reach({"compute": OPS, "fused": _RING}, 1)
_MERGES = Reach({"compute": ("ring",), "fused": _RING}, 1)
_STORES = Reach({"comm": _FUSED, "fused": _FUSED})
_REACH: dict[str, Reach] = {
    **dict.fromkeys(("swap-blocks", "stale-buffer", "corrupt", "zeros", "truncate"), _ARRIVALS),
    "drop-send": Reach({"comm": _RING, "fused": _RING}, 2, ring=True),
    # of two ranks the one before is the next one
    "wrong-peer": Reach({"comm": _RING, "fused": _RING}, 3, ring=True),
    **dict.fromkeys(("kill", "late"), _TRANSFERS),
    **dict.fromkeys(("count-twice", "wrong-shard"), _SUMS),
    "stale-heads": Reach(dict.fromkeys(("comm", "fused"), ("ulysses", "hybrid"))),
    **dict.fromkeys(("wrong-diagonal", "sink-twice"), _BLOCKS),
    **dict.fromkeys(("skip-merge", "rounded-states"), _MERGES),
    "skip-block": Reach({"compute": ("ring",), "fused": _RING}, 2, ring=True),
    "shifted-output": Reach({"fused": ALL_OPS}, 1),
}


def heads_of(world: int) -> int:
    """How many of so many ranks share heads in the mesh: few, but all where they are prime."""
    return next((n for n in range(2, world) if world % n == 0), world)


def require_reach(name: str, layers: Sequence[Layer], ops: Sequence[Op], world: int) -> None:
    """Refuse a fault that cannot act in what is asked for.

    Raises:
        ValueError: the message says what it needs.
    """
    reach = _REACH.get(name, _STORES)
    for layer in layers:
        for op in set(ops) & set(reach.ops.get(layer, ())):
            ranks = world // heads_of(world) if reach.ring and op == "hybrid" else world
            if ranks >= reach.ranks:
                return
    needs = "; ".join(f"--layer {layer} with --op {', '.join(o)}" for layer, o in reach.ops.items())
    where = "of a ring, " if reach.ring else ""
    raise ValueError(
        f"--inject: {name} cannot act in what is asked for: it needs {reach.ranks} ranks {where}"
        f"or more, and {needs}; got {world} ranks, {', '.join(layers)}, {', '.join(ops)}"
    )

"""What a compiled kernel does in one iteration of its main loop, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Product:
    """Matrix products of one shape on one cube core.

    Attributes:
        m, n, k: a [m, k] tile times a [k, n] tile, padded as the cube computes it.
        dtype: what is multiplied: "f16", "bf16", "f32", "i8", ...
        count: how many there are in one iteration.
    """

    m: int
    n: int
    k: int
    dtype: str
    count: float


@dataclass(frozen=True)
class Workload:
    """What one iteration of a kernel's main loop does on one cube core and each vector core.

    Static counts, read from the compiler's output: nothing was run or timed.

    Attributes:
        loop_step: step of the main loop, in the units of its variable (keys, for attention; 1
            where the loop counts tiles). None: no loop has work in it (the whole program is
            counted), or its step is no constant.
        products: matrix products.
        vector_ops: kind -> how many operations, branches included: "vexp", "vreduce <max>",
            "call name" (a device library function), "scalar load" (an element at a time).
        vector_repeats: 256-byte vector operations that always run.
        branch_repeats: those inside `if`s, as when every branch is taken.
        bytes_moved: route -> bytes, branches included. "GM->L1", "L0C->GM:workspace", "L1->..."
            are one cube core's, what starts or ends in "UB" is one vector core's ("L0C->UB", on
            A5, is the cube core's). "GM:workspace" is global memory that the compiler put in for
            tiles which pass between the cores.
        core_syncs: waits on another core, of whichever core waits more often.
        local_syncs: waits of one core's units on each other: flags and pipe barriers, both cores.
        doubled: buffers kept twice, "64x256xf32@UB".
        loop_buffers_single: buffers that the loop's transfers fill or empty and that are not.
        tiles_in_flight: iterations that the compiler interleaves, so that cube and vector cores
            work on different ones at a time.
    """

    loop_step: int | None
    products: tuple[Product, ...]
    vector_ops: Mapping[str, float] = field(hash=False)
    vector_repeats: int
    branch_repeats: int
    bytes_moved: Mapping[str, int] = field(hash=False)
    core_syncs: int
    local_syncs: int
    doubled: tuple[str, ...]
    loop_buffers_single: tuple[str, ...]
    tiles_in_flight: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the workload as plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        """Rebuild a workload from `to_json`'s answer.

        Raises:
            KeyError, TypeError: `data` is not such an answer.
        """
        return cls(
            **{
                **data,
                "products": tuple(Product(**product) for product in data["products"]),
                "doubled": tuple(data["doubled"]),
                "loop_buffers_single": tuple(data["loop_buffers_single"]),
            }
        )

"""A cost model on paper: from a kernel's static counts to time. Every answer is an estimate.

The model, for one cube core and its two vector cores:

- cube: each product takes m*n*k*2 / (operations per cycle of its dtype) cycles.
- vector: each 256-byte operation takes 256 / (vector bytes per cycle) cycles, whatever it is.
- transfer: every route has a port with a fixed rate, and ports work side by side: the cube core's
  reads (GM to L1), its writes (L0C to GM or UB), its operand loads (L1 to L0), a vector core's
  reads (GM to UB) and its writes (UB to GM or L1). The busiest port counts.
- One iteration takes as long as the busiest of these, if all overlap (`iteration_us`), and as long
  as all of them together if nothing does (`serial_us`). Waits cost nothing by themselves.
- A kernel with products finds what it reads in the second-level cache (192 MB on A2, 112 MB on
  950PR: keys and values of the heads at work, and the compiler's workspace); one without streams
  through global memory, whose bandwidth all cores share.

The numbers, and the source of each, are `flashasc.ascend.hardware`. How far off the model is
where rates are published: docs/ascend-cost-model.md. Nothing here was measured on an NPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from flashasc.ascend.hardware import Hardware, hardware_of
from flashasc.ascend.workload import Workload


@dataclass(frozen=True)
class Estimate:
    """An estimate, on paper, of one iteration of a kernel's main loop. Nothing was measured.

    Attributes:
        cube_us, vector_us, transfer_us: microseconds that the iteration keeps the cube, the
            vector unit and the busiest transfer route occupied.
        bound_by: the longest of them.
        iteration_us: how long the iteration takes when they overlap fully: the longest.
        fraction_of_peak: the products' operations over what the cube could do in that time, at
            its fp16 rate; 0 for a kernel without products.
        serial_us: how long it takes when nothing overlaps: everything, one after the other.
        busiest_route: the port that `transfer_us` is of.
    """

    cube_us: float
    vector_us: float
    transfer_us: float
    bound_by: Literal["cube", "vector", "transfer"]
    iteration_us: float
    fraction_of_peak: float
    serial_us: float
    busiest_route: str


@dataclass(frozen=True)
class KernelEstimate:
    """An estimate of a whole attention kernel: time, and useful operations (4 D a visible pair)."""

    us: float
    tflop_per_s: float
    fraction_of_peak: float


def estimate(
    workload: Workload, arch: str, *, hardware: Hardware | None = None, branches: float = 0.0
) -> Estimate:
    """Estimate one iteration of a kernel's main loop.

    Args:
        workload: the kernel's, compiled for `arch`.
        arch: processor name, e.g. "Ascend910B3".
        hardware: numbers to use instead of those known for `arch`.
        branches: share of iterations that take the conditional branches, 0 to 1: tiles that need
            a mask. 0 is the inner tiles of a long sequence.

    Raises:
        ValueError: `arch` is not a processor name that the compiler knows, or `branches` is
            outside 0 to 1.
    """
    if not 0 <= branches <= 1:
        raise ValueError(f"branches: expected a share from 0 to 1, got {branches!r}")
    known = hardware or hardware_of(arch)
    flop = cube = 0.0
    for product in workload.products:
        work = 2.0 * product.m * product.n * product.k * product.count
        flop += work
        cube += work / known.cube_flop_per_cycle[product.dtype]
    repeats = workload.vector_repeats + branches * workload.branch_repeats
    moved_in_place = workload.bytes_moved.get("UB->UB", 0)
    vector = (256 * repeats + moved_in_place) / known.vector_bytes_per_cycle
    ports = _ports(workload, known)
    busiest = max(ports, key=lambda port: ports[port])
    times: dict[Literal["cube", "vector", "transfer"], float] = {
        "cube": cube,
        "vector": vector,
        "transfer": ports[busiest],
    }
    bound_by = max(times, key=lambda part: times[part])
    cycles = times[bound_by]
    peak = known.cube_flop_per_cycle["f16"]
    return Estimate(
        cube_us=known.us(cube),
        vector_us=known.us(vector),
        transfer_us=known.us(ports[busiest]),
        bound_by=bound_by,
        iteration_us=known.us(cycles),
        fraction_of_peak=flop / (cycles * peak) if cycles else 0.0,
        # operands stream into the products as they run
        serial_us=known.us(cube + vector + sum(n for port, n in ports.items() if port != "L1->L0")),
        busiest_route=busiest,
    )


def attention_time(
    workload: Workload,
    arch: str,
    *,
    B: int,
    Hq: int,
    Sq: int,
    Sk: int,
    D: int,
    block_m: int,
    causal: bool,
    hardware: Hardware | None = None,
    overlap: bool = True,
) -> KernelEstimate:
    """Estimate a whole attention kernel that runs as a core loop over (batch, head, query tile).

    Args:
        workload: of the kernel's loop over keys; its `loop_step` is the keys in a tile.
        arch: processor name.
        B, Hq, Sq, Sk, D: the problem; Dv is D. The causal diagonal is aligned bottom-right.
        block_m: queries in a tile.
        causal: whether tiles above the diagonal are left out, and those on it take the branches.
        hardware: numbers to use instead of those known for `arch`.
        overlap: False for the other end of the range: nothing within an iteration overlaps.

    Returns:
        The launch, and the core with the most work: its tiles, plus the part of one iteration
        per task that nothing overlaps with, as the pipeline fills and drains.

    Raises:
        ValueError: as `estimate`; or the workload has no loop over keys.
    """
    if not workload.loop_step:
        raise ValueError("workload: expected a loop over keys of known step, this has none")
    known = hardware or hardware_of(arch)
    inner, edge = (estimate(workload, arch, hardware=known, branches=b) for b in (0.0, 1.0))
    per_tile = [e.iteration_us if overlap else e.serial_us for e in (inner, edge)]
    fill = inner.serial_us - inner.iteration_us if overlap else 0.0
    blocks = math.ceil(Sq / block_m)
    times = []
    for block in range(blocks):
        first, last = (row + Sk - Sq for row in (block * block_m, (block + 1) * block_m - 1))
        seen = min(max(last + 1, 0), Sk) if causal else Sk
        tiles = math.ceil(seen / workload.loop_step)
        clear = min(max(first + 1, 0) // workload.loop_step, tiles) if causal else tiles
        times.append(clear * per_tile[0] + (tiles - clear) * per_tile[1] + (fill if tiles else 0))
    busy = [0.0] * known.cube_cores
    for task in range(B * Hq * blocks):
        busy[task % known.cube_cores] += times[task % blocks]
    us = known.launch_us + max(busy)
    pairs = sum(min(max(row + 1 + Sk - Sq, 0), Sk) for row in range(Sq)) if causal else Sq * Sk
    rate = 4.0 * B * Hq * D * pairs / (us * 1e-6)
    return KernelEstimate(us, rate / 1e12, rate / known.peak_flop_per_s)


def _ports(workload: Workload, known: Hardware) -> dict[str, float]:
    """Return the cycles that each transfer port is busy, in one iteration."""
    ports = dict.fromkeys(("GM->L1", "L0C->", "L1->L0", "GM->UB", "UB->"), 0.0)
    for route, size in workload.bytes_moved.items():
        source, _, target = route.partition("->")
        source, target = source.removesuffix(":workspace"), target.removesuffix(":workspace")
        if (source, target) == ("UB", "UB"):
            continue
        port = f"{source}->" if source in ("L0C", "UB") else f"{source}->{target}"
        rate = {
            ("L0C", "UB"): known.l0c_to_ub_bytes_per_cycle,
            ("UB", "L1"): known.ub_to_l1_bytes_per_cycle,
        }.get((source, target))
        if rate is None:
            rate = known.read_bytes_per_cycle if source == "GM" else known.write_bytes_per_cycle
        ports[port] = ports.get(port, 0.0) + size / rate
    for product in workload.products:
        width = {"f32": 4, "i8": 1}.get(product.dtype, 2) * product.count
        ports["L1->L0"] += product.m * product.k * width / known.l0a_bytes_per_cycle
        ports["L1->L0"] += product.k * product.n * width / known.l0b_bytes_per_cycle
    if not workload.products:
        # a stream: each vector core has its share of global memory, for both directions together
        share = known.gm_bytes_per_s / known.vector_cores / known.clock_hz
        streamed = sum(n for r, n in workload.bytes_moved.items() if "GM" in r.split("->"))
        ports["global memory"] = streamed / share
    return ports

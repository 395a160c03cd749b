"""A cost model on paper: from a kernel's static counts to time. Every answer is an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from flashasc.ascend.workload import Workload


@dataclass(frozen=True)
class Hardware:
    """What the model knows of one processor.

    Attributes:
        cube_cores, vector_cores: how many there are.
        clock_hz: of both.
        cube_flop_per_cycle: dtype -> floating-point operations of one cube core in one cycle.
        vector_bytes_per_cycle: one vector core's 256-byte operations move this much a cycle.
        gm_bytes_per_s: global memory, all cores together.
        l2_bytes_per_s: what stays in the second-level cache (workspace, KV of one head), likewise.
        core_bytes_per_cycle: what one core's own port moves at most, either way.
        launch_s: from launch to the first program.
        sources: field -> where its number comes from.
    """

    cube_cores: int
    vector_cores: int
    clock_hz: float
    cube_flop_per_cycle: Mapping[str, float] = field(hash=False)
    vector_bytes_per_cycle: float
    gm_bytes_per_s: float
    l2_bytes_per_s: float
    core_bytes_per_cycle: float
    launch_s: float
    sources: Mapping[str, str] = field(hash=False, repr=False)


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
    """

    cube_us: float
    vector_us: float
    transfer_us: float
    bound_by: Literal["cube", "vector", "transfer"]
    iteration_us: float
    fraction_of_peak: float


def estimate(workload: Workload, arch: str, *, hardware: Hardware | None = None) -> Estimate:
    """Estimate one iteration of a kernel's main loop.

    Args:
        workload: the kernel's, compiled for `arch`.
        arch: processor name, e.g. "Ascend910B3".
        hardware: numbers to use instead of those known for `arch`.

    Raises:
        ValueError: `arch` is not a processor name that the compiler knows.
    """
    raise NotImplementedError("flashasc.ascend.estimate: the model is not in yet")

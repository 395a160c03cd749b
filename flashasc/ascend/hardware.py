"""Published numbers of Ascend processors, each with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flashasc.ascend.toolchain import family


@dataclass(frozen=True)
class Hardware:
    """What the cost model knows of one processor.

    Attributes:
        cube_cores, vector_cores: how many there are.
        clock_hz: of both.
        cube_flop_per_cycle: dtype -> operations of one cube core in one cycle.
        vector_bytes_per_cycle: what one vector core's operations get through.
        l0a_bytes_per_cycle, l0b_bytes_per_cycle: L1 to the cube's operand memories.
        read_bytes_per_cycle, write_bytes_per_cycle: one core from and to the second-level cache.
        l0c_to_ub_bytes_per_cycle, ub_to_l1_bytes_per_cycle: between the cores, on A5.
        gm_bytes_per_s: global memory, all cores together.
        launch_us: from a launch to its first program, and from the last to its end.
        sources: where the numbers come from, by field.
    """

    cube_cores: int
    vector_cores: int
    clock_hz: float
    cube_flop_per_cycle: Mapping[str, float] = field(hash=False)
    vector_bytes_per_cycle: float
    l0a_bytes_per_cycle: float
    l0b_bytes_per_cycle: float
    read_bytes_per_cycle: float
    write_bytes_per_cycle: float
    l0c_to_ub_bytes_per_cycle: float
    ub_to_l1_bytes_per_cycle: float
    gm_bytes_per_s: float
    launch_us: float
    sources: Mapping[str, str] = field(hash=False, repr=False)

    def us(self, cycles: float) -> float:
        """Return how long so many cycles take, in microseconds."""
        return cycles / self.clock_hz * 1e6

    @property
    def peak_flop_per_s(self) -> float:
        """The cube cores' fp16 rate."""
        return self.cube_cores * self.clock_hz * self.cube_flop_per_cycle["f16"]


def hardware_of(arch: str) -> Hardware:
    """Return what is known of a processor.

    Raises:
        ValueError: `arch` is not a processor name that the compiler knows.
    """
    cube_cores = _cube_cores(arch)
    # One 16x16x16 step a cycle; an int8 step is 32 deep. fp32: see the sources.
    flop = {"f16": 8192.0, "bf16": 8192.0, "i8": 16384.0, "f32": 2048.0}
    if family(arch) == "A5":
        return Hardware(
            cube_cores=cube_cores,
            vector_cores=2 * cube_cores,
            clock_hz=1.65e9,
            cube_flop_per_cycle=flop,
            vector_bytes_per_cycle=512,
            l0a_bytes_per_cycle=256,
            l0b_bytes_per_cycle=256,
            read_bytes_per_cycle=100,
            write_bytes_per_cycle=100,
            l0c_to_ub_bytes_per_cycle=128,
            ub_to_l1_bytes_per_cycle=128,
            gm_bytes_per_s=1.6e12,
            launch_us=LAUNCH_US,
            sources={**_SOURCES, **_A5_SOURCES},
        )
    return Hardware(
        cube_cores=cube_cores,
        vector_cores=2 * cube_cores,
        clock_hz=1.8e9,
        cube_flop_per_cycle=flop,
        vector_bytes_per_cycle=256,
        l0a_bytes_per_cycle=512,
        l0b_bytes_per_cycle=256,
        read_bytes_per_cycle=110,
        write_bytes_per_cycle=86,
        l0c_to_ub_bytes_per_cycle=256,
        ub_to_l1_bytes_per_cycle=128,
        gm_bytes_per_s=1.6e12,
        launch_us=LAUNCH_US,
        sources={**_SOURCES, **_A2_SOURCES},
    )


LAUNCH_US = 11.8

_INI = "CANN runtime, src/platform/platform_config"
_SOURCES = {
    "cube_cores": "CUBE_CORE_COUNT of bishengir 1.2.0's device spec (--hacc-append-device-spec)",
    "cube_flop_per_cycle": (
        f"{_INI}: cube_m/n/k_size=16; DT_INT8=16,32,16. fp32 at a quarter of fp16 is an "
        "assumption: no public figure for IEEE fp32 on the cube was found"
    ),
    "launch_us": "fitted to one published rate, PTO-ISA's at 1K x 1K (see calibration)",
}
_A2_SOURCES = {
    "clock_hz": f"{_INI}/Ascend910B2C.ini: cube_freq=1800; assumed of all A2 and A3",
    "vector_bytes_per_cycle": (
        "hiascend.com, Ascend C best practices: 11.06 TFLOP/s fp32 = 48 cores x 1.8 GHz x 64 "
        "lanes x 2; vec_calc_size=128 (fp16 lanes) says the same. Every operation is assumed to "
        "run at this rate, exp and reductions too"
    ),
    "read_bytes_per_cycle": f"{_INI}/Ascend910B2C.ini: l2_read_rate=110",
    "write_bytes_per_cycle": f"{_INI}/Ascend910B2C.ini: l2_write_rate=86",
    "l0a_bytes_per_cycle": f"{_INI}/Ascend910B2C.ini: l1_to_l0_a_rate=512, l1_to_l0_b_rate=256",
    "gm_bytes_per_s": "CANN ops documentation, platform comparison: 1.6 TB/s",
}
_A5_SOURCES = {
    "clock_hz": f"{_INI}/Ascend950PR_957bx.ini: cube_freq=1650; assumed of all A5",
    "vector_bytes_per_cycle": (
        "Ascend 950 white paper as cited in cann/ops-nn issue 6033: 54 TFLOP/s fp16 = 64 cores x "
        "1.65 GHz x 256 lanes x 2. Register reads and writes count as operations, which is harsh"
    ),
    "read_bytes_per_cycle": f"{_INI}/Ascend950PR_957bx.ini: l2_read_rate=l2_write_rate=100",
    "l0a_bytes_per_cycle": f"{_INI}/Ascend950PR_957bx.ini: l1_to_l0_a/b_rate=256",
    "l0c_to_ub_bytes_per_cycle": f"{_INI}/Ascend950PR_957bx.ini: l0_c_to_ub_rate=128",
    "ub_to_l1_bytes_per_cycle": f"{_INI}: ub_to_l1_rate=128 of the 910B2C, assumed of A5",
    "gm_bytes_per_s": "CANN ops documentation, platform comparison: 1.6 TB/s",
}

# by the compiler's device specs; of the A5 names, the digits after the underscore tell
_CUBE_CORES = {
    **dict.fromkeys(("Ascend910B1", "Ascend910B2", "Ascend910B2C"), 24),
    **dict.fromkeys(("Ascend910B3", "Ascend910B4", "Ascend910B4-1"), 20),
    **dict.fromkeys(("Ascend910_9362", "Ascend910_9372"), 20),
    **dict.fromkeys((f"Ascend910_93{n}" for n in (81, 82, 91, 92)), 24),
}
_A5_CUBE_CORES = {"957": 28, "958": 32, "959": 36, "95A": 36}
_A5_SMALL = {"950z": 4, "950x": 8, "950y": 8}


def _cube_cores(arch: str) -> int:
    family(arch)  # an unknown name raises, and lists the known ones
    if arch in _CUBE_CORES:
        return _CUBE_CORES[arch]
    model = arch.rpartition("_")[2]
    return _A5_SMALL.get(model) or _A5_CUBE_CORES[model[:3]]

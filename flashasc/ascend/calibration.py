"""The cost model against published attention rates. `python -m flashasc.ascend.calibration`.

Rates of an Ascend 910B2, fp16, one head, D = 128, not causal: `npu_fusion_attention` and the
PTO-ISA flash attention, TFLOP/s, at Sq = Sk = 1K, 8K, 32K.
"""

from __future__ import annotations

from collections.abc import Iterator

from flashasc.ascend.estimate import attention_time, estimate
from flashasc.ascend.workload import Product, Workload

ARCH = "Ascend910B2"
PUBLISHED = {1024: (9.0, 26.0), 8192: (97.0, 117.0), 32768: (151.0, 168.0)}
"""Sq = Sk -> (npu_fusion_attention, PTO-ISA), TFLOP/s."""

BLOCK = 128


def schedule() -> Workload:
    """The iteration of a 128 x 128 tile as PTO-ISA describes it, counted by hand.

    Q stays in L1; K and V tiles are read; scores and P.V leave as fp32 and P returns as fp16, all
    through global memory; each vector core has 64 rows. Six passes over the scores (scale, row
    maximum, subtract, exp, row sum, cast) and two over the output (rescale, add).
    """
    d, rows = 128, BLOCK // 2
    scores, output = rows * BLOCK * 4, rows * d * 4
    return Workload(
        loop_step=BLOCK,
        products=(Product(BLOCK, BLOCK, d, "f16", 1), Product(BLOCK, d, BLOCK, "f16", 1)),
        vector_ops={"scores": 6, "output": 2},
        vector_repeats=6 * scores // 256 + 2 * output // 256,
        branch_repeats=0,
        bytes_moved={
            "GM->L1": 2 * BLOCK * d * 2,
            "GM:workspace->L1": BLOCK * BLOCK * 2,
            "L0C->GM:workspace": 2 * (scores + output),
            "GM:workspace->UB": scores + output,
            "UB->GM:workspace": rows * BLOCK * 2,
        },
        core_syncs=3,
        local_syncs=0,
        doubled=(),
        loop_buffers_single=(),
    )


def table() -> Iterator[str]:
    """Yield the lines of the comparison, as docs/ascend-cost-model.md has them."""
    yield "| Sq = Sk | estimate, all overlapped | nothing overlapped | PTO-ISA | vendor op |"
    yield "|---|---|---|---|---|"
    work = schedule()
    for length, (vendor, pto) in PUBLISHED.items():
        fast, slow = (
            attention_time(
                work,
                ARCH,
                B=1,
                Hq=1,
                Sq=length,
                Sk=length,
                D=128,
                block_m=BLOCK,
                causal=False,
                overlap=overlap,
            ).tflop_per_s
            for overlap in (True, False)
        )
        yield (
            f"| {length} | {fast:.0f} | {slow:.0f} | {pto:.0f} ({fast / pto:.2f} times too high) "
            f"| {vendor:.0f} ({fast / vendor:.2f} times) |"
        )


if __name__ == "__main__":
    print("\n".join(table()))
    print(estimate(schedule(), ARCH))

"""From which length on `compensated="auto"` compensates."""

from __future__ import annotations

REDUCTION_LENGTH = 1024
"""Numbers in a row from which on a reduction's sums are compensated.

bench/results/reduction_accuracy_cpu.json, the kernels as lowered for Ascend910B3 and run on a CPU,
which adds a tile's lanes in order: a plain sum of 1024 numbers is off by up to 9 ulp where they are
uniform in [0, 1) and by 110 where all are equal; of 64 numbers by 3 and 13; a compensated one by
half an ulp at any length. Rows below are short enough for a plain sum.
"""

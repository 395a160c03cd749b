"""From which length on `compensated="auto"` compensates."""

from __future__ import annotations

REDUCTION_LENGTH = 1024
"""Numbers in a row from which on a reduction's sums are compensated.

bench/results/reduction_accuracy_cpu.json, the kernels as lowered for Ascend910B3 and run on a CPU,
which adds a tile's lanes in order: over 1024 numbers a plain sum is off by up to 17 ulp where they
are uniform in [0, 1) and by 124 where all are equal, a compensated one by half an ulp. Below, rows
are so short that what a compensated sum costs is the larger part of the work.
"""

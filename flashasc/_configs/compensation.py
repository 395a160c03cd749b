"""From which length on `compensated="auto"` compensates a sum: the one place that says it.

Products: how many times the error of plain float32 sums is that of compensated ones (positive data;
on a CPU, `python -m bench.gemm_accuracy`, bench/results/gemm_accuracy.json):

    K                               1 024   4 096   16 384   65 536   1 048 576
    reference, in PyTorch             1.0     1.5        3        7          32
    kernel, as lowered for Ascend      11      27       58       57          19

The kernel adds one product after the other, which no library does; the parts of a K above 32 768
are summed apart, and a plain sum gains by it. Where short sums are added up in several lanes, as
the reference's are and those within a GPU's tensor cores, compensation shows from about 4 096 on;
below, a call does without what it costs.
"""

from __future__ import annotations

PRODUCT_LENGTH = 4096
"""Products in each sum of a matrix product."""

REDUCTION_LENGTH = 1024
"""Numbers in a row from which on a reduction's sums are compensated.

bench/results/reduction_accuracy_cpu.json, the kernels as lowered for Ascend910B3 and run on a CPU,
which adds a tile's lanes in order: a plain sum of 1024 numbers is off by up to 9 ulp where they are
uniform in [0, 1) and by 110 where all are equal; of 64 numbers by 3 and 13; a compensated one by
half an ulp at any length. Rows below are short enough for a plain sum.
"""

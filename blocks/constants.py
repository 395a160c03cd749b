"""Constants shared by the device functions.

They are `tl.constexpr`, so that kernels may use them; host code reads `.value`.
"""

import math

import triton.language as tl

LOG2E = tl.constexpr(math.log2(math.e))
"""log2(e): multiply a natural-log score by it to get log2 units."""

LN2 = tl.constexpr(math.log(2.0))
"""ln(2): multiply a log2-unit score by it to get natural-log units."""

LN2_HIGH = tl.constexpr(177.0 / 256.0)
"""The first 8 bits of ln(2): its product with a whole number below 2**16 is exact in fp32."""

LN2_LOW = tl.constexpr(math.log(2.0) - 177.0 / 256.0)
"""The rest of ln(2)."""

INF = tl.constexpr(float("inf"))
NEG_INF = tl.constexpr(float("-inf"))

LARGEST = tl.constexpr((2.0 - 2.0**-23) * 2.0**127)
"""The largest finite fp32 number."""

FP16_PIVOT_DROP = tl.constexpr(14.0)
"""log2 units by which the softmax pivot is lowered for fp16 weights.

The largest weight becomes 2**14 (fp16 ends at 65504), so that keys up to 2**-28 below it keep all
11 bits instead of sinking into the subnormals. The factor cancels in the final division.
14 * ln(2), by which natural pivots are lowered, lies within 2.7e-8 of an fp32 number.
"""

FP16_PIVOT_FACTOR = tl.constexpr(2.0**-14)
"""2**-FP16_PIVOT_DROP."""

FP16_PIVOT_DROP_END = tl.constexpr(2.0**24)
"""Row maxima of this size or more keep their pivot: fp32 numbers lie too far apart to lower it."""

IEEE = tl.constexpr("ieee")
"""Products that lose nothing of their factors: a default, which as a bare string upstream Triton
does not take."""

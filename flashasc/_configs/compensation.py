"""From which length on `compensated="auto"` compensates a sum: the one place that says it."""

from __future__ import annotations

PRODUCT_LENGTH = 4096
"""Products in each sum of a matrix product."""

REDUCTION_LENGTH = 4096
"""Numbers in a row from which on a reduction's sums are compensated.

A plain sum adds in lanes, so that its error grows with the number of tiles a row has.
"""

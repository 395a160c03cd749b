"""From which length on `compensated="auto"` compensates a sum: the one place that says it."""

from __future__ import annotations

PRODUCT_FROM = 4096
"""Length K of the sums of a matrix product."""

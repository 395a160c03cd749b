"""Operators beside attention whose long sums keep their digits."""

from .norms import layer_norm, rms_norm, softmax
from .reductions import amax, amin, logsumexp, mean, norm, sum, var

__all__ = [
    "amax",
    "amin",
    "layer_norm",
    "logsumexp",
    "mean",
    "norm",
    "rms_norm",
    "softmax",
    "sum",
    "var",
]

"""Operators beside attention whose long sums keep their digits."""

from .norms import layer_norm, rms_norm, softmax
from .products import bmm, explain, linear, matmul
from .reductions import amax, amin, logsumexp, mean, norm, sum, var

__all__ = [
    "amax",
    "amin",
    "bmm",
    "explain",
    "layer_norm",
    "linear",
    "logsumexp",
    "matmul",
    "mean",
    "norm",
    "rms_norm",
    "softmax",
    "sum",
    "var",
]

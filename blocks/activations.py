"""Elementwise functions for the end of a kernel: what becomes of a finished fp32 tile.

Any `@triton.jit` function of one tile can stand in their place. NaN stays NaN.
"""

import triton
import triton.language as tl

from .scores import tanh


@triton.jit
def relu(x):
    """x where it is positive, 0 elsewhere; [...] fp32."""
    # a maximum would lose NaN
    return tl.where(x < 0.0, 0.0, x)


@triton.jit
def silu(x):
    """x / (1 + e**-x), also called swish; [...] fp32."""
    return tl.div_rn(x, 1.0 + tl.exp(-x))


@triton.jit
def gelu(x):
    """x times the share of a standard normal distribution below x; [...] fp32."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    """The approximation of `gelu` by a hyperbolic tangent; [...] fp32.

    Source: Hendrycks, Gimpel, arXiv:1606.08415 (2016).
    """
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))

"""Derivatives that are asked for and not there."""

from __future__ import annotations

from torch import Tensor
from torch.autograd import forward_ad

from .arguments import Arguments


def no_forward_mode(call: Arguments) -> None:
    """Refuse what would lose its tangent without a word: operators have no forward-mode rule."""
    if forward_ad._current_level < 0:
        return
    inputs = (call.q, call.k, call.v, call.bias, call.alibi_slopes, call.sinks)
    if any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in inputs):
        raise NotImplementedError(
            "forward-mode derivatives (torch.func.jvp, torch.autograd.forward_ad) of "
            "flashasc.attention are not implemented; where you need them, use "
            "F.scaled_dot_product_attention under "
            "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
        )

"""The one place that picks between two ways of computing, and says why."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch

from ._configs import TileConfig, choose
from ._problem import AttentionProblem
from ._target import Target, target_of
from ._triton import require

Impl = Literal["auto", "triton", "reference"]


@dataclass(frozen=True)
class Plan:
    """How a call is computed. `print(plan)` says it in words."""

    route: Literal["reference", "device", "native", "interpreter"]
    reason: str
    target: Target | None = None
    """What the kernel is compiled for; None for the reference."""
    config: TileConfig | None = None
    """The row of the tile table it runs with; None for the reference."""

    def __str__(self) -> str:
        if self.config is None or self.target is None:
            return f"reference (plain PyTorch): {self.reason}"
        where = {
            "device": f"Triton kernel on {self.target.arch}",
            "native": f"Triton kernel, lowered for {self.target.arch}, natively on the CPU",
            "interpreter": "Triton kernel in Triton's interpreter",
        }[self.route]
        tile = f"tile {self.config.block_m} x {self.config.block_n}"
        loop = "one program a core" if self.config.core_loop else "one program a tile"
        return f"{where}: {self.reason}; {tile}, {loop} ({self.config.source})"


def kernel_route(device: torch.device) -> Literal["device", "native", "interpreter"]:
    """Where a kernel on tensors of this device runs."""
    if device.type != "cpu":
        return "device"
    return "interpreter" if os.environ.get("TRITON_INTERPRET") == "1" else "native"


def plan_attention(problem: AttentionProblem, impl: Impl) -> Plan:
    """Choose the route, the target and the tile for a call.

    An explicit `impl` is never replaced by another one.

    Raises:
        NotImplementedError: the kernel cannot do this, or has no table for this device.
        ImportError: the kernel is needed and no fitting Triton is installed.
    """
    device = problem.device.type
    match impl, device:
        case _, "meta":
            return Plan("reference", "meta tensors have shapes alone: nothing is computed")
        case "reference", _:
            return Plan("reference", "asked for")
        case _, _ if problem.empty:
            return Plan("reference", "no key or no output: at most sinks are to be written")
        case "auto", "cpu":
            return Plan("reference", "cpu tensors; impl='triton' would run the kernel")
        case "auto", _ if problem.dtype == torch.float64:
            return Plan("reference", "float64, which no kernel computes in")
    if problem.dtype == torch.float64:
        raise NotImplementedError(
            "the kernels do not compute in float64; use impl='reference', which is plain PyTorch"
        )
    reason = "asked for" if impl == "triton" else f"{device} tensors"
    route = kernel_route(problem.device)
    if route == "interpreter":
        reason += ", TRITON_INTERPRET=1"
    require(device, interpreted=route == "interpreter")
    target = target_of(problem.device)
    if route == "device" and target.family == "ascend" and not problem.in_pieces:
        # gathered element by element, such a tile overflows the chip's buffers
        raise NotImplementedError(
            f"the kernels for {target.arch} need q, k and v whose last stride, or the one before "
            "it, is 1, and a mask and a bias whose last stride is 1: rows or columns that lie in "
            "one piece. Make them so with .contiguous(), or use impl='reference'"
        )
    return Plan(route, reason, target, choose(problem, target))

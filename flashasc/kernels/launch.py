"""Start a kernel on a device, natively on the CPU, or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from .. import native
from .._interpreter import apply as cure_interpreter

Route = Literal["device", "native", "interpreter"]


def launch(
    kernel: Any,
    programs: int,
    args: Mapping[str, Any],
    constants: Mapping[str, Any],
    *,
    route: Route,
    device: torch.device,
    arch: str,
    options: Mapping[str, Any],
) -> None:
    """Run `programs` programs of a kernel.

    Args:
        kernel: a `triton.jit` function.
        programs: grid size, one-dimensional.
        args: runtime arguments by name: tensors, ints, floats.
        constants: constexpr arguments by name.
        route: "device" launches on the tensors' own device and its current stream.
        device: where the tensors are.
        arch: Ascend target whose lowering the "native" route runs.
        options: compiler options of the "device" route (num_warps, num_stages, ...).
    """
    match route:
        case "device":
            # Triton launches on the current device, which need not be the tensors' own
            with getattr(torch, device.type).device(device):
                kernel[(programs,)](**args, **constants, **options)
        case "native":
            native.launch(kernel, (programs,), args, constants, arch=arch)
        case "interpreter":
            cure_interpreter()
            kernel[(programs,)](**args, **constants)

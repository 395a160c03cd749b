"""Start a kernel on a device, natively on the CPU, or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from .._configs.ascend import launch_options
from .._interpreter import apply as cure_interpreter
from .._repeat import Launch, record
from .._target import current

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
        options: compiler options of the "device" route (num_warps, num_stages, ...), beside those
            that every launch on an NPU names.
    """
    match route:
        case "device":
            if device.type == "npu":
                options = {**launch_options(arch), **options}
            with current(device):
                compiled = kernel[(programs,)](**args, **constants, **options)
                record(lambda: _launch(kernel, compiled, programs, {**args, **constants}, device))
        case "native":
            # not needed on a device, and as long to import as all kernels together
            from .. import native

            native.launch(kernel, (programs,), args, constants, arch=arch)
            record(lambda: None)
        case "interpreter":
            cure_interpreter()
            kernel[(programs,)](**args, **constants)
            record(lambda: None)


def _launch(
    kernel: Any, compiled: Any, programs: int, values: Mapping[str, Any], device: torch.device
) -> Launch | None:
    """The launch of a compiled kernel, without what finds it among all that were compiled.

    On NVIDIA GPUs alone: nobody has seen an NPU take it.
    """
    if device.type != "cuda":
        return None
    # since Triton 3.3 compiled kernels are passed their constants too, and ignore them
    with_constants = len(compiled.src.signature) == len(kernel.params)
    names = [p.name for p in kernel.params if with_constants or not p.is_constexpr]
    return Launch(compiled[(programs, 1, 1)], [values[name] for name in names], names)

"""What hardware a tensor's device is: the only file that asks. Lazy and cached."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Literal

import torch

DEFAULT_NATIVE_ARCH = "Ascend910B3"
_AS_IT_IS = nullcontext()


@dataclass(frozen=True)
class Target:
    """What kernels are compiled for."""

    family: Literal["ascend", "nvidia"]
    arch: str
    """As the compiler spells it: "Ascend910B3", "sm_90"."""
    cores: int
    """Programs of a core loop: cube cores of an NPU, multiprocessors of a GPU."""
    triton: tuple[int, int] = (3, 6)
    """Version of upstream Triton, for NVIDIA."""


def target_of(device: torch.device) -> Target:
    """The target whose kernels serve tensors on this device.

    A CPU stands for the Ascend target that `FLASHASC_NATIVE_ARCH` names (Ascend910B3 without it):
    kernels lowered for it run natively there.

    Raises:
        NotImplementedError: no kernels for this kind of device.
    """
    match device.type:
        case "cpu":
            # 20 cube cores: Ascend910B3. Results do not depend on it, each task stands alone.
            return Target("ascend", os.environ.get("FLASHASC_NATIVE_ARCH", DEFAULT_NATIVE_ARCH), 20)
        case "cuda" if torch.version.hip is None:
            return _nvidia(
                device.index if device.index is not None else torch.cuda.current_device()
            )
        case "npu":
            return _ascend()
    raise NotImplementedError(
        f"flashasc has no kernels for {device.type} devices; "
        'use impl="reference", which is plain PyTorch'
    )


@lru_cache
def _nvidia(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    arch = f"sm_{properties.major}{properties.minor}"
    return Target("nvidia", arch, properties.multi_processor_count, _upstream_triton())


def _upstream_triton() -> tuple[int, int]:
    try:
        major, minor, *_ = metadata.version("triton").split(".")
    except metadata.PackageNotFoundError:
        # none, which is said where a kernel is started, or one that came with a PyTorch nightly
        return Target.triton
    return int(major), int(minor)


@lru_cache
def _ascend() -> Target:
    from triton.runtime import driver

    return Target(
        "ascend", driver.active.get_current_target().arch, driver.active.utils.get_aicore_num()
    )


def current(device: torch.device) -> AbstractContextManager[object]:
    """Makes a tensor's device the current one, on which Triton launches, for the time of a block.

    Costs next to nothing where it is so already.

    Args:
        device: of a tensor, with its index.
    """
    if device.type == "cpu" or (
        device.type == "cuda" and device.index == torch.cuda.current_device()
    ):
        return _AS_IT_IS
    context: AbstractContextManager[object] = getattr(torch, device.type).device(device)
    return context


def devices() -> list[tuple[str, str]]:
    """(device, what it is) for the CPU and every accelerator that PyTorch sees here.

    Asks the drivers, so it may start them; importing anything does not.
    """
    found = [("cpu", f"stands for {target_of(torch.device('cpu')).arch}")]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        size = properties.total_memory / 2**30
        kind = f"compute capability {properties.major}.{properties.minor}, {size:.0f} GiB"
        found.append((f"cuda:{index}", f"{properties.name}, {kind}"))
    # there once torch_npu is imported
    if npu := getattr(torch, "npu", None):
        found += [(f"npu:{i}", npu.get_device_name(i)) for i in range(npu.device_count())]
    return found

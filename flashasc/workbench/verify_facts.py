"""What a report says about the machine: what someone else needs to read it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from datetime import datetime, timezone
from typing import Any

import torch
import torch.distributed as dist

import flashasc
from flashasc.distributed.verify import Request

_PACKAGES = ("torch", "torch-npu", "triton", "triton-ascend", "numpy")
_SETTINGS = ("NCCL_", "HCCL_", "GLOO_", "ASCEND_", "TORCH_", "OMP_", "CUDA_VISIBLE", "MASTER_ADDR")


def facts(request: Request, device: torch.device) -> dict[str, Any]:
    """Machine, versions, settings and call."""
    found: dict[str, Any] = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "flashasc": flashasc.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "backend": str(dist.get_backend()),
        "device": str(device),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "settings": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_SETTINGS)
        },
        "request": {
            "layers": request.layers,
            "ops": request.ops,
            "dtypes": [str(dtype).removeprefix("torch.") for dtype in request.dtypes],
            "timeout": request.timeout,
            "runs": request.runs,
            "inject": request.inject,
            "at": request.at if request.inject else None,
        },
    }
    if device.type != "cpu":
        module = getattr(torch, device.type)
        found["card"] = module.get_device_name(device)
        found["cards"] = module.device_count()
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

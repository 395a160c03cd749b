"""Where a measurement was made: part of every result file."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"

PACKAGES = (
    "torch", "triton", "triton-ascend", "ascendnpu-ir", "numpy",
    "torch-npu", "fa3-fwd", "flash-attn-4",
)  # fmt: skip
"""Whose versions matter, those that are installed."""


def facts() -> dict[str, Any]:
    """Machine, versions and command of this process."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    found: dict[str, Any] = {
        "date": date.today().isoformat(),
        "command": " ".join([f"python -m {_module()}", *sys.argv[1:]]),
        "python": platform.python_version(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
    if hasattr(torch, "npu") and torch.npu.is_available():
        found["npu"] = torch.npu.get_device_name()
    return found


def _module() -> str:
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).stem


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()

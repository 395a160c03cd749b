"""What is installed, what was found, and how calls will be computed here: facts for a bug report.

Needs no optional package, so that it can say which are missing.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

import flashasc
from flashasc._target import devices
from flashasc._triton import installed
from flashasc.ascend import ToolchainError, versions
from flashasc.inspection import explain

__all__ = ["as_text", "gather"]

_PACKAGES = (
    "torch",
    "torch-npu",
    "triton",
    "triton-ascend",
    "ascendnpu-ir",
    "numpy",
    "einops",
    "pybind11",
    "transformers",
    "accelerate",
    "typer",
    "rich",
)
# what changes how kernels are found, compiled or run
_VARIABLES = ("FLASHASC_", "TRITON_", "ASCEND_", "NPU_", "CUDA_", "OMP_NUM_THREADS", "CC", "TORCH")


def gather() -> dict[str, Any]:
    """Everything, as what JSON can hold; a thing that cannot be found out says why in its place."""
    # registers the device type; where it is not installed or broken, that is a fact of its own
    npu = _tried(lambda: importlib.import_module("torch_npu") and "imported")
    return {
        "packages": {name: _version(name) for name in _PACKAGES},
        "system": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()),
            "processors": os.cpu_count(),
            "torch threads": torch.get_num_threads(),
        },
        "found": {
            "flashasc": f"{flashasc.__version__} at {Path(flashasc.__file__).parent}",
            "triton": installed().summary,
            "torch built for": _built_for(),
            "torch_npu": npu,
            "ascend compiler": _tried(_compiler),
            "c compiler": _tried(_c_compiler),
        },
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)
        },
        "devices": [_device(name, what) for name, what in _devices()],
    }


def _device(name: str, what: str) -> dict[str, str]:
    """A device and the routes of a usual call on it."""
    asked = [(torch.bfloat16, "auto"), (torch.bfloat16, "triton")]
    asked += [(torch.float32, "auto"), (torch.float64, "auto")]
    routes = {
        f"{str(dtype).removeprefix('torch.')}, impl={impl!r}": _tried(
            functools.partial(_route, name, dtype, impl)
        )
        for dtype, impl in asked
    }
    return {"device": name, "what": what, **routes}


def _devices() -> list[tuple[str, str]]:
    try:
        return devices()
    except RuntimeError as error:
        # a driver that does not start must not keep the rest from being told
        return [("cpu", ""), ("accelerators", f"{type(error).__name__}: {error}")]


def _route(device: str, dtype: torch.dtype, impl: Any) -> str:
    """What would compute causal attention with 8 heads of 64 over 1 024 tokens."""
    q = torch.empty(1, 8, 1024, 64, dtype=dtype, device=device)
    return str(explain(q, q, q, causal=True, impl=impl))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _built_for() -> str:
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else "CPU"


def _compiler() -> str:
    return ", ".join(f"{name} {version}" for name, version in versions().items())


def _c_compiler() -> str:
    from flashasc.native.host import c_compiler, c_compiler_version

    return f"{' '.join(c_compiler())}: {c_compiler_version()}"


def _tried(ask: Any) -> str:
    """The answer, or the error in its place: a report must come out whatever is broken."""
    try:
        return str(ask())
    except (ToolchainError, ImportError, NotImplementedError, RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {error}"


def as_text(facts: dict[str, Any]) -> str:
    """The facts as lines of text, for where no table can be drawn."""
    lines: list[str] = []
    for title, part in facts.items():
        rows = part if isinstance(part, list) else [part]
        for row in rows:
            lines.append(f"\n{title}")
            lines += [f"  {name}: {value}" for name, value in row.items()]
    return "\n".join(lines).strip()

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# a kernel's first call compiles, so no deadline; in CI the same examples every time
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# two workers with two threads each would wait for each other on two cores
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--budget", type=int, default=200, help="random calls a route in tests/fuzz (default 200)"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = {
        "gpu": torch.cuda.is_available(),
        "npu": hasattr(torch, "npu") and torch.npu.is_available(),
    }
    for item in items:
        for marker, available in here.items():
            if not available and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"no {marker.upper()} here"))


RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Run code in a fresh Python with the repository importable; fails unless it exits with 0."""

    def run(
        code: str, *arguments: str, env: dict[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run

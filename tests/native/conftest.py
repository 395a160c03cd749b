from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

# these need the packages of the extra `offline`; the rest of the folder does not
NEED_TOOLS = {
    "test_native_arithmetic.py",
    "test_native_cache.py",
    "test_native_driver.py",
    "test_native_errors.py",
    "test_native_launch.py",
    "test_native_threads.py",
}


def missing() -> str:
    if importlib.util.find_spec("triton") is None:
        return "no Triton is installed"
    if importlib.util.find_spec("triton.backends.ascend") is None:
        return "the Triton here is not triton-ascend"
    if importlib.util.find_spec("ascendnpuir") is None:
        return "ascendnpu-ir is not installed"
    return ""


class Skipped(pytest.Module):
    def collect(self) -> list[pytest.Item]:
        pytest.skip(missing(), allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if module_path.name in NEED_TOOLS and missing():
        module: pytest.Module = Skipped.from_parent(parent, path=module_path)
        return module
    return None


@pytest.fixture(scope="session")
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that holds the C runtime and nothing else."""
    from flashasc.native import program

    folder = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHASC_CACHE_DIR", str(folder))
        program._runtime()
    return folder


@pytest.fixture
def cold(runtime_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder without any kernel, and a process that has seen no kernel and no tool."""
    from flashasc.native import call, lowered, program

    shutil.copytree(runtime_folder, tmp_path / "cache")
    monkeypatch.setenv("FLASHASC_CACHE_DIR", str(tmp_path / "cache"))
    for module in (call, lowered, program):
        module.forget()
    yield tmp_path / "cache"
    # what was found out about replaced tools must not outlive the test
    monkeypatch.undo()
    for module in (call, lowered, program):
        module.forget()

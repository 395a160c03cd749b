from __future__ import annotations

import importlib.util
import pickle
import re
import subprocess
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from flashasc.ascend import ToolchainError, bishengir_tool, family, known_archs, toolchain, versions

has_compiler = pytest.mark.skipif(
    importlib.util.find_spec("ascendnpuir") is None, reason="ascendnpu-ir is not installed"
)


@pytest.mark.parametrize(
    "arch, generation",
    [
        ("Ascend910B3", "A2"),
        ("Ascend910B4-1", "A2"),
        ("Ascend910_9392", "A3"),
        ("Ascend910_9589", "A5"),
        ("Ascend950PR_9589", "A5"),
        ("Ascend950DT_95A2", "A5"),
    ],
)
def test_a_processor_belongs_to_a_generation(arch: str, generation: str) -> None:
    assert family(arch) == generation


@pytest.mark.parametrize("arch", ["Ascend910B5", "ascend910b3", "Unknown", ""])
def test_an_unknown_processor_lists_the_known_ones(arch: str) -> None:
    with pytest.raises(ValueError, match="arch: expected an Ascend processor name") as raised:
        family(arch)
    for known in known_archs():
        assert known in str(raised.value)
    assert repr(arch) in str(raised.value)


@has_compiler
@pytest.mark.parametrize("arch", ["Ascend910B3", "Ascend950PR_9589"])
def test_the_compiler_accepts_every_processor_listed(arch: str) -> None:
    said = subprocess.run(
        [bishengir_tool("compile", arch), "--help"], capture_output=True, text=True, check=True
    ).stdout
    accepted = set(re.findall(r"^\s+=(Ascend\w+(?:-\d)?)\s+-", said, re.MULTILINE))
    ours = {known for known in known_archs() if (family(known) == "A5") == (family(arch) == "A5")}
    assert ours <= accepted
    if family(arch) != "A5":
        # this binary lists all that its newer sibling does: nothing is missing from the table
        assert {name for name in accepted if "310B" not in name} == set(known_archs())


@has_compiler
@pytest.mark.parametrize("name", ["compile", "opt"])
def test_each_generation_gets_its_own_binary(name: toolchain.ToolName) -> None:
    tools = {arch: bishengir_tool(name, arch).name for arch in known_archs()}
    assert tools["Ascend910B3"] == tools["Ascend910_9392"] == f"bishengir-{name}"
    assert tools["Ascend950PR_9589"] == tools["Ascend910_9589"] == f"bishengir-{name}-a5"


def test_an_unknown_tool_is_refused() -> None:
    with pytest.raises(ValueError, match="name: expected 'compile' or 'opt', got 'link'"):
        bishengir_tool("link", "Ascend910B3")  # type: ignore[arg-type]


def test_a_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match=r"ascendnpu-ir.*pip install 'flashasc\[offline\]'"):
        bishengir_tool("compile", "Ascend910B3")
    assert versions()["bishengir-compile"] == "not installed"
    assert versions()["bishengir-compile-a5"] == "not installed"


def broken_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `ascendnpuir` a package in `folder`; returns where its binaries go."""
    spec = ModuleSpec("ascendnpuir", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    (folder / "bin").mkdir()
    return folder / "bin"


def test_a_wheel_without_its_binary_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries = broken_wheel(tmp_path, monkeypatch)
    with pytest.raises(ToolchainError, match="missing or not executable"):
        bishengir_tool("opt", "Ascend950PR_9589")
    (binaries / "bishengir-opt-a5").write_text("")
    with pytest.raises(ToolchainError, match="missing or not executable"):
        bishengir_tool("opt", "Ascend950PR_9589")
    (binaries / "bishengir-opt-a5").chmod(0o755)
    assert bishengir_tool("opt", "Ascend950PR_9589") == binaries / "bishengir-opt-a5"


def fake_compiler(path: Path, line: str, status: int = 0) -> None:
    path.write_text(f"#!/bin/sh\necho '{line}'\nexit {status}\n")
    path.chmod(0o755)


def test_a_replaced_binary_changes_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = broken_wheel(tmp_path, monkeypatch) / "bishengir-compile"
    fake_compiler(binary, "bishengir-compile 1.2.0 (/build/path 8796a8ac1508 2026-07-29)")
    assert versions()["bishengir-compile"] == "1.2.0 8796a8ac1508 2026-07-29"
    fake_compiler(binary, "bishengir-compile 1.2.1 (/build/path 0123456789ab 2026-08-01)")
    assert versions()["bishengir-compile"] == "1.2.1 0123456789ab 2026-08-01"


@pytest.mark.parametrize("line, status", [("GLIBC_2.99 not found", 1), ("something else", 0)])
def test_a_binary_that_does_not_run_is_reported_with_what_it_said(
    line: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(broken_wheel(tmp_path, monkeypatch) / "bishengir-compile", line, status)
    with pytest.raises(ToolchainError, match=f"status {status}.*{line}") as raised:
        versions()
    assert raised.value.step == "find tools"
    assert line in raised.value.log


@has_compiler
def test_versions_name_release_and_revision() -> None:
    found = versions()
    assert set(found) == {
        "triton-ascend",
        "ascendnpu-ir",
        "bishengir-compile",
        "bishengir-compile-a5",
    }
    for tool in ("bishengir-compile", "bishengir-compile-a5"):
        assert re.fullmatch(r"\d+\.\d+\.\d+ [0-9a-f]{12} \d{4}-\d\d-\d\d", found[tool])


def test_an_error_survives_a_process_boundary() -> None:
    error = ToolchainError("message", step="a step", kernel="a_kernel", log="a log")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.step, copy.kernel, copy.log) == (
        "message",
        "a step",
        "a_kernel",
        "a log",
    )


def test_importing_costs_no_triton_and_no_ascendnpuir(run_python) -> None:
    run_python(
        "import sys, flashasc.ascend\n"
        "assert not {'triton', 'ascendnpuir', 'torch_npu'} & set(sys.modules), sys.modules\n"
        "try:\n    flashasc.ascend.bishengir_tool('compile', 'Ascend910B3')\n"
        "except flashasc.ascend.ToolchainError:\n    pass\n"
        "assert not {'triton', 'ascendnpuir'} & set(sys.modules)\n"
    )

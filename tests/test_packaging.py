"""What a user gets from pip, and what `make` does about the environment."""

from __future__ import annotations

import email
import email.message
import importlib.util
import os
import re
import subprocess
import sys
import types
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, RunPython
from tests.test_triton import ASCEND, UPSTREAM, install


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def requirements(metadata: email.message.Message) -> dict[str, set[str]]:
    """Extra -> requirements, "" for what is always installed."""
    found: dict[str, set[str]] = {"": set()}
    for line in metadata.get_all("Requires-Dist", []):
        requirement, _, marker = str(line).partition(";")
        extra = re.search(r"extra == '([\w-]+)'", marker)
        assert bool(extra) == bool(marker.strip()), f"a marker other than the extra: {line}"
        found.setdefault(extra[1] if extra else "", set()).add(requirement.strip())
    return found


def test_requirements(metadata: email.message.Message) -> None:
    assert requirements(metadata) == {
        "": {"torch", "einops", "numpy<2.4"},
        "ascend": {"triton-ascend", "torch-npu"},
        "cuda": {"triton"},
        "offline": {"triton-ascend==3.2.0", "ascendnpu-ir==1.2.0", "pybind11", "typer", "rich"},
        "hf": {"transformers", "accelerate", "gguf"},
        "test": {
            "pytest",
            "pytest-xdist",
            "hypothesis",
            "hatchling",
            "ruff",
            "mypy",
            "cosmic-ray",
        },
        "bench": {"pytest-benchmark", "matplotlib", "rich"},
        "precision": {"typer", "rich", "matplotlib", "jinja2"},
    }
    assert set(str(metadata["Requires-Python"]).split(",")) == {">=3.10", "<3.14"}


def test_every_requirement_has_a_tested_version(metadata: email.message.Message) -> None:
    text = (ROOT / "constraints.txt").read_text() + (ROOT / "upstream-constraints.txt").read_text()
    pinned = set(re.findall(r"^([\w-]+)==", text, re.MULTILINE))
    needed = {
        re.split(r"[<=>]", requirement)[0]
        for group in requirements(metadata).values()
        for requirement in group
    }
    # works with an NPU's driver only
    assert needed - pinned == {"torch-npu"}


def test_the_wheel_holds_both_packages_whole(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    wanted = {
        str(file.relative_to(ROOT))
        for package in ("flashasc", "blocks")
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert names == wanted
    assert {"flashasc/py.typed", "blocks/py.typed"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


def test_the_wheel_works(wheel: zipfile.ZipFile, tmp_path: Path, run_python: RunPython) -> None:
    wheel.extractall(tmp_path)
    run_python(
        """
import sys
sys.path.insert(0, sys.argv[1])
import torch, flashasc, blocks.softmax
assert flashasc.__file__.startswith(sys.argv[1]) and blocks.__file__.startswith(sys.argv[1])
q = torch.ones(1, 1, 4, 8)
assert torch.allclose(flashasc.attention(q, q, q), q)
import importlib.metadata
assert importlib.metadata.version("flashasc") == flashasc.__version__
""",
        str(tmp_path),
    )


# --- make ---------------------------------------------------------------------------------------


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "-C", str(folder), "-f", str(ROOT / "Makefile")]
    # these tests may be run by make themselves
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run([*command, *arguments], env=env, capture_output=True, text=True)


def test_make_names_a_missing_python(tmp_path: Path) -> None:
    for file in ("pyproject.toml", "constraints.txt", "upstream-constraints.txt"):
        (tmp_path / file).touch()
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "environment.py").touch()
    done = make(tmp_path, "demo", "PYTHON=")
    assert done.returncode == 2
    assert "Python 3.10 or 3.11 is needed and neither is on PATH" in done.stderr


def test_every_target_is_explained(tmp_path: Path) -> None:
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = [line.split()[0] for line in make(tmp_path).stdout.splitlines() if line]
    assert {"demo", "test", "lint"} <= set(rules) == set(shown)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("environment", ROOT / ".ci" / "environment.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "environment", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def steps(
    environment: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The steps of a setup in a folder of its own, noted instead of done."""
    noted: list[str] = []

    def note(name: str) -> None:
        monkeypatch.setattr(environment, name, lambda *_: noted.append(name))

    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    for name in ("_need_python", "_need_compiler", "_install", "_check_triton"):
        note(name)

    def make_venv(folder: Path) -> None:
        noted.append("_make_venv")
        folder.mkdir(exist_ok=True)

    monkeypatch.setattr(environment, "_make_venv", make_venv)
    return noted


WHOLE = ["_need_python", "_need_compiler", "_make_venv", "_install", "_check_triton"]


def test_setup_once(environment: types.ModuleType, steps: list[str], tmp_path: Path) -> None:
    environment.main("main")
    assert steps == WHOLE
    environment.main("main")
    assert steps == WHOLE, "a second run must do nothing"
    (tmp_path / "constraints.txt").write_text("torch==2.11.0")
    environment.main("main")
    assert steps == WHOLE + [step for step in WHOLE if step != "_make_venv"]


@pytest.mark.parametrize("step", ["_install", "_check_triton"])
def test_an_interrupted_setup_starts_again(
    environment: types.ModuleType,
    steps: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environment, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            environment.main("main")
    assert not (tmp_path / ".venv" / ".ready").exists()
    steps.clear()
    environment.main("main")
    assert steps == WHOLE


def test_an_interrupted_change_starts_again(
    environment: types.ModuleType, steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.main("main")
    (tmp_path / "constraints.txt").write_text("torch==2.11.0")
    with monkeypatch.context() as patch:
        patch.setattr(environment, "_install", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            environment.main("main")
    assert not (tmp_path / ".venv" / ".ready").exists()


def test_setup_names_a_missing_compiler(
    environment: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    environment._need_compiler()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(environment.SetupError, match="a C compiler is needed .* apt install gcc"):
        environment._need_compiler()
    monkeypatch.setenv("CC", str(tmp_path / "no-such-cc"))
    with pytest.raises(environment.SetupError, match="no-such-cc' does not start"):
        environment._need_compiler()
    monkeypatch.setenv("CC", "/bin/false")
    with pytest.raises(environment.SetupError, match="/bin/false' cannot build a shared library"):
        environment._need_compiler()


def test_setup_names_a_wrong_python(
    environment: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    with pytest.raises(environment.SetupError, match=r"Python 3\.10 or 3\.11 is needed"):
        environment._need_python()


def pack(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """Make a wheel that pip takes."""
    tree = folder / f"{name}-tree"
    install(tree, name, version, files)
    info = f"{name.replace('-', '_')}-{version}"
    wheel_file = tree / f"{info}.dist-info" / "WHEEL"
    wheel_file.write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    with zipfile.ZipFile(folder / f"{info}-py3-none-any.whl", "w") as archive:
        for file in sorted(tree.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(tree))


@pytest.mark.slow
def test_an_overwritten_triton_is_put_right(
    environment: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a CUDA build of torch does: pip installs upstream Triton over triton-ascend."""
    pack(tmp_path, "triton-ascend", "3.2.0", ASCEND)
    pack(tmp_path, "triton", "3.7.1", UPSTREAM)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    place = tmp_path / "venv"
    venv.create(place, with_pip=True)
    main = environment.ENVIRONMENTS["main"]
    for package in ("triton-ascend", "triton"):
        environment._pip(place, "install", package)
    assert environment._triton_here(place)["kind"] == "shadowed"
    environment._check_triton(main, place)
    assert environment._triton_here(place)["kind"] == "ascend"
    assert not list(place.glob("lib/*/site-packages/triton/backends/nvidia/*.py"))

    environment._pip(place, "uninstall", "--yes", "triton-ascend")
    (tmp_path / "triton_ascend-3.2.0-py3-none-any.whl").unlink()
    with pytest.raises(environment.SetupError, match="install .*triton-ascend"):
        environment._check_triton(main, place)

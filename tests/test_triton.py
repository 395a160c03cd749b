from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from flashasc import _triton
from flashasc._triton import TritonInfo

ASCEND = {
    "triton/__init__.py": "__version__ = '3.2.0'  # ascend\n",
    "triton/_C/libtriton.so": "an ascend library",
    "triton/backends/ascend/compiler.py": "",
}
UPSTREAM = {
    "triton/__init__.py": "__version__ = '3.6.0'\n",
    "triton/_C/libtriton.so": "an upstream library",
    "triton/backends/nvidia/compiler.py": "",
}


def install(site: Path, name: str, version: str, files: dict[str, str]) -> None:
    """Do to a folder what pip does: files (overwriting what is there), metadata, RECORD."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    record = f"{info}/RECORD,,\n"
    metadata = {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    for path, text in (files | metadata).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{path},sha256={digest.decode()},{len(text)}\n"
    (site / info / "RECORD").write_text(record)


def ascend(site: Path) -> None:
    install(site, "triton-ascend", "3.2.0", ASCEND)


def upstream(site: Path) -> None:
    install(site, "triton", "3.6.0", UPSTREAM)


def test_none(tmp_path: Path) -> None:
    assert _triton.find([str(tmp_path)]) == TritonInfo(None)


def test_ascend(tmp_path: Path) -> None:
    ascend(tmp_path)
    assert _triton.find([str(tmp_path)]) == TritonInfo("ascend", "3.2.0", tmp_path / "triton")


@pytest.mark.parametrize("name", ["triton", "pytorch-triton", "pytorch-triton-rocm"])
def test_upstream_builds(tmp_path: Path, name: str) -> None:
    install(tmp_path, name, "3.7.1", UPSTREAM)
    assert _triton.find([str(tmp_path)]) == TritonInfo("upstream", "3.7.1", tmp_path / "triton")


@pytest.mark.parametrize(
    ("first", "second", "survivor"),
    [(ascend, upstream, "triton"), (upstream, ascend, "triton-ascend")],
)
def test_one_installed_over_the_other(tmp_path: Path, first, second, survivor: str) -> None:
    first(tmp_path)
    second(tmp_path)
    found = _triton.find([str(tmp_path)])
    assert found.kind == "shadowed"
    assert "triton-ascend and triton are installed into one folder" in found.detail
    assert found.detail.endswith(f"the files are those of {survivor}")


@pytest.mark.parametrize(
    ("first", "second", "kind"), [(ascend, upstream, "ascend"), (upstream, ascend, "upstream")]
)
def test_the_first_folder_of_the_path_wins_whole(tmp_path: Path, first, second, kind: str) -> None:
    first(tmp_path / "a")
    second(tmp_path / "b")
    assert _triton.find([str(tmp_path / "a"), str(tmp_path / "b")]).kind == kind


def test_the_same_distribution_twice_on_the_path(tmp_path: Path) -> None:
    install(tmp_path / "a", "triton", "3.2.0", UPSTREAM)
    upstream(tmp_path / "b")
    assert _triton.find([str(tmp_path / "a"), str(tmp_path / "b")]).version == "3.2.0"


@pytest.mark.parametrize("stray", ["triton/__init__.py", "triton.py", "triton/model.txt"])
def test_a_stray_module_of_that_name(tmp_path: Path, stray: str) -> None:
    (tmp_path / stray).parent.mkdir(exist_ok=True)
    (tmp_path / stray).write_text("")
    found = _triton.find([str(tmp_path)])
    assert found.kind == "shadowed"
    assert "belongs to no installed Triton" in found.detail
    assert str(tmp_path / "triton") in found.summary


@pytest.mark.parametrize("stray", ["triton/__init__.py", "triton.py"])
def test_a_stray_module_before_an_installed_triton(tmp_path: Path, stray: str) -> None:
    (tmp_path / "here" / stray).parent.mkdir(parents=True)
    (tmp_path / "here" / stray).write_text("")
    ascend(tmp_path / "site")
    found = _triton.find([str(tmp_path / "here"), str(tmp_path / "site")])
    assert found.kind == "shadowed"
    assert "hides the installed triton-ascend 3.2.0 at " in found.detail
    assert str(tmp_path / "here") in found.summary


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("triton/__init__.py", ASCEND["triton/__init__.py"].replace("3.2.0", "3.7.1")),
        ("triton/_C/libtriton.so", "a library of another length"),
    ],
)
def test_overwritten_without_a_trace(tmp_path: Path, file: str, text: str) -> None:
    ascend(tmp_path)
    (tmp_path / file).write_text(text)
    found = _triton.find([str(tmp_path)])
    assert found.kind == "shadowed"
    assert "not the ones that triton-ascend 3.2.0 brought" in found.detail


def test_metadata_without_files(tmp_path: Path) -> None:
    install(tmp_path, "triton", "3.6.0", {})
    found = _triton.find([str(tmp_path)])
    assert found.kind == "shadowed"
    assert "triton is registered as installed, but" in found.summary


def test_editable_install(tmp_path: Path) -> None:
    source = tmp_path / "my checkout"
    (source / "python" / "triton").mkdir(parents=True)
    (source / "python" / "triton" / "__init__.py").write_text("")
    install(tmp_path / "site", "triton", "3.7.0", {})
    origin = {"url": (source).as_uri(), "dir_info": {"editable": True}}
    info = tmp_path / "site" / "triton-3.7.0.dist-info"
    (info / "direct_url.json").write_text(json.dumps(origin))
    found = _triton.find([str(tmp_path / "site"), str(source / "python")])
    assert found == TritonInfo("upstream", "3.7.0", source / "python" / "triton")


def test_this_environment(run_python) -> None:
    """The answer without importing triton is what importing it shows."""
    code = (
        "import sys; from flashasc import _triton; found = _triton.installed(); "
        "assert 'triton' not in sys.modules; "
        "import triton; print(found.kind, found.location, triton.__file__, triton.__version__); "
        "assert found.version == triton.__version__; "
        "import triton.backends; assert (found.kind == 'ascend') == ('ascend' in "
        "triton.backends.backends)"
    )
    kind, location, file, _ = run_python(code).stdout.split()
    assert kind in ("ascend", "upstream")
    assert Path(file).parent == Path(location)


HAVE = {
    kind: TritonInfo(kind, "3.2.0", Path("/site/triton"), "two of them" if kind else "")
    for kind in ("ascend", "upstream", "shadowed")
} | {None: TritonInfo(None)}


@pytest.mark.parametrize(
    ("device_kind", "right"), [("npu", "ascend"), ("cpu", "ascend"), ("cuda", "upstream")]
)
def test_require_the_right_one(monkeypatch, device_kind, right) -> None:
    monkeypatch.setattr(_triton, "installed", lambda: HAVE[right])
    assert _triton.require(device_kind) is HAVE[right]


@pytest.mark.parametrize(
    ("device_kind", "have", "error", "command"),
    [
        ("npu", None, ImportError, "pip install 'flashasc[ascend]'"),
        ("cuda", None, ImportError, "pip install 'flashasc[cuda]'"),
        ("cpu", None, ImportError, "pip install 'flashasc[offline]'"),
        ("npu", "upstream", RuntimeError, "pip install 'flashasc[ascend]'"),
        ("cpu", "upstream", RuntimeError, "pip install 'flashasc[offline]'"),
        ("cuda", "ascend", RuntimeError, "pip install 'flashasc[cuda]'"),
        ("npu", "shadowed", RuntimeError, "pip install 'flashasc[ascend]'"),
        ("cpu", "shadowed", RuntimeError, "pip install 'flashasc[offline]'"),
        ("cuda", "shadowed", RuntimeError, "pip install 'flashasc[cuda]'"),
    ],
)
def test_require_says_what_is_wrong(monkeypatch, device_kind, have, error, command) -> None:
    monkeypatch.setattr(_triton, "installed", lambda: HAVE[have])
    with pytest.raises(error) as raised:
        _triton.require(device_kind)
    assert HAVE[have].summary in str(raised.value)
    assert command in str(raised.value)
    assert ("pip uninstall" in str(raised.value)) == (have is not None)


def test_the_interpreter_takes_either(monkeypatch) -> None:
    for device_kind in ("npu", "cuda", "cpu"):
        for have in ("ascend", "upstream"):
            monkeypatch.setattr(_triton, "installed", lambda have=have: HAVE[have])
            assert _triton.require(device_kind, interpreted=True) is HAVE[have]


@pytest.mark.parametrize(("have", "error"), [(None, ImportError), ("shadowed", RuntimeError)])
def test_the_interpreter_needs_one(monkeypatch, have, error) -> None:
    monkeypatch.setattr(_triton, "installed", lambda: HAVE[have])
    with pytest.raises(error, match="interpreter needs a Triton"):
        _triton.require("cpu", interpreted=True)


def test_a_python_without_wheels_is_named(monkeypatch) -> None:
    version = namedtuple("version", "major minor")
    monkeypatch.setattr(_triton, "installed", lambda: HAVE[None])
    monkeypatch.setattr(sys, "version_info", version(3, 12))
    with pytest.raises(ImportError, match=r"under Python 3\.10 or 3\.11 .* no wheel for 3\.12"):
        _triton.require("cpu")


def test_unknown_device_kind() -> None:
    with pytest.raises(NotImplementedError, match="npu, cuda, cpu tensors, got 'xpu'; impl='ref"):
        _triton.require("xpu")

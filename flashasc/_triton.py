"""Which Triton is installed here, found without importing it.

Two distributions own the module name `triton`: triton-ascend (Ascend, and this package's native
CPU route) and upstream Triton (NVIDIA). pip installs both into one environment without a word; the
second overwrites the first's files and leaves a mixture that fails in odd places. So before a
kernel runs, `require` looks at whose files are there and says what to install.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import re
import sys
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TritonKind = Literal["ascend", "upstream", "shadowed"]

# distributions that own the module `triton`; all but the first are builds of upstream Triton
_OWNERS = (
    "triton-ascend",
    "triton",
    "pytorch-triton",
    "pytorch-triton-rocm",
    "pytorch-triton-xpu",
    "triton-windows",
)
_EXTRA = {"npu": "ascend", "cuda": "cuda", "cpu": "offline"}
_PLACE = {
    "npu": "on an Ascend NPU",
    "cuda": "on an NVIDIA GPU",
    "cpu": "natively on the CPU",
}
_ASCEND_WHEELS_END = (3, 12)
"""First Python without a triton-ascend 3.2.0 wheel."""


@dataclass(frozen=True)
class TritonInfo:
    """The Triton that `import triton` would find."""

    kind: TritonKind | None
    """None: no Triton. "shadowed": files of no one Triton, see `detail`."""
    version: str | None = None
    """Version of the distribution that owns the module; None when no one does."""
    location: Path | None = None
    """The module's folder, or its file where it is not a package."""
    detail: str = ""
    """What is wrong with a shadowed one, in words."""

    @property
    def summary(self) -> str:
        """One line for an error message or a report."""
        if self.kind is None:
            return "no Triton is installed"
        if self.kind == "shadowed":
            place = f"at {self.location}" if self.location else "here"
            return f"the Triton {place} is unusable: {self.detail}"
        name = "triton-ascend" if self.kind == "ascend" else "upstream Triton"
        return f"{name} {self.version} is installed at {self.location}"


@functools.cache
def installed() -> TritonInfo:
    """Return which Triton `import triton` finds in this process, without importing it.

    Decided by the metadata of the installed distributions and by whose files are on disk; looked
    up once a process.
    """
    return _identify(importlib.util.find_spec("triton"), sys.path)


def find(path: Sequence[str]) -> TritonInfo:
    """Return which Triton a Python with the module search path `path` would import."""
    return _identify(importlib.machinery.PathFinder.find_spec("triton", path), path)


def require(device_kind: str, *, interpreted: bool = False) -> TritonInfo:
    """Make sure that the Triton here can run a kernel on a kind of device.

    Args:
        device_kind: type of a torch.device. "npu" and "cpu" (the native route) need triton-ascend,
            "cuda" needs upstream Triton.
        interpreted: the kernel will run in Triton's interpreter, which either Triton has.

    Returns:
        What `installed()` found.

    Raises:
        ImportError: no Triton is installed.
        RuntimeError: it is the other Triton, or one that another package overwrote or hides.
        NotImplementedError: no kernel runs on that kind of device.
    """
    if device_kind not in _EXTRA:
        raise NotImplementedError(
            f"device: kernels run on {', '.join(_EXTRA)} tensors, got {device_kind!r}; "
            "impl='reference' runs on any device"
        )
    found = installed()
    wanted: TritonKind = "upstream" if device_kind == "cuda" else "ascend"
    if found.kind == wanted or (interpreted and found.kind in ("ascend", "upstream")):
        return found
    where = "in Triton's interpreter" if interpreted else _PLACE[device_kind]
    message = f"running a kernel {where} needs {_needed(wanted, interpreted)}, but {found.summary}."
    if found.kind is None:
        raise ImportError(f"{message} Install it: {_install_command(device_kind)}", name="triton")
    raise RuntimeError(
        f"{message} Put the right one in its place: pip uninstall triton triton-ascend && "
        f"{_install_command(device_kind)}"
    )


def _needed(wanted: TritonKind, interpreted: bool) -> str:
    if interpreted:
        return "a Triton (triton-ascend or upstream)"
    return "triton-ascend" if wanted == "ascend" else "upstream Triton (package triton)"


def _install_command(device_kind: str) -> str:
    command = f"pip install 'flashasc[{_EXTRA[device_kind]}]'"
    if device_kind == "cpu" and sys.version_info >= _ASCEND_WHEELS_END:
        command += (
            " under Python 3.10 or 3.11 (triton-ascend has no wheel for "
            f"{sys.version_info.major}.{sys.version_info.minor})"
        )
    return command


def _identify(spec: importlib.machinery.ModuleSpec | None, path: Sequence[str]) -> TritonInfo:
    """Say whose the module behind `spec` is, given the distributions on `path`."""
    owners = {name: _first(name, path) for name in _OWNERS}
    present = {name: dist for name, dist in owners.items() if dist is not None}
    if spec is None:
        if not present:
            return TritonInfo(None)
        detail = f"{_and(present)} is registered as installed, but no module triton can be imported"
        return TritonInfo("shadowed", detail=detail)
    location = _location(spec)
    at_home = {name: dist for name, dist in present.items() if _provides(dist, location)}
    if not at_home:
        return TritonInfo("shadowed", location=location, detail=_foreign(present))
    if len(at_home) > 1:
        intact = [name for name, dist in at_home.items() if _intact(dist)]
        last = f"; the files are those of {_and(intact)}" if intact else ""
        detail = f"{_and(at_home)} are installed into one folder and overwrite each other{last}"
        return TritonInfo("shadowed", location=location, detail=detail)
    ((name, dist),) = at_home.items()
    if not _intact(dist):
        detail = f"its files are not the ones that {name} {dist.version} brought"
        return TritonInfo("shadowed", dist.version, location, detail)
    return TritonInfo("ascend" if name == "triton-ascend" else "upstream", dist.version, location)


def _first(name: str, path: Sequence[str]) -> importlib.metadata.Distribution | None:
    """The distribution of that name that comes first on a search path, or None."""
    found = importlib.metadata.distributions(name=name, path=list(path))
    return next(iter(found), None)


def _location(spec: importlib.machinery.ModuleSpec) -> Path:
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin or "?")


def _provides(dist: importlib.metadata.Distribution, location: Path) -> bool:
    """Whether a distribution put the module where it is, or is an editable install of it."""
    if Path(str(dist.locate_file("triton"))).resolve() == location.resolve():
        return True
    origin = json.loads(dist.read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable", False)
    source = urllib.parse.unquote(urllib.parse.urlsplit(origin.get("url", "")).path)
    return bool(editable and source) and location.resolve().is_relative_to(source)


def _intact(dist: importlib.metadata.Distribution) -> bool:
    """Whether the files that give a Triton away are still as the distribution installed them."""
    return all(_unchanged(file) for file in _telltale_files(dist))


def _telltale_files(
    dist: importlib.metadata.Distribution,
) -> Iterator[importlib.metadata.PackagePath]:
    """The files that every Triton has and no two have alike (none for an editable install)."""
    for file in dist.files or ():
        name = str(file)
        if name == "triton/__init__.py" or re.fullmatch(r"triton/_C/libtriton\S*\.(so|pyd)", name):
            yield file


def _unchanged(file: importlib.metadata.PackagePath) -> bool:
    path = Path(str(file.locate()))
    if not path.is_file() or (file.size is not None and path.stat().st_size != file.size):
        return False
    # the shared library is large: its size tells enough
    if file.hash is None or path.suffix != ".py":
        return True
    digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value


def _foreign(present: dict[str, importlib.metadata.Distribution]) -> str:
    """What to say of a module `triton` that belongs to no distribution of Triton."""
    if not present:
        return "it belongs to no installed Triton (a folder or file named triton on sys.path?)"
    homes = [
        f"{name} {dist.version} at {dist.locate_file('triton')}" for name, dist in present.items()
    ]
    return f"it hides the installed {_and(homes)}"


def _and(names: Iterable[str]) -> str:
    return " and ".join(names)

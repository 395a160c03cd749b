"""Who may import whom, and what importing the package costs and does."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flashasc import _triton, attention
from tests.conftest import ROOT, RunPython

# layer -> the layers it may import, besides itself. A layer is a module or folder of flashasc, or
# the package blocks. CONTRIBUTING.md has the picture.
MAY_IMPORT: dict[str, set[str]] = {
    "flashasc": {
        "nn",
        "routing",
        "sdpa",
        "attention",
        "inspection",
        "decoding",
        "caches",
        "merging",
    },
    "nn": {
        "attention",
        "distributed",
        "inspection",
        "_arguments",
        "_validate",
        "_dispatch",
        "_problem",
    },
    "integrations": {"attention", "distributed", "_dispatch", "_problem", "_validate"},
    "routing": {"sdpa", "_validate", "_dispatch", "_problem"},
    "sdpa": {"attention", "_validate", "_dispatch", "_problem"},
    "attention": {"_arguments", "_ops", "_repeat", "_dispatch", "_problem"},
    "inspection": {"_arguments", "_validate", "_dispatch", "_configs", "_problem"},
    "decoding": {
        "caches",
        "_repeat",
        "_arguments",
        "_validate",
        "_decode_ops",
        "_dispatch",
        "_problem",
    },
    "caches": {"_validate", "_decode_ops", "_dispatch", "_problem", "_pages"},
    "merging": {"_validate", "_problem"},
    "distributed": {
        "attention",
        "_arguments",
        "_states",
        "_repeat",
        "_dispatch",
        "_target",
        "_problem",
        "kernels",
        "reference",
        "testing",
    },
    "ops": {
        "_arguments",
        "_validate",
        "_dispatch",
        "_configs",
        "_target",
        "_gemm_problem",
        "_reductions",
        "reference",
        "kernels",
    },
    "_arguments": {"_validate", "_problem"},
    "_validate": {"_problem", "_gemm_problem"},
    "_repeat": {"_target"},
    "_ops": {"_repeat", "_dispatch", "_problem", "reference", "kernels"},
    "_decode_ops": {"_repeat", "_dispatch", "_problem", "reference", "kernels"},
    "_states": {"_state_ops", "_repeat", "_dispatch", "_problem"},
    "_state_ops": {
        "_ops",
        "_repeat",
        "_dispatch",
        "_target",
        "_problem",
        "reference",
        "kernels",
    },
    "_dispatch": {"_configs", "_target", "_problem", "_gemm_problem", "_triton"},
    "_configs": {"_target", "_problem", "_gemm_problem", "_reductions"},
    "_target": {"_triton"},
    "_problem": set(),
    "_gemm_problem": set(),
    "_reductions": set(),
    "_pages": set(),
    "reference": {"_problem", "_gemm_problem", "_reductions"},
    "kernels": {
        "_repeat",
        "_configs",
        "_target",
        "_problem",
        "_gemm_problem",
        "_reductions",
        "native",
        "_interpreter",
        "_triton",
        "blocks",
    },
    "native": {"_target", "ascend", "_triton"},
    "ascend": {"_triton"},
    "workbench": {
        "flashasc",
        "inspection",
        "distributed",
        "_configs",
        "_target",
        "_problem",
        "_gemm_problem",
        "_reductions",
        "kernels",
        "native",
        "ascend",
        "precision",
        "_triton",
    },
    "__main__": {"workbench"},
    "testing": {"reference", "precision"},
    "precision": {"attention"},
    "_interpreter": set(),
    "_triton": set(),
    "blocks": set(),
}
# everything else that a layer may import: the standard library, and of other packages
PACKAGES = {
    "blocks": {"triton"},
    "kernels": {"torch", "triton"},
    "_interpreter": {"numpy", "triton"},
    "native": {"numpy", "torch", "triton"},
    "ascend": {"torch", "triton"},
    "workbench": {"rich", "torch", "typer"},
    "__main__": set(),
    "_target": {"torch", "triton"},
    "_triton": set(),
    "integrations": {"torch", "transformers"},
    "precision": {"jinja2", "matplotlib", "numpy", "rich", "torch"},
}
OTHERS = {"torch", "einops", "numpy"}
# modules that cannot be imported without Triton; everything else imports it inside functions
NEED_TRITON = ("blocks.", "flashasc.kernels.", "flashasc.native.backend")


def files() -> list[Path]:
    found = sorted([*ROOT.glob("flashasc/**/*.py"), *ROOT.glob("blocks/**/*.py")])
    assert len(found) > 15
    return found


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] or "flashasc" if top == "flashasc" else top


def imports(file: Path) -> Iterator[tuple[str, bool]]:
    """(module, at once): every module a file imports, and whether importing the file does it."""
    tree = ast.parse(file.read_text())
    package = module_of(file) if file.name == "__init__.py" else module_of(file).rpartition(".")[0]
    delayed = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node not in delayed
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(start if node.level else []), *filter(None, [node.module])])
            for alias in node.names:
                inner = ROOT.joinpath(*base.split("."), alias.name)
                is_module = inner.with_suffix(".py").is_file() or inner.is_dir()
                yield (f"{base}.{alias.name}" if is_module else base), node not in delayed


@pytest.mark.parametrize("file", files(), ids=module_of)
def test_imports_go_one_way(file: Path) -> None:
    layer = layer_of(module_of(file))
    assert layer in MAY_IMPORT, f"{file.name}: a new layer; give it a place in MAY_IMPORT"
    for module, _ in imports(file):
        target = layer_of(module)
        if module.partition(".")[0] in ("flashasc", "blocks") and target != layer:
            assert target in MAY_IMPORT[layer], f"{layer} must not import {module}"


@pytest.mark.parametrize("file", files(), ids=module_of)
def test_other_packages(file: Path) -> None:
    layer = layer_of(module_of(file))
    for module, at_once in imports(file):
        name = module.partition(".")[0]
        if name in ("flashasc", "blocks", "__future__") or name in sys.stdlib_module_names:
            continue
        assert name in PACKAGES.get(layer, OTHERS), f"{layer} must not import {module}"
        if name == "triton" and at_once:
            importer = module_of(file)
            assert importer.startswith(NEED_TRITON), f"{importer} may import triton when called"


def test_the_layers_have_an_order() -> None:
    """No circle in the table itself."""
    done: set[str] = set()
    while len(done) < len(MAY_IMPORT):
        ready = {layer for layer, below in MAY_IMPORT.items() if below <= done} - done
        assert ready, f"a circle among {sorted(set(MAY_IMPORT) - done)}"
        done |= ready


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from .. import native", "flashasc.native"),
        ("from .launch import launch", "flashasc.kernels.launch"),
        ("from flashasc import _triton", "flashasc._triton"),
        ("def f():\n    import blocks.gemm", "blocks.gemm"),
    ],
)
def test_the_check_sees_every_way_to_import(
    tmp_path, monkeypatch, code: str, expected: str
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "flashasc" / "kernels" / "some.py"
    file.parent.mkdir(parents=True)
    (tmp_path / "flashasc" / "native").mkdir()
    (tmp_path / "flashasc" / "_triton.py").touch()
    file.write_text(code)
    assert [module for module, _ in imports(file)] == [expected]


BLOCKED = """
import os, sys, torch
before = set(sys.modules)
environment = dict(os.environ)
for name in ("triton", "transformers", "torch_npu"):
    if name not in sys.modules:
        sys.modules[name] = None
def touched(*args, **kwargs):
    raise AssertionError("importing flashasc asked for a device")
for name in ("is_available", "device_count", "_lazy_init", "current_device"):
    setattr(torch.cuda, name, touched)
import flashasc
assert dict(os.environ) == environment, "importing flashasc wrote to the environment"
"""


def test_import_with_triton_blocked_and_no_device_touched(run_python: RunPython) -> None:
    run_python(
        BLOCKED
        + """
q = torch.ones(1, 1, 4, 8)
assert torch.allclose(flashasc.attention(q, q, q), q), "the reference must work without Triton"
"""
    )


def test_import_brings_no_optional_package(run_python: RunPython) -> None:
    run_python("""
import sys, torch
before = set(sys.modules)
import flashasc
new = {name.partition(".")[0] for name in set(sys.modules) - before}
assert not new & {"triton", "transformers", "torch_npu", "ascendnpuir", "blocks"}, new
""")


def test_import_is_cheap(run_python: RunPython) -> None:
    """At most a twentieth of what importing torch takes, in the best of several processes."""
    code = """
import time
times = [time.perf_counter()]
import torch
times.append(time.perf_counter())
import flashasc
times.append(time.perf_counter())
print((times[2] - times[1]) / (times[1] - times[0]))
"""
    shares: list[float] = []
    while len(shares) < 5 and min(shares, default=1.0) > 0.05:
        shares.append(float(run_python(code).stdout))
    assert min(shares) <= 0.05, shares


def test_blocks_stand_alone(run_python: RunPython) -> None:
    run_python("""
import pkgutil, sys
import blocks
for module in pkgutil.iter_modules(blocks.__path__, "blocks."):
    __import__(module.name)
assert "flashasc" not in sys.modules
""")


def test_a_kernel_without_triton_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(_triton, "installed", lambda: _triton.TritonInfo(None))
    q = torch.ones(1, 1, 4, 8)
    with pytest.raises(ImportError, match=r"pip install 'flashasc\[offline\]'"):
        attention(q, q, q, impl="triton")

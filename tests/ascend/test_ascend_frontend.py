from __future__ import annotations

import concurrent.futures
import re
import time
from pathlib import Path

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")

from ascend_kernels import (
    A2,
    A3,
    A5,
    TARGETS,
    product,
    reduction,
    rows,
)

from flashasc.ascend import Lowered, frontend, lower

HERE = Path(__file__).parent


def parameters(lowered: Lowered) -> list[str]:
    """The kernel's own parameters in the text, without attributes."""
    head = re.search(r"func\.func @\w+\((.*)\) attributes", lowered.linalg)
    assert head is not None
    types = re.findall(r"%arg\d+: ([^{,]+[^{, ])", head[1])
    # two hidden memrefs before them; grid sizes and program ids after
    assert types[:2] == ["memref<?xi8>"] * 2
    assert types[-6:] == ["i32"] * 6
    return types[2:-6]


@pytest.mark.parametrize("arch", TARGETS)
def test_a_kernel_lowers_to_linalg(arch: str) -> None:
    lowered = lower(*rows(), arch)
    assert lowered.kernel_name == "normalise_rows"
    assert lowered.arch == arch
    assert lowered.mix_mode == "aiv"
    assert lowered.arguments == (
        ("x_ptr", "*fp16"),
        ("y_ptr", "*fp16"),
        ("n_rows", "i32"),
        ("eps", "fp32"),
    )
    assert parameters(lowered) == ["memref<?xf16>", "memref<?xf16>", "i32", "f32"]
    assert "linalg.reduce" in lowered.linalg
    # the compiler is given the text without it
    assert "mix_mode" not in lowered.linalg


def test_a_product_runs_on_the_cube_cores() -> None:
    lowered = lower(*product(), A2)
    assert lowered.mix_mode == "mix"
    assert "linalg.matmul" in lowered.linalg


def test_options_follow_the_generation() -> None:
    names = (
        "multibuffer",
        "enable_auto_bind_sub_block",
        "compile_on_910_95",
        "enable_select_analysis",
    )
    chosen = {arch: [lower(*rows(), arch).options[name] for name in names] for arch in TARGETS}
    assert chosen[A2] == chosen[A3] == [True, True, False, False]
    assert chosen[A5] == [False, False, True, True]
    changed = lower(*rows(), A5, options={"multibuffer": True})
    assert [changed.options[name] for name in names] == [True, False, True, True]


def test_a_constant_leaves_the_arguments_and_folds_as_in_the_jit() -> None:
    kernel, signature, constants = product()
    whole = lower(kernel, signature, constants, A2)
    fixed = lower(kernel, signature, {**constants, "stride": 1}, A2)
    assert fixed.arguments == whole.arguments[:-1]
    assert len(parameters(fixed)) == len(parameters(whole)) - 1
    unlisted = {name: kind for name, kind in signature.items() if name != "stride"}
    assert lower(kernel, unlisted, {**constants, "stride": 1}, A2) == fixed


def test_the_order_of_the_signature_does_not_matter() -> None:
    kernel, signature, constants = product()
    backwards = dict(reversed(signature.items()))
    assert lower(kernel, backwards, constants, A2) == lower(kernel, signature, constants, A2)


def test_divisibility_marks_the_arguments_it_names() -> None:
    lowered = lower(*rows(), A2, divisible_by_16=("y_ptr", "n_rows"))
    marked = re.findall(r"%arg(\d+): [^,{]+\{tt\.divisibility = 16 : i32", lowered.linalg)
    assert marked == ["3", "4"]
    assert "divisibility" not in lower(*rows(), A2).linalg


def test_the_same_kernel_gives_the_same_text_from_many_threads() -> None:
    cases = [(case, arch) for case in (rows(), product(), reduction("sum")) for arch in TARGETS]
    alone = [lower(*case, arch) for case, arch in cases]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda job: lower(*job[0], job[1]), cases * 4))
    assert together == alone * 4


def test_one_thread_at_a_time_is_in_the_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = 0, 0
    original = frontend._to_ttir

    def watched(*arguments):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.02)
        inside -= 1
        return original(*arguments)

    monkeypatch.setattr(frontend, "_to_ttir", watched)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda arch: lower(*rows(), arch), TARGETS * 2))
    assert most == 1


COMPARE = """
import os, stat, sys
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
sys.path.insert(0, sys.argv[1])
from ascend_kernels import rows, product
from flashasc.ascend import bishengir_tool, compiler_flags, lower

work, arch, a5 = Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "A5"
fake = work / "bishengir-compile"
real = bishengir_tool("compile", arch)
fake.write_text(f'''#!/bin/sh
if [ "$1" = --help ]; then exec {real} --help; fi
cp "$1" {work}/given.mlir
shift
echo "$@" > {work}/flags
while [ "$1" != -o ]; do shift; done
echo binary > "$2.o"
cp "$2.o" "$2_reloc.o"
''')
fake.chmod(0o755)
os.environ["PATH"] = f"{work}:{os.environ['PATH']}"

class Utils:
    def get_arch(self):
        return arch

# triton.compile uses a copy of the backend's module that Triton loaded under another name
backend = make_backend(GPUTarget("npu", arch, 0))
type(backend).add_stages.__globals__["NPUUtils"] = Utils
options = {}
if a5:
    options = dict(compile_on_910_95=True, multibuffer=False,
                   enable_auto_bind_sub_block=False, enable_select_analysis=True)
for kernel, signature, constants in (rows(), product()):
    source = ASTSource(fn=kernel, signature=signature, constants=constants)
    triton.compile(source, target=GPUTarget("npu", arch, 0), options=options)
    ours = lower(kernel, signature, constants, arch)
    assert (work / "given.mlir").read_text() == ours.linalg
    theirs = (work / "flags").read_text().split(" -o ")[0].split()
    assert sorted(theirs) == sorted(compiler_flags(ours)), (theirs, compiler_flags(ours))
"""


@pytest.mark.parametrize("arch, generation", [(A2, "A2"), (A3, "A3"), (A5, "A5")])
def test_the_compiler_would_be_given_the_same_text_and_options_by_triton_ascend(
    arch: str, generation: str, run_python, tmp_path: Path
) -> None:
    pytest.importorskip("ascendnpuir", reason="ascendnpu-ir is not installed")
    work = tmp_path / "work"
    work.mkdir()
    run_python(
        COMPARE,
        str(HERE),
        str(work),
        arch,
        generation,
        env={"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )


UNCHANGED = """
import os, sys
import triton
from triton.backends.ascend import compiler
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import driver
from triton.runtime.jit import JITFunction
sys.path.insert(0, sys.argv[1])
from ascend_kernels import TARGETS, rows, product, type_error
from flashasc.ascend import ToolchainError, lower

def state():
    front_end = (triton.compiler.compiler, triton.compiler.code_generator, triton.runtime.jit)
    modules = (compiler, *front_end)
    return (
        [dict(vars(module)) for module in modules],
        [dict(vars(kind)) for kind in (compiler.AscendBackend, compiler.NPUOptions, JITFunction)],
        dict(type(make_backend(GPUTarget("npu", "Ascend910B3", 0))).add_stages.__globals__),
        dict(os.environ), dict(triton.backends.backends), driver.default, driver.active,
    )

before = state()
for arch in TARGETS:
    for case in (rows(), product()):
        lower(*case, arch)
    try:
        lower(type_error, {"x_ptr": "*fp32", "n": "i32"}, {}, arch)
        raise SystemExit("not rejected")
    except ToolchainError:
        pass
assert state() == before
assert all(not kernel.cache for kernel in (rows()[0], product()[0]))
"""


def test_no_state_of_triton_changes(run_python) -> None:
    run_python(UNCHANGED, str(HERE))


def test_no_driver_is_needed(run_python) -> None:
    run_python(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from ascend_kernels import rows\n"
        "from flashasc.ascend import lower\n"
        "lower(*rows(), 'Ascend910B3')\n"
        "from triton.runtime import driver\n"
        "try:\n    driver.active.get_current_target()\n"
        "except RuntimeError as error:\n    assert '0 active drivers' in str(error)\n"
        "else:\n    raise SystemExit('there is a driver here: this test shows nothing')\n",
        str(HERE),
    )

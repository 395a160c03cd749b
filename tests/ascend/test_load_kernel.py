"""Loading a kernel by name: what can be said, and what each mistake is answered with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")

import triton
import triton.language as tl
from ascend_kernels import A2

from flashasc.ascend.user_kernel import load_kernel

SOURCE = """
import triton
import triton.language as tl
from helper_beside import FACTOR

@triton.jit
def shift(x_ptr, y_ptr, n, by, N: tl.constexpr, MODE: tl.constexpr = "plain"):
    offs = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n, other=0.0) + by, mask=offs < n)

tuned = triton.autotune([triton.Config({"N": 64}), triton.Config({"N": 128})], key=["n"])(shift)
fitted = triton.heuristics({"N": lambda args: 64})(shift)
plain = lambda: FACTOR
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "helper_beside.py").write_text("FACTOR = 3\n")
    (tmp_path / "mine.py").write_text(SOURCE)
    return str(tmp_path / "mine.py")


TYPES = "*fp32, *fp32, i32, fp32"


def test_types_go_in_order_or_by_name(file: str) -> None:
    by_order = load_kernel(f"{file}:shift", TYPES, ["N=64"])
    by_name = load_kernel(f"{file}:shift", "n=i32,by=fp32,y_ptr=*fp32,x_ptr=*fp32", ["N=64"])
    assert by_order == by_name
    assert dict(by_order.signature) == dict(by_name.signature)
    assert by_order.signature == {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "by": "fp32"}
    assert by_order.constants == {"N": 64, "MODE": "plain"}
    assert by_order.lower(A2).kernel_name == "shift"


def test_hints_and_fixed_arguments(file: str) -> None:
    loaded = load_kernel(f"{file}:shift", "*fp32:16, *fp32 : 16, i32:1, fp32", ["N=64"])
    assert loaded.divisible_by_16 == ("x_ptr", "y_ptr")
    assert loaded.constants["n"] == 1
    assert "n" not in loaded.signature
    text = loaded.lower(A2).linalg
    assert text.count("tt.divisibility = 16") == 2
    fixed = load_kernel(f"{file}:shift", "*fp32, *fp32, i32", ["N=64", "by=2.5"])
    assert "2.500000e+00" in fixed.lower(A2).linalg


@pytest.mark.parametrize(
    "text, value",
    [
        ("64", 64),
        ("-3", -3),
        ("0x10", 16),
        ("1e-6", 1e-6),
        ("True", True),
        ("None", None),
        ("silu", "silu"),
        ("'two words'", "two words"),
        ('""', ""),
        ("tl.float32", tl.float32),
        ("triton.language.bfloat16", tl.bfloat16),
    ],
)
def test_constants_of_every_kind(file: str, text: str, value: object) -> None:
    read = load_kernel(f"{file}:shift", TYPES, ["N=64", f"MODE={text}"]).constants["MODE"]
    assert read == value
    assert type(read) is type(value)


def test_decorators_are_taken_off(file: str) -> None:
    for name in ("tuned", "fitted"):
        loaded = load_kernel(f"{file}:{name}", TYPES, ["N=64"])
        assert isinstance(loaded.kernel, triton.JITFunction)
    with pytest.raises(ValueError, match=r"--const N=VALUE.*tries N=64; N=128"):
        load_kernel(f"{file}:tuned", TYPES)


def test_autotune_is_itself_again_afterwards(file: str) -> None:
    before = triton.autotune, triton.runtime.autotune, triton.runtime.autotuner.autotune
    load_kernel(f"{file}:tuned", TYPES, ["N=64"])
    assert before == (triton.autotune, triton.runtime.autotune, triton.runtime.autotuner.autotune)
    broken = Path(file).with_name("broken.py")
    broken.write_text("1 / 0")
    with pytest.raises(ValueError, match="fails: ZeroDivisionError"):
        load_kernel(f"{broken}:shift", TYPES)
    assert before == (triton.autotune, triton.runtime.autotune, triton.runtime.autotuner.autotune)


def test_a_module_is_found_by_its_name() -> None:
    loaded = load_kernel(
        "ascend_kernels:normalise_rows", "*fp16,*fp16,i32,fp32", ["N=256", "BLOCK_M=16"]
    )
    assert loaded.kernel.__name__ == "normalise_rows"


@pytest.mark.parametrize(
    "kernel, signature, constants, said",
    [
        ("shift", TYPES, ["N=64"], "expected 'package.module:kernel' or 'path/to/file.py:kernel'"),
        ("nowhere.py:shift", TYPES, [], "there is no file nowhere.py"),
        ("no_such_module:shift", TYPES, [], "ModuleNotFoundError.*current folder the right one"),
        ("{}:shfit", TYPES, [], "has no 'shfit'; kernels there: shift, tuned, fitted"),
        ("{}:shift", TYPES, [], "no value for the constexpr N of shift; give each: --const N="),
        ("{}:shift", TYPES, ["BLOCK=1"], "constants: BLOCK is no argument of shift"),
        ("{}:shift", TYPES, ["N"], "expected NAME=value, got 'N'"),
        ("{}:shift", TYPES, ["N=64", "N=32"], "N is given twice"),
        ("{}:shift", TYPES, ["N=true"], "write True"),
        ("{}:shift", TYPES, ["N=[1, 2]"], "N=.1, 2.: expected an integer"),
        ("{}:shift", TYPES, ["N=tl.fp99"], "triton.language has no dtype fp99"),
        ("{}:shift", "*fp32, *fp32", ["N=64"], "expected 4 types, for x_ptr, y_ptr, n, by, got 2"),
        ("{}:shift", "", ["N=64"], "expected 4 types.* got 0"),
        ("{}:shift", TYPES + ", i32", ["N=64"], "expected 4 types.* got 5"),
        ("{}:shift", TYPES, ["N=64", "n=8"], "expected 3 types, for x_ptr, y_ptr, by"),
        ("{}:shift", "x_ptr=*fp32, i32", ["N=64"], "in order or by name, not both"),
        ("{}:shift", "x_ptr=*fp32, y_ptr=*fp32, n=i32", ["N=64"], "no type for by"),
        ("{}:shift", "x_ptr=*fp32, x_pt=*fp32", ["N=64"], "x_pt is no argument of .*mean x_ptr"),
        ("{}:shift", "x_ptr=*fp32, x_ptr=*fp32", ["N=64"], "x_ptr is given twice"),
        ("{}:shift", "N=i32", ["N=64"], "N has no type of its own"),
        ("{}:shift", "*f16, *fp32, i32, fp32", ["N=64"], "x_ptr: .*did you mean .fp16"),
        ("{}:shift", "*fp32, *fp32, int32, fp32", ["N=64"], "n: .*did you mean i32"),
        ("{}:shift", "*fp32, *fp32, 8, fp32", ["N=64"], "n: .*--const n=8"),
        ("{}:shift", "*fp32:8, *fp32, i32, fp32", ["N=64"], "after ':' expected 16 or 1, got '8'"),
        ("{}:shift", "*fp32:1, *fp32, i32, fp32", ["N=64"], "only an integer can be 1"),
    ],
)
def test_every_mistake_is_named(
    file: str, kernel: str, signature: str, constants: list[str], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        load_kernel(kernel.format(file), signature, constants)


def test_what_is_no_kernel_is_refused(file: str) -> None:
    with pytest.raises(TypeError, match=r"expected a @triton.jit function, got function; kernels"):
        load_kernel(f"{file}:plain", "")


def test_a_missing_package_is_not_blamed_on_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "needs_npu.py"
    path.write_text("import torch_npu_that_is_not_here\n")
    said = "install it, or import torch_npu_that_is_not_here only where the kernel is launched"
    with pytest.raises(ValueError, match=re.escape(said)):
        load_kernel(f"{path}:kernel", "")

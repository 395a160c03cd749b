"""Kernels that are not ours, as a new user would check them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import A2, A5, TARGETS

from flashasc import native
from flashasc.ascend import compile_kernel, lint_lowered
from flashasc.ascend.user_kernel import UserKernel, load_kernel
from flashasc.testing.accuracy import error_budget

FILE = Path(__file__).with_name("user_kernels.py")
RMS_NORM = (
    "rms_norm",
    "*fp16:16, *fp16:16, *fp16:16, *fp32:16, i32, i32, i32, i32, fp32",
    ("BLOCK_SIZE=4096",),
)
SOFTMAX = (
    "softmax_kernel",
    "output_ptr=*fp16, input_ptr=*fp16, row_stride=i32, n_rows=i32, n_cols=i32",
    ("XBLOCK=8", "BLOCK_SIZE=1024"),
)
MATMUL = (
    "matmul_kernel",
    "*fp16,*fp16,*fp16,i32,i32,i32,i32:16,i32:1,i32:16,i32:1,i32:16,i32:1",
    ("BLOCK_M=128", "BLOCK_N=128", "BLOCK_K=64", "ACTIVATION=silu"),
)
KERNELS = {"rms_norm": RMS_NORM, "softmax": SOFTMAX, "matmul": MATMUL}


def load(name: str, signature: str, constants: tuple[str, ...]) -> UserKernel:
    return load_kernel(f"{FILE}:{name}", signature, constants)


def command(
    name: str, signature: str, constants: tuple[str, ...], *more: str
) -> subprocess.CompletedProcess[str]:
    consts = [part for constant in constants for part in ("--const", constant)]
    call = [sys.executable, "-m", "flashasc", "ascend", "check", f"{FILE}:{name}"]
    return subprocess.run(
        [*call, "--signature", signature, *consts, *more], capture_output=True, text=True
    )


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("how", KERNELS)
def test_a_users_kernel_is_lowered_linted_and_compiled(how: str, arch: str) -> None:
    lowered = load(*KERNELS[how]).lower(arch)
    expected = ["zero-trips"] if how == "matmul" and arch != A5 else []
    assert [finding.rule for finding in lint_lowered(lowered)] == expected
    report = compile_kernel(lowered)
    assert report.ok, report.summary()
    assert ("L0C" in report.memory) == (how == "matmul")


def test_a_matmul_of_a_fixed_size_has_no_loop_that_may_not_run() -> None:
    name, _, constants = MATMUL
    types = "*fp16,*fp16,*fp16,i32,i32,i32:16,i32:1,i32:16,i32:1,i32:16,i32:1"
    lowered = load(name, types, (*constants, "K=4096")).lower(A2)
    assert lint_lowered(lowered) == ()


def test_a_tile_that_is_too_large_is_told_apart() -> None:
    name, signature, _ = SOFTMAX
    report = compile_kernel(load(name, signature, ("XBLOCK=64", "BLOCK_SIZE=1024")).lower(A2))
    assert not report.ok
    assert "UB overflow: needs" in report.summary()


def test_the_command_line_says_the_same_of_all_three_targets() -> None:
    for how, (status, fits) in {"rms_norm": (0, 3), "softmax": (0, 3), "matmul": (1, 1)}.items():
        done = command(*KERNELS[how], "--json")
        assert done.returncode == status, done.stdout + done.stderr
        text = json.dumps(json.loads(done.stdout))
        assert text.count('"zero-trips"') == 3 - fits
        for arch in TARGETS:
            assert f'"arch": "{arch}"' in text


def test_the_command_line_explains_what_it_found() -> None:
    done = command(*MATMUL, "--target", "910B3", "--grid", "70000")
    assert done.returncode == 1
    said = " ".join((done.stdout + done.stderr).split())
    assert "zero-trips" in said
    assert "adds up matrix products and may run zero times" in said
    assert "70,000 programs" in said


def test_a_wrong_call_is_explained_without_a_trace() -> None:
    name, signature, _ = RMS_NORM
    done = command(name, signature, ("BLOCK=64",))
    assert done.returncode == 2
    assert "did you mean BLOCK_SIZE?" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("level", ["linalg", "hfusion"])
def test_their_numbers_are_right_as_lowered(level: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(37, 1000, dtype=torch.float16), torch.randn(1000, dtype=torch.float16)
    y, rstd = torch.full_like(x, float("nan")), torch.full((37,), float("nan"))
    loaded = load(*RMS_NORM)
    arguments = {"X": x, "W": w, "Y": y, "RSTD": rstd, "stride_x": 1000, "stride_y": 1000}
    arguments |= {"n_rows": 37, "n_cols": 1000, "eps": 1e-6}
    native.launch(loaded.kernel, (4,), arguments, loaded.constants, level=level)
    wide = x.double()
    exact_rstd = (wide.square().mean(1) + 1e-6).rsqrt()
    exact = wide * exact_rstd[:, None] * w.double()
    assert_close(y, exact, torch.nn.functional.rms_norm(x, (1000,), w, 1e-6))
    # a sum in index order is off by at most n * eps / 2, and its root by half of that
    assert ((rstd.double() / exact_rstd) - 1).abs().max() <= 1000 * torch.finfo(rstd.dtype).eps / 4

    out = torch.full_like(x, float("nan"))
    loaded = load(*SOFTMAX)
    arguments = {"output_ptr": out, "input_ptr": x, "row_stride": 1000}
    arguments |= {"n_rows": 37, "n_cols": 1000}
    native.launch(loaded.kernel, (4,), arguments, loaded.constants, level=level)
    assert_close(out, wide.softmax(1), x.softmax(1))

    a, b = torch.randn(100, 72).half(), torch.randn(72, 130).half()
    c = torch.full((100, 130), float("nan"), dtype=torch.float16)
    loaded = load(*MATMUL)
    arguments = {"a_ptr": a, "b_ptr": b, "c_ptr": c, "M": 100, "N": 130, "K": 72}
    arguments |= {"stride_am": 72, "stride_bk": 130, "stride_cm": 130}
    native.launch(loaded.kernel, (2,), arguments, loaded.constants, level=level)
    product = a.double() @ b.double()
    assert_close(c, product * product.sigmoid(), torch.nn.functional.silu((a @ b).float()).half())


def assert_close(got: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor) -> None:
    """Allow twice the error of eager PyTorch and one unit in the last place."""
    assert (got.double() - exact).abs().max() <= error_budget(eager, exact)

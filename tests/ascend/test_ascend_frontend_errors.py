"""What `lower` refuses, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")

import triton
from ascend_kernels import A2, TARGETS, multiply, normalise_rows, rows, type_error

from flashasc import _triton
from flashasc.ascend import ToolchainError, lower

HERE = Path(__file__).parent


@pytest.mark.parametrize("arch", TARGETS)
def test_what_the_front_end_rejects_is_named(arch: str) -> None:
    with pytest.raises(ToolchainError, match=f"kernel type_error, {arch}.*front end") as raised:
        lower(type_error, {"x_ptr": "*fp32", "n": "i32"}, {}, arch)
    error = raised.value
    assert (error.step, error.kernel) == ("triton front end", "type_error")
    # where in the kernel, as Triton shows it
    assert "tl.store(x_ptr, tl.load(n))" in str(error)


def test_an_unknown_type_is_named() -> None:
    kernel, signature, constants = rows()
    with pytest.raises(ToolchainError, match="'float16'"):
        lower(kernel, {**signature, "x_ptr": "*float16"}, constants, A2)


def test_a_failing_adapter_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from triton.backends.ascend import compiler

    broken = tmp_path / "triton-adapter-opt"
    broken.write_text("#!/bin/sh\necho 'kernel.mlir:1:1: error: it broke' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(compiler, "_get_triton_adapter_opt_path", lambda: str(broken))
    with pytest.raises(ToolchainError, match=r"status 3\): .*it broke") as raised:
        lower(*rows(), A2)
    assert raised.value.step == "triton-adapter-opt"
    assert raised.value.kernel == "normalise_rows"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"signature": {"zebra": "i32"}}, r"signature: \['zebra'\] are not arguments of kernel"),
        ({"constants": {"zebra": 1}}, r"constants: \['zebra'\] are not arguments"),
        ({"divisible_by_16": ["zebra"]}, r"divisible_by_16: \['zebra'\]"),
        ({"divisible_by_16": ["N"]}, r"divisible_by_16: \['N'\] are constants"),
        ({"drop": "n_rows"}, r"signature: no type for \['n_rows'\]"),
        ({"drop": "N"}, r"constants: no value for the constexpr \['N'\]"),
        (
            {"options": {"num_wraps": 4}},
            r"has no \['num_wraps'\]; it has .*num_warps",
        ),
    ],
)
def test_names_that_do_not_match_are_refused(change: dict, message: str) -> None:
    kernel, signature, constants = rows()
    signature = {**signature, **change.get("signature", {})}
    constants = {**constants, **change.get("constants", {})}
    signature.pop(change.get("drop"), None)
    constants.pop(change.get("drop"), None)
    extra = {name: change[name] for name in ("divisible_by_16", "options") if name in change}
    with pytest.raises(ValueError, match=message):
        lower(kernel, signature, constants, A2, **extra)


def test_an_unknown_processor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"(?s)got 'Ascend910C'.*Ascend910B3"):
        lower(*rows(), "Ascend910C")


def test_something_other_than_a_kernel_is_refused() -> None:
    _, signature, constants = rows()
    with pytest.raises(TypeError, match=r"expected a @triton.jit function, got function"):
        lower(normalise_rows.fn, signature, constants, A2)
    wrapped = triton.heuristics({"BLOCK_M": lambda arguments: 16})(multiply)
    with pytest.raises(TypeError, match=r"pass the function under the decorator, kernel\.fn"):
        lower(wrapped, signature, constants, A2)


def test_an_interpreted_kernel_is_refused(run_python) -> None:
    run_python(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from ascend_kernels import rows\n"
        "from flashasc.ascend import lower\n"
        "try:\n    lower(*rows(), 'Ascend910B3')\n"
        "except TypeError as error:\n    assert 'unset that' in str(error), error\n"
        "else:\n    raise SystemExit('not refused')\n",
        str(HERE),
        env={"TRITON_INTERPRET": "1"},
    )


@pytest.mark.parametrize(
    "here, message",
    [
        (_triton.TritonInfo(None), "no Triton is installed"),
        (_triton.TritonInfo("upstream", "3.6.0", Path("/site/triton")), r"upstream Triton 3\.6\.0"),
    ],
)
def test_without_triton_ascend_the_error_says_what_is_there(
    here: _triton.TritonInfo, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_triton, "installed", lambda: here)
    with pytest.raises(ToolchainError, match=rf"{message}.*pip install 'flashasc\[offline\]'"):
        lower(*rows(), A2)


def test_a_triton_ascend_that_cannot_be_imported_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    import triton.backends.ascend

    monkeypatch.delattr(triton.backends.ascend, "compiler")
    monkeypatch.setitem(sys.modules, "triton.backends.ascend.compiler", None)
    with pytest.raises(ToolchainError, match=r"can't be imported .*pip install"):
        lower(*rows(), A2)

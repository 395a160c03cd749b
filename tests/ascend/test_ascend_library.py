"""Which functions the device library defines, and which calls it leaves open."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from flashasc.ascend import CompileReport, bishengir_tool
from flashasc.ascend.bitcode import defined_functions
from flashasc.ascend.library import undefined_library_calls

A2, A3, A5 = "Ascend910B3", "Ascend910_9392", "Ascend950PR_9589"
LIBRARY = bishengir_tool("compile", A2).parent.parent / "lib"


def declare(name: str, core: str = "AIV") -> str:
    return (
        f"  func.func private @{name}(memref<?xf32>) attributes {{hacc.always_inline, "
        f"hivm.func_core_type = #hivm.func_core_type<{core}>, llvm.emit_c_interface}}"
    )


@pytest.mark.parametrize("file", sorted(LIBRARY.glob("*.bc")), ids=lambda file: file.name)
def test_every_shipped_library_can_be_read(file: Path) -> None:
    names = defined_functions(file)
    if file.name.startswith("host"):
        assert names == frozenset()
    else:
        ending = ""
        if ".mix." in file.name:
            ending = ".cube" if ".aic." in file.name else ".vector"
        assert f"_mlir_ciface_init_debug{ending}" in names
        # declared there, and defined nowhere: intrinsics
        assert not any(name.startswith("llvm.") for name in names)


@pytest.mark.parametrize("arch", [A2, A3, A5])
def test_what_the_library_defines_is_not_reported(arch: str) -> None:
    text = "\n".join(
        [
            declare("load_gm_to_ubuf_1d_float"),
            declare("fixpipe_nz2nd_float_to_float_4d_to_2d", "AIC")
            if arch != A5
            else declare("flip_1d_float"),
            declare("_mlir_ciface_init_debug", "AIC_OR_AIV"),
            "  func.func private @outlined(%arg0: i32) attributes "
            "{hivm.func_core_type = #hivm.func_core_type<AIV>} {",
            "  func.func @kernel(%arg0: i64) {",
        ]
    )
    assert undefined_library_calls(text, arch) == ()


@pytest.mark.parametrize("arch", [A2, A5])
def test_what_nothing_defines_is_reported_once(arch: str) -> None:
    text = "\n".join([declare("no_such_b"), declare("no_such_a"), declare("no_such_b")])
    assert undefined_library_calls(text, arch) == ("no_such_a", "no_such_b")


def test_generations_and_cores_have_libraries_of_their_own() -> None:
    # A5 vectorises additions itself
    assert undefined_library_calls(declare("vadd_1d_float"), A2) == ()
    assert undefined_library_calls(declare("vadd_1d_float"), A5) == ("vadd_1d_float",)
    assert undefined_library_calls(declare("vadd_1d_float", "AIC"), A2) == ("vadd_1d_float",)


def test_a_processor_must_be_known() -> None:
    with pytest.raises(ValueError, match="arch: expected an Ascend processor"):
        undefined_library_calls(declare("vadd_1d_float"), "Ascend1")


@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "not LLVM bitcode"),
        (b"\x7fELF", "not LLVM bitcode"),
        (b"BC\xc0\xde", "without a string table"),
        (b"BC\xc0\xde" + bytes([0x35, 0x14, 0, 0]), "without a string table|unknown form"),
    ],
)
def test_a_file_that_is_no_bitcode_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "library.bc"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=why):
        defined_functions(file)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    whole = (LIBRARY / "meta_op.mix.aic.bc").read_bytes()
    file = tmp_path / "library.bc"
    for size in (len(whole) // 2, 100, len(whole) - 4096):
        file.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"string table|unknown form"):
            defined_functions(file)


def test_a_report_with_open_calls_is_not_ok_where_that_can_be_known() -> None:
    report = CompileReport(
        kernel_name="k",
        arch=A2,
        flags=(),
        compiler="bishengir-compile 1.2.0",
        returncode=0,
        notes=(),
        diagnostics=(),
        overflow=None,
        memory={},
        seconds=1.0,
        log="",
        undefined_calls=("no_such_a",),
    )
    assert report.unlinkable and not report.ok
    assert "does not define: no_such_a; linking is expected to fail" in report.summary()
    assert CompileReport.from_json(report.to_json()) == report
    on_a5 = dataclasses.replace(report, arch=A5)
    assert on_a5.ok and not on_a5.unlinkable


def test_compiled_kernels_name_their_open_calls() -> None:
    pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
    from ascend_kernels import product, reduction

    from flashasc.ascend import compile_kernel, lower

    kernel, signature, constants = product()
    # after a loop that did not run, the A5 compiler has a function fill in the initial value
    report = compile_kernel(lower(kernel, signature, constants, A5))
    assert report.undefined_calls == ("broadcast_scalar_float_to_1d",)
    runs = compile_kernel(lower(kernel, signature, {**constants, "K": 256}, A5))
    assert runs.undefined_calls == ()
    for case in (product(), reduction("argmax")):
        assert compile_kernel(lower(*case, A2)).undefined_calls == ()

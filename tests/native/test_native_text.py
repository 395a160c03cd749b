"""The parts that need no compiler: reading MLIR, the HFusion tables, naming the machine."""

from __future__ import annotations

import pytest

from flashasc.native import host
from flashasc.native.errors import NativeError, shorten
from flashasc.native.hfusion import open_calls, translate
from flashasc.native.lowering import _call_matmuls
from flashasc.native.mathfunctions import use_definitions
from flashasc.native.mlir import element, kernel_function, rank, split_list

V2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
V3 = V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    "flags, name",
    [
        (set(), "x86-64"),
        (V2, "x86-64-v2"),
        (V3 | {"sse4a"}, "x86-64-v3"),
        (V4, "x86-64-v4"),
        (V4 - {"avx512vl"}, "x86-64-v3"),
        (V4 - {"f16c"}, "x86-64-v2"),
    ],
)
def test_x86_processors(flags: set[str], name: str) -> None:
    assert host.x86_cpu(flags) == name
    assert name in host._X86_OPTIONS


@pytest.mark.parametrize(
    "cores, name",
    [
        ([(0x48, 0xD01)], "tsv110"),
        ([(0x41, 0xD0C)] * 4, "neoverse-n1"),
        ([(0x41, 0xD40), (0x41, 0xD0C)], "generic"),
        ([(0x99, 0x001)], "generic"),
        ([], "generic"),
    ],
)
def test_arm_processors(cores: list[tuple[int, int]], name: str) -> None:
    text = "".join(
        f"processor\t: {i}\nCPU implementer\t: {who:#x}\nCPU part\t: {part:#x}\n\n"
        for i, (who, part) in enumerate(cores)
    )
    assert host.arm_cpu(text) == name


def test_an_arm_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.platform, "machine", lambda: "aarch64")
    host.host.cache_clear()
    try:
        machine = host.host()
    finally:
        host.host.cache_clear()
    assert machine.triple == "aarch64-unknown-linux-gnu" and machine.c_options == ()


def test_lists_are_split_outside_brackets() -> None:
    text = (
        "a, memref<4x?xf32, strided<[?, 1], offset: ?>>, affine_map<(d0, d1) -> (d1, d0)>, f(b, c)"
    )
    assert split_list(text) == [
        "a",
        "memref<4x?xf32, strided<[?, 1], offset: ?>>",
        "affine_map<(d0, d1) -> (d1, d0)>",
        "f(b, c)",
    ]
    assert split_list("") == []


def test_a_function_is_found() -> None:
    text = """module {
  func.func private @helper(f32) -> f32 attributes {llvm.readnone}
  func.func @k(%arg0: memref<?xi8>, %arg1: f32 {tt.divisibility = 16 : i32}) attributes {m = "x"} {
    return
  }
}"""
    function = kernel_function(text)
    assert function.name == "k"
    assert function.args == (("%arg0", "memref<?xi8>"), ("%arg1", "f32"))
    assert text[function.body :].startswith("{\n    return")
    with pytest.raises(ValueError, match="found 0"):
        kernel_function("module {}")


def test_types() -> None:
    type_ = "memref<?x64xbf16, strided<[?, 1]>>"
    assert (element(type_), rank(type_)) == ("bf16", 2)
    assert (element("tensor<f32>"), rank("tensor<f32>")) == ("f32", 0)
    assert (element("i32"), rank("i32")) == ("i32", 0)


def test_an_element_wise_operation_is_written_out() -> None:
    line = (
        "    %3 = linalg.elemwise_binary {fun = #linalg.binary_fn<mul>} ins(%1, %arg8 : "
        "tensor<4x8xf32>, f32) outs(%2 : tensor<4x8xf32>) -> tensor<4x8xf32>"
    )
    written = translate(line, a5=False)
    assert "affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> ()>" in written
    assert "arith.mulf %fi0, %fi1 : f32" in written
    assert written.rstrip().endswith("} -> tensor<4x8xf32>")


def test_the_two_lies_of_the_compiler_are_not_repeated() -> None:
    """Its own generalisation makes the identity of vnot, and a copy of a rounding cast."""
    vnot = (
        "%1 = hfusion.elemwise_unary {fun = #hfusion.unary_fn<vnot>} ins(%0 : tensor<4xi1>) "
        "outs(%0 : tensor<4xi1>) -> tensor<4xi1>"
    )
    assert "arith.xori" in translate(vnot, a5=False)
    for rounding, code in (("floor", "floor"), ("rint", "roundeven"), ("round", "round")):
        cast = (
            "%1 = hfusion.cast {cast = #hfusion.type_fn<cast_signed>, round_mode = "
            f"#hfusion.round_mode<{rounding}>}} ins(%0 : tensor<4xf32>) outs(%0 : tensor<4xf32>) "
            "-> tensor<4xf32>"
        )
        assert f"math.{code} %fi0" in translate(cast, a5=True)


@pytest.mark.parametrize(
    "name, code",
    [
        ("vult", "arith.cmpi ult"),
        ("vuge", "arith.cmpi uge"),
        ("vlt", "arith.cmpi slt"),
        ("vne", "arith.cmpi ne"),
    ],
)
def test_comparisons_keep_their_sign(name: str, code: str) -> None:
    line = (
        f"%1 = hfusion.compare {{compare_fn = #hfusion.compare_fn<{name}>}} ins(%0, %0 : "
        "tensor<4xi32>, tensor<4xi32>) outs(%2 : tensor<4xi1>) -> tensor<4xi1>"
    )
    assert code in translate(line, a5=False)


@pytest.mark.parametrize(
    "line, reason",
    [
        ("%1 = hfusion.histogram %0, 8 : tensor<4xi32> -> tensor<8xi32>", "hfusion.histogram"),
        (
            "%1 = hfusion.elemwise_unary {fun = #hfusion.unary_fn<ilogb>} ins(%0 : tensor<4xf32>) "
            "outs(%0 : tensor<4xf32>) -> tensor<4xf32>",
            "the function ilogb on f32",
        ),
        (
            "%1 = hfusion.compare {compare_fn = #hfusion.compare_fn<vult>} ins(%0, %0 : "
            "tensor<4xf32>, tensor<4xf32>) outs(%2 : tensor<4xi1>) -> tensor<4xi1>",
            "the comparison vult on f32",
        ),
        (
            "%1 = hfusion.cast {cast = #hfusion.type_fn<cast_signed>, enable_saturate = true, "
            "round_mode = #hfusion.round_mode<rint>} ins(%0 : tensor<4xi32>) outs(%2 : "
            "tensor<4xi8>) -> tensor<4xi8>",
            "saturating",
        ),
        (
            "%1 = hfusion.cast {round_mode = #hfusion.round_mode<floor>} ins(%0 : tensor<4xf32>) "
            "outs(%2 : tensor<4xf16>) -> tensor<4xf16>",
            "a cast from f32 to f16, rounding floor",
        ),
        ("hivm.hir.something ins(%0 : tensor<4xf32>)", "hivm.hir.something"),
    ],
)
def test_what_is_not_in_the_tables_is_refused(line: str, reason: str) -> None:
    with pytest.raises(NativeError, match="step 'check'") as caught:
        translate(line, a5=False)
    assert reason in caught.value.reason and line[:40] in caught.value.reason


def test_a_scan_along_an_axis_that_is_not_known() -> None:
    text = (
        "%1 = call @triton_cumsum_0(%0, %axis, %false) : (tensor<4xf32>, i32, i1) -> tensor<4xf32>"
    )
    with pytest.raises(NativeError, match="an axis %axis that is not a constant"):
        open_calls(text)


def test_products_become_calls() -> None:
    types = "memref<4x8xf16>, memref<8x4xf16, strided<[?, 1]>>"
    line = f"    linalg.matmul ins(%a, %b : {types}) outs(%c : memref<4x4xf32>)\n"
    text = _call_matmuls(f"module {{\n{line}}}\n")
    assert "linalg.matmul" not in text
    assert text.count("func.call @flashasc_matmul_f16(") == 1
    assert text.count("func.func private @flashasc_matmul_f16(") == 1
    # what the cube would round to fewer digits is a product of fp32 here
    hf32 = line.replace("matmul ins", 'matmul {input_precison = "hf32"} ins').replace(
        "xf16", "xf32"
    )
    assert "func.call @flashasc_matmul_f32(" in _call_matmuls(f"module {{\n{hf32}}}\n")
    other = line.replace("xf16", "xi8").replace("xf32", "xi32")
    assert other in _call_matmuls(f"module {{\n{other}}}\n")


def test_divisions_are_defined_once_for_each_type() -> None:
    text = (
        "{\n    %1 = llvm.sdiv %a, %b : i32\n    %2 = llvm.sdiv %1, %b : i32\n"
        "    %3 = llvm.urem %1, %b : i64\n    %4 = llvm.intr.exp2(%f) : (f32) -> f32\n}\n"
    )
    text = use_definitions(text)
    assert text.count("llvm.func internal @flashasc_sdiv_i32(") == 1
    assert text.count("llvm.func internal @flashasc_urem_i64(") == 1
    assert text.count("llvm.sdiv") == 1, "only inside the definition"
    assert "llvm.call @flashasc_exp2(%f) : (f32) -> f32" in text


def test_a_log_is_cut_to_what_it_says() -> None:
    log = "\n".join(["note: something"] * 50 + ["x.mlir:3:4: error: wrong", "stack dump"])
    assert shorten(log) == "x.mlir:3:4: error: wrong"
    assert shorten("a\nb\n") == "a\nb"
    assert len(shorten("error " * 1000)) < 1300

from __future__ import annotations

import pytest

from flashasc.ascend import Finding, lint

TARGETS = ("Ascend910B3", "Ascend910_9392", "Ascend950PR_9589")


def lowered(how: str, arch: str) -> str:
    pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
    from ascend_kernels import product, reduction, rows

    from flashasc.ascend import lower

    case = {"rows": rows, "product": product}.get(how, lambda: reduction(how))()
    kernel, signature, constants = case
    if how == "product":
        # with K as an argument its loop may not run
        constants |= {"K": 256}
    return lower(kernel, signature, constants, arch).linalg


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("how", ["rows", "product", "sum", "max", "argmax"])
def test_what_lowers_right_is_not_flagged(how: str, arch: str) -> None:
    assert lint(lowered(how, arch)) == ()


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("how, last", [("largest_size", "maxnumf"), ("hypotenuse", "math.sqrt")])
def test_a_combination_of_operations_is_flagged(how: str, last: str, arch: str) -> None:
    text = lowered(how, arch)
    (finding,) = lint(text)
    assert finding.rule == "reduce-body"
    assert text.splitlines()[finding.line - 1].strip() == finding.text
    assert "linalg.reduce" in finding.text
    assert last in finding.message
    assert "keeps only the last one" in finding.message
    assert "tl.sum" in finding.message


@pytest.mark.parametrize("arch", TARGETS)
def test_a_reduction_of_several_values_is_flagged(arch: str) -> None:
    (finding,) = lint(lowered("two_sum", arch))
    assert finding.rule == "leftover-triton"
    assert "tt.reduce was not lowered" in finding.message
    assert "reduce one value at a time" in finding.message


BODY = """
module {
  %reduced = linalg.reduce ins(%0 : tensor<32x64xf32>) outs(%1 : tensor<32xf32>) dimensions = [1]
    (%in: f32, %init: f32) {
BODY
      linalg.yield %9 : f32
    }
  %x = arith.mulf %0, %0 : f32
}
"""
ADD = "      %9 = arith.addf %in, %init : f32"
NESTED = """      %9 = scf.if %c -> (f32) {
        scf.yield %in : f32
      } else {
        scf.yield %init : f32
      }"""


@pytest.mark.parametrize(
    "body, operations",
    [
        (ADD, None),
        ("", 0),
        (f"      %8 = math.absf %in : f32\n{ADD}", 2),
        (NESTED, 5),
    ],
)
def test_every_operation_of_a_body_counts(body: str, operations: int | None) -> None:
    found = lint(BODY.replace("BODY\n", body + "\n" if body else ""))
    if operations is None:
        assert found == ()
    else:
        assert [finding.rule for finding in found] == ["reduce-body"]
        assert f"has {operations} operations" in found[0].message


def test_the_short_form_of_a_reduction_is_in_order() -> None:
    assert lint("%r = linalg.reduce { arith.addf } ins(%0 : tensor<4xf32>) outs(%1)") == ()


@pytest.mark.parametrize(
    "line, name",
    [
        ("tt.print %0 : i32", "tt.print"),
        ("%1 = tt.load %0 : !tt.ptr<f32>", "tt.load"),
        ('%1:2 = "tt.scan"(%0, %0) <{axis = 0 : i32}> ({', "tt.scan"),
        ('"tt.atomic_rmw"(%0) : (f32) -> ()', "tt.atomic_rmw"),
    ],
)
def test_each_leftover_is_named(line: str, name: str) -> None:
    (finding,) = lint(f"module {{\n  {line}\n}}")
    assert finding == Finding("leftover-triton", 2, line, finding.message)
    assert finding.message.startswith(f"{name} was not lowered")


def test_attributes_of_triton_are_in_order() -> None:
    head = (
        "func.func @k(%arg2: memref<?xf16> {tt.divisibility = 16 : i32, tt.tensor_kind = 0 : i32})"
    )
    assert lint(head) == ()


def test_findings_come_in_order_and_read_well() -> None:
    body = BODY.replace("BODY\n", "")
    found = lint("tt.print %0 : i32\n" + body + "tt.print %0 : i32\n")
    assert [finding.rule for finding in found] == [
        "leftover-triton",
        "reduce-body",
        "leftover-triton",
    ]
    assert str(found[1]).startswith("reduce-body, line 4: the body of this reduction")

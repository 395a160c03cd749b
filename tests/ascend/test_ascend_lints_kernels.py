"""Each rule on kernels that break it, and on close relatives that don't."""

from __future__ import annotations

import importlib.util
import re

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")

import lint_kernels as kernels
from ascend_kernels import A2, A3, A5, Case, product

from flashasc.ascend import Finding, compile_kernel, lint, lint_lowered, lower
from flashasc.ascend.lints import EFFECTS


def findings(case: Case, arch: str = A2, **how: object) -> tuple[Finding, ...]:
    return lint_lowered(lower(*case, arch), **how)


def rules(case: Case, arch: str = A2) -> list[str]:
    return [finding.rule for finding in findings(case, arch)]


@pytest.mark.parametrize("arch", [A2, A5])
@pytest.mark.parametrize("how", ["max", "linear"])
def test_a_scan_by_a_function_is_a_scalar_loop(how: str, arch: str) -> None:
    (finding,) = findings(kernels.scanning(how), arch)
    assert finding.rule == "scalar-loop"
    assert finding.text.startswith("scf.for")
    assert "63 elements are handled one by one" in finding.message
    assert "triangular matrix" in finding.message


@pytest.mark.parametrize("axis, elements", [(0, 64 * 15), (1, 16 * 63)])
def test_a_scan_of_a_tile_is_one_finding(axis: int, elements: int) -> None:
    (finding,) = findings(kernels.scanning_tile(axis, sums=False))
    assert finding.rule == "scalar-loop"
    assert f"{elements:,} elements" in finding.message


@pytest.mark.parametrize("how", ["cumsum", "cumprod", "add"])
def test_the_compiler_of_a2_and_a3_makes_scalar_loops_of_sums_and_products(how: str) -> None:
    for arch in (A2, A3):
        (finding,) = findings(kernels.scanning(how), arch)
        assert finding.rule == "scalar-scan"
        assert "over 64 elements" in finding.message
    # a library function there
    assert rules(kernels.scanning(how), A5) == []


def test_sums_down_the_columns_are_vector_work() -> None:
    assert rules(kernels.scanning_tile(1, sums=True)) == ["scalar-scan"]
    assert rules(kernels.scanning_tile(0, sums=True)) == []


@pytest.mark.parametrize("arch", [A2, A5])
@pytest.mark.parametrize("how", ["gather", "masked gather", "wrapped", "repeated"])
def test_addresses_without_a_stride_are_read_one_by_one(how: str, arch: str) -> None:
    (finding,) = findings(kernels.looking_up(how), arch)
    assert finding.rule == "scalar-loop"
    assert "64 elements are read or written in global memory one by one" in finding.message
    assert "tl.gather" in finding.message


def test_scattered_stores_and_gathered_tiles_are_found() -> None:
    assert rules(kernels.scattering()) == ["scalar-loop"]
    (finding,) = findings(kernels.gathering(rows=False))
    assert "1,024 elements" in finding.message


@pytest.mark.parametrize("how", ["strided", "paged", "pages", "flip", "sort", "tile"])
def test_transfers_and_library_functions_are_in_order(how: str) -> None:
    assert rules(kernels.looking_up(how)) == []


def test_whole_rows_by_index_are_in_order() -> None:
    assert rules(kernels.gathering(rows=True)) == []
    assert rules(kernels.scanning("none")) == []


@pytest.mark.parametrize(
    "how, dtype",
    [
        ("after", "*fp16"),
        ("after, computed", "*fp16"),
        ("two products", "*fp16"),
        ("next iteration", "*fp32"),
    ],
)
def test_a_left_operand_that_is_read_again_is_found(how: str, dtype: str) -> None:
    (finding,) = findings(kernels.multiplying(how, dtype))
    assert finding.rule == "left-operand"
    assert "linalg.matmul" in finding.text
    line = int(re.search(r"\(line (\d+)", finding.message)[1])
    reader = lower(*kernels.multiplying(how, dtype), A2).linalg.splitlines()[line - 1]
    assert re.search(r"operand of this product, (%\w+)", finding.message)[1] in reader


@pytest.mark.parametrize("how", ["before", "right operand", "loaded again", "queries"])
def test_other_reads_of_an_operand_are_in_order(how: str) -> None:
    assert rules(kernels.multiplying(how)) == []


MAY_NOT_RUN = ["n", "cdiv of n", "first to n", "own share", "into acc", "wrong guard", "while"]
RUNS = [
    *("at least one", "cdiv", "constant", "from first", "first to the later", "triangle"),
    *("guarded", "other branch", "while once"),
]
NO_ACCUMULATOR = ["rescaled", "kahan", "no product", "stored"]


@pytest.mark.parametrize("how", MAY_NOT_RUN)
def test_a_sum_of_products_that_may_have_no_terms_is_found(how: str) -> None:
    (finding,) = findings(kernels.adding(how))
    assert finding.rule == "zero-trips"
    assert re.search(r"scf\.(for|while)", finding.text)
    assert "tl.maximum(n, 1)" in finding.message


@pytest.mark.parametrize("how", RUNS + NO_ACCUMULATOR)
def test_a_loop_that_runs_or_adds_no_products_is_in_order(how: str) -> None:
    assert rules(kernels.adding(how)) == []


def test_only_a2_and_a3_leave_such_a_sum_undefined() -> None:
    assert rules(product(), A3) == ["zero-trips"]
    assert rules(product(), A5) == []
    # the text alone does not say whom it is for
    assert [it.rule for it in lint(lower(*product(), A5).linalg)] == ["zero-trips"]


@pytest.mark.parametrize("dtype, shown", [("fp16", "f16"), ("bf16", "bf16")])
def test_a_scalar_of_16_bits_is_found(dtype: str, shown: str) -> None:
    (finding,) = findings(kernels.scaling(dtype))
    assert finding.rule == "half-scalar"
    assert f"is {shown}." in finding.message
    assert rules(kernels.scaling("fp32")) == []


def test_a_grid_is_checked_when_it_is_given() -> None:
    case = kernels.scaling("fp32")
    for fits in (None, 65_535, (255, 257), [5, 17, 771]):
        assert findings(case, grid=fits) == ()
    for too_large in (65_536, (256, 256), (70_000,), (40, 50, 60)):
        (finding,) = findings(case, grid=too_large)
        assert finding.rule == "grid"
        assert "func.func @scale" in finding.text
        assert "tl.num_programs(0)" in finding.message
    assert "256 x 256 has 65,536 programs" in findings(case, grid=(256, 256))[0].message


@pytest.mark.parametrize("bad", [0, (-1, 2), (1, 1, 1, 1), (), (2.5,)])
def test_what_is_no_grid_is_an_error(bad: object) -> None:
    with pytest.raises(ValueError, match="grid: expected one to three positive integers"):
        findings(kernels.scaling("fp32"), grid=bad)


@pytest.mark.parametrize("arch", [A2, A5])
def test_a_reduction_that_forgets_an_argument_is_found(arch: str) -> None:
    (finding,) = findings(kernels.reducing("square"), arch)
    assert finding.rule == "reduce-operands"
    assert re.search(r"arith\.mulf (%\w+), \1 :", finding.message)
    assert "does not combine its two arguments" in finding.message
    assert str(finding).startswith("reduce-operands: the body")
    # its Linalg text looks right
    assert lint(lower(*kernels.reducing("square"), arch).linalg) == ()
    assert rules(kernels.reducing("second"), arch) == ["reduce-body"]
    assert rules(kernels.reducing("add"), arch) == []


def test_each_rule_says_what_it_leads_to() -> None:
    assert set(EFFECTS) == {
        *("reduce-body", "reduce-operands", "leftover-triton", "scalar-loop", "scalar-scan"),
        *("left-operand", "zero-trips", "half-scalar", "grid"),
    }
    assert EFFECTS["scalar-loop"] == "slow"


@pytest.mark.skipif(
    importlib.util.find_spec("ascendnpuir") is None, reason="ascendnpu-ir is not installed"
)
@pytest.mark.parametrize("how", ["cumsum", "max"])
def test_a_flagged_scan_still_compiles(how: str) -> None:
    # slow, not rejected
    assert compile_kernel(lower(*kernels.scanning(how), A2)).ok

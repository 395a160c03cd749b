"""What `python -m flashasc ascend check` lists by default: every row, and none twice."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)
pytest.importorskip("typer")

from ascend_kernels import A2, TARGETS
from typer.testing import CliRunner

from flashasc._configs import ascend, gemm_ascend
from flashasc._configs.reduce import NORMALIZE, REDUCE
from flashasc.workbench import Case
from flashasc.workbench.asked import asked_cases
from flashasc.workbench.cli import app


@pytest.fixture(scope="module")
def listed() -> list[Case]:
    return asked_cases(None, None, None, None, TARGETS, None, None, None)


def facts(cases: list[Case], operation: str, *names: str) -> set[tuple[object, ...]]:
    """Processor and some facts of every case of an operation."""
    return {
        (case.arch, *(str(case.facts[name]) for name in names))
        for case in cases
        if case.facts["operation"] == operation
    }


@pytest.mark.parametrize(
    "operation, table",
    [("attention forward", ascend.TILES), ("attention split", ascend.SPLIT_TILES)],
)
def test_every_row_of_attention(listed: list[Case], operation: str, table: object) -> None:
    names = ("dtype", "precision", "max_head", "options", "block_m", "block_n")
    assert facts(listed, operation, *names) == {
        (arch, str(row.dtype)[6:], row.precision, str(row.max_head), str(sorted(row.options)),
         str(row.block_m), str(row.block_n))
        for row in table
        for arch in row.targets
    }  # fmt: skip


def test_every_kind_of_merge(listed: list[Case]) -> None:
    names = ("dtype", "precision", "options")
    assert facts(listed, "merge of chunks", *names) == {
        (arch, str(row.dtype)[6:], row.precision, str(sorted(row.options)))
        for row in ascend.SPLIT_TILES
        for arch in row.targets
    }
    # the tile of a merge is that of the larger head sizes, whatever the head size
    for arch in TARGETS:
        wide = max(row.max_head for row in ascend.SPLIT_TILES)
        assert {head for _, head in facts(listed, "merge of chunks", "max_head")} == {str(wide)}
        every = asked_cases(None, None, None, None, (arch,), None, None, None, every_use=True)
        merges = [case for case in every if case.facts["operation"] == "merge of chunks"]
        columns = {case.constants["BLOCK_COLS"] for case in merges if case.facts["Dv"] > 1}
        assert columns == {128}


def test_every_row_of_products(listed: list[Case]) -> None:
    names = ("dtype", "precision", "product", "block_m", "block_n")
    assert facts(listed, "product", *names) == {
        (arch, str(row.dtype)[6:], "compensated" if row.compensated else "standard",
         row.products[-1], str(row.block_m), str(row.block_n))
        for row in gemm_ascend.TILES
        for arch in row.targets
    }  # fmt: skip
    # two rows of the same tile differ in what the end of the kernel does
    rows = [arch for row in gemm_ascend.TILES for arch in row.targets]
    assert len([case for case in listed if case.facts["operation"] == "product"]) == len(rows)


def test_every_row_of_reductions(listed: list[Case]) -> None:
    def tiles(operation: str) -> list[tuple[object, ...]]:
        chosen = [case for case in listed if case.facts["operation"] == operation]
        return sorted((c.arch, c.facts["block_m"], c.facts["block_n"]) for c in chosen)

    assert tiles("reduction") == sorted(
        (arch, row.block_m, row.block_n)
        for row in REDUCE
        for arch in row.targets
        if arch in TARGETS
    )
    assert tiles("layer_norm") == sorted(
        (arch, tile.block_m(tile.max_tile), tile.block_n(tile.max_tile))
        for tile in NORMALIZE
        for arch in tile.targets
        if arch in TARGETS
    )


def test_no_kernel_is_compiled_twice(listed: list[Case]) -> None:
    kinds = [
        (case.arch, case.kernel, str(case.signature), str(case.constants), case.divisible_by_16)
        for case in listed
    ]
    assert len(set(kinds)) == len(kinds)


def test_a_dtype_that_is_asked_for_is_the_one(listed: list[Case]) -> None:
    cases = asked_cases(None, None, None, None, (A2,), "bfloat16", None, None)
    rows = len([row for row in REDUCE if A2 in row.targets])
    reductions = [case for case in cases if case.facts["operation"] == "reduction"]
    assert [case.facts["dtype"] for case in reductions] == ["bfloat16"] * rows


def test_what_is_left_out_is_counted() -> None:
    chosen = ("bfloat16", "high", 200)
    some = asked_cases(None, None, None, None, (A2,), *chosen)
    every = asked_cases(None, None, None, None, (A2,), *chosen, every_use=True)
    arguments = "ascend check --target 910B3 --dtype bfloat16 --precision high --head-dim 200"
    said = CliRunner().invoke(app, arguments.split()).stdout
    assert f"{len(every) - len(some)} more uses of these kernels are left to --uses." in said
    assert len(every) > len(some) > 0

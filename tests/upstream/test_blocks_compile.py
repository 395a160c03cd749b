"""Every block, to machine code, with no GPU."""

from __future__ import annotations

import pytest
from block_cases import BLOCK_CASES, product_case
from compile_only import SHARED_BYTES, compile_only


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", BLOCK_CASES)
def test_a_block_compiles(name: str, capability: int) -> None:
    built = compile_only(*BLOCK_CASES[name], capability)
    assert built.cubin
    assert built.shared_bytes <= SHARED_BYTES[capability]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_a_product_of_fp32_compiles_at_each_precision(precision: str, capability: int) -> None:
    ptx = compile_only(*product_case(precision), capability).ptx
    # tensor cores take fp32 only as tf32
    assert ("tf32" in ptx) == (precision != "ieee")

"""Every block, to machine code, with no GPU."""

from __future__ import annotations

import pytest
import triton.language as tl
from block_cases import BLOCK_CASES, product_case, round_pairs_case
from compile_only import SHARED_BYTES, compile_only, newest_capability


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


@pytest.mark.parametrize("capability", [80, 90])
def test_numbers_are_rounded_in_pairs(capability: int) -> None:
    """Four to a thread: two instructions, and none that rounds a number alone."""
    if newest_capability() == 90:
        pytest.skip("Triton 3.2 aborts on an instruction with several results; no row has one")
    for dtype, name in ((tl.float16, "f16"), (tl.bfloat16, "bf16")):
        ptx = compile_only(*round_pairs_case(dtype), capability, num_warps=2).ptx
        assert ptx.count(f"cvt.rn.{name}x2.f32") == 2
        assert f"cvt.rn.{name}.f32" not in ptx

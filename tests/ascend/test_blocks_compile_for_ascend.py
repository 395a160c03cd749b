"""Every block, through the Ascend compiler."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import A2, A5
from block_cases import BLOCK_CASES, BlockCase, product_case

from flashasc.ascend import compile_kernel, lint, lower

CASES = {**BLOCK_CASES, **{f"dot-{p}": product_case(p) for p in ("ieee", "hf32")}}


@pytest.mark.parametrize("arch", [A2, A5])
@pytest.mark.parametrize("name", CASES)
def test_a_block_compiles(name: str, arch: str) -> None:
    case: BlockCase = CASES[name]
    lowered = lower(*case, arch)
    assert not lint(lowered.linalg)
    report = compile_kernel(lowered)
    assert report.ok, report.summary() + "\n" + report.log

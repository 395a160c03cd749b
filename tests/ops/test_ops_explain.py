"""`ops.explain` says what runs, and what it says is what runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gemm_routes import Route

from flashasc import ops


@pytest.mark.parametrize("K", [64, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_agrees_with_what_runs(
    monkeypatch: pytest.MonkeyPatch, fast_gemm_route: Route, dtype: torch.dtype, K: int
) -> None:
    a = torch.ones(3, 2, K, dtype=dtype, device=fast_gemm_route.device)
    b = torch.ones(5, K, dtype=dtype, device=fast_gemm_route.device).mT
    plan = ops.explain(a, b, impl=fast_gemm_route.impl)
    if fast_gemm_route.name == "reference":
        assert plan.route == "reference"
        assert plan.config is plan.target is None
        return
    from flashasc.kernels import gemm_launch

    launched: list[Any] = []
    monkeypatch.setattr(gemm_launch, "launch_gemm", lambda *call: launched.append(call))
    ops.matmul(a, b, impl=fast_gemm_route.impl)
    ((*_, row, target, route),) = launched
    assert (plan.config, plan.target, plan.route) == (row, target, route)
    assert row.compensated == (K >= 4096)
    for words in (target.arch, f"{row.block_m} x {row.block_n}", row.source):
        assert words in str(plan)


def test_it_raises_what_a_product_would() -> None:
    a = torch.ones(2, 3)
    with pytest.raises(ValueError, match="3"):
        ops.explain(a, a)
    with pytest.raises(NotImplementedError, match="tf32"):
        ops.explain(a, a.mT, product="tf32")


def test_auto_takes_the_reference_for_cpu_tensors() -> None:
    assert "impl='triton'" in str(ops.explain(torch.ones(2, 3), torch.ones(3)))

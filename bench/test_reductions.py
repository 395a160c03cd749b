"""Sums, norms and softmax beside PyTorch's, as a share of the bandwidth of a copy."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from torch import Tensor

from flashasc import ops
from flashasc._dispatch import Impl

from .cases import REDUCTIONS, REDUCTIONS_CPU, ReductionCase
from .gate import EPS, Expected, expected_reduction, reduction_inputs, torch_reduction
from .suite import Measure, Run, need, parameters

TABLES = {"cpu": REDUCTIONS_CPU, "cuda": REDUCTIONS, "npu": REDUCTIONS}


def implementations(device: str, case: ReductionCase) -> Iterator[str]:
    """Names."""
    for prefix in ("reference", "native") if device == "cpu" else ("flashasc",):
        yield f"{prefix}_plain"
        yield f"{prefix}_compensated"
    yield "torch"


def build(case: ReductionCase, x: Tensor, weight: Tensor, implementation: str) -> Run:
    """A call by its name."""
    if implementation == "torch":
        return lambda: torch_reduction(case, x, weight)
    prefix, sums = implementation.split("_")
    impl: Impl = "reference" if prefix == "reference" else "triton"
    compensated = sums == "compensated"
    match case.op:
        case "sum":
            return lambda: ops.sum(x, -1, compensated=compensated, impl=impl)
        case "var":
            return lambda: ops.var(x, -1, compensated=compensated, impl=impl)
        case "logsumexp":
            return lambda: ops.logsumexp(x, -1, compensated=compensated, impl=impl)
        case "softmax":
            return lambda: ops.softmax(x, compensated=compensated, impl=impl)
        case "rms_norm":
            size = case.columns
            return lambda: ops.rms_norm(
                x, size, weight, eps=EPS, compensated=compensated, impl=impl
            )
        case "layer_norm":
            size = case.columns
            return lambda: ops.layer_norm(
                x, size, weight, eps=EPS, compensated=compensated, impl=impl
            )


@parameters(TABLES, implementations)
def test_reductions(device: str, case: str, implementation: str, measure: Measure) -> None:
    need(device)
    row, x, weight, expected = prepared(device, case)
    measure(device, row, implementation, lambda: build(row, x, weight, implementation), expected)


@functools.lru_cache(maxsize=1)
def prepared(device: str, name: str) -> tuple[ReductionCase, Tensor, Tensor, Expected]:
    (case,) = (case for case in TABLES[device] if case.name == name)
    x, weight = reduction_inputs(case, device)
    return case, x, weight, expected_reduction(case, x, weight)

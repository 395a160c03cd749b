"""Matrix products beside the library's, which is cuBLAS on an NVIDIA GPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from flashasc import ops
from flashasc._dispatch import Impl
from flashasc._gemm_problem import Product

from .cases import GEMM, GEMM_CPU, GemmCase
from .gate import Expected, expected_gemm, gemm_inputs
from .suite import Measure, Run, need, parameters

TABLES = {"cpu": GEMM_CPU, "cuda": GEMM, "npu": GEMM}
SPLIT: dict[str, tuple[Product, ...]] = {"cuda": ("bf16x6", "tf32x3"), "npu": ("bf16x6",)}
"""Other ways to multiply float32 numbers."""


def implementations(device: str, case: GemmCase) -> Iterator[str]:
    """Names; "flashasc_compensated_bf16x6" is compensated, of float32 factors in 16-bit parts."""
    for prefix in ("reference", "native") if device == "cpu" else ("flashasc",):
        yield f"{prefix}_plain"
        yield f"{prefix}_compensated"
    if case.dtype == torch.float32:
        for product in SPLIT.get(device, ()):
            yield f"flashasc_compensated_{product}"
    yield "torch"


def build(a: Tensor, b: Tensor, implementation: str) -> Run:
    """A call by its name."""
    if implementation == "torch":
        return lambda: torch.matmul(a, b)
    prefix, sums, *products = implementation.split("_")
    impl: Impl = "reference" if prefix == "reference" else "triton"
    product: Product = products[0] if products else "ieee"  # type: ignore[assignment]
    compensated = sums == "compensated"
    return lambda: ops.matmul(a, b, compensated=compensated, product=product, impl=impl)


@parameters(TABLES, implementations)
def test_gemm(device: str, case: str, implementation: str, measure: Measure) -> None:
    need(device)
    row, a, b, expected = prepared(device, case)
    measure(device, row, implementation, lambda: build(a, b, implementation), expected)


@functools.lru_cache(maxsize=1)
def prepared(device: str, name: str) -> tuple[GemmCase, Tensor, Tensor, Expected]:
    (case,) = (case for case in TABLES[device] if case.name == name)
    a, b = gemm_inputs(case, device)
    return case, a, b, expected_gemm(a, b)

"""matmul, bmm and linear: results, shapes and wrong calls."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gemm_routes import ROUTES, Route, prepare
from torch import Tensor

from flashasc import ops

U = 2.0**-24


def normals(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Within the bound of plain fp32 sums, once rounded to the output's dtype."""
    a, b = a.double(), b.double()
    exact, size = a @ b, a.abs() @ b.abs()
    eps = torch.finfo(out.dtype).eps
    assert out.shape == exact.shape
    bound = 2 * U * (a.shape[-1] + 2) * size + eps * exact.abs() + 1e-30
    assert ((out.cpu().double() - exact).abs() <= bound).all()


def ragged_batch(route: Route, dtype: torch.dtype) -> None:
    """Broadcast leading dimensions, transposed factors, no size a multiple of a tile."""
    a = normals(3, 1, 70, 150, seed=1, dtype=dtype)
    b = normals(1, 2, 140, 150, seed=2, dtype=dtype).mT
    out = ops.matmul(a.to(route.device), b.to(route.device), compensated=True, impl=route.impl)
    assert out.dtype == dtype
    assert_product(out, a, b)


def test_a_ragged_batch(gemm_route: Route) -> None:
    ragged_batch(gemm_route, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_ragged_batch_of_16_bits(fast_gemm_route: Route, dtype: torch.dtype) -> None:
    ragged_batch(fast_gemm_route, dtype)


SHAPES = [
    ((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 4)), ((2, 3, 5), (5, 4)), ((2, 3, 5), (5,)),
    ((5,), (2, 5, 4)), ((7, 1, 3, 5), (2, 5, 4)), ((2, 3, 5), (2, 5, 1)), ((2, 1, 5), (5, 4)),
]  # fmt: skip
EMPTY = [
    ((2, 0, 5), (5, 4)),
    ((2, 3, 0), (0, 4)),
    ((3, 0), (0,)),
    ((0,), (0,)),
    ((0, 3, 5), (5, 4)),
]


def shapes_are_torchs(route: Route, *shapes: tuple[int, ...]) -> None:
    a, b = (normals(*shape, seed=i).to(route.device) for i, shape in enumerate(shapes))
    expected = a @ b
    out = ops.matmul(a, b, impl=route.impl)
    assert out.shape == expected.shape and out.is_contiguous()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    # no product at all is a sum of nothing
    if 0 in a.shape[-1:]:
        assert (out == 0).all()


@pytest.mark.parametrize("shapes", [*SHAPES, *EMPTY], ids=str)
def test_shapes_are_those_of_torch(shapes: tuple[tuple[int, ...], ...]) -> None:
    shapes_are_torchs(ROUTES["reference"], *shapes)


@pytest.mark.parametrize("shapes", [SHAPES[0], SHAPES[5], *EMPTY[:2]], ids=str)
def test_shapes_of_the_kernel(fast_gemm_route: Route, shapes: tuple[tuple[int, ...], ...]) -> None:
    shapes_are_torchs(fast_gemm_route, *shapes)


def test_any_strides(fast_gemm_route: Route) -> None:
    """Four batch dimensions that cannot be joined, expanded ones, and steps of 2."""
    a = normals(2, 3, 2, 3, 5, 6, seed=1).to(fast_gemm_route.device).transpose(0, 2)
    b = normals(2, 1, 2, 1, 6, 8, seed=2).to(fast_gemm_route.device)[..., ::2]
    b = b.expand(2, 3, 2, 3, 6, 4)
    out = ops.matmul(a, b, impl=fast_gemm_route.impl)
    torch.testing.assert_close(out, a @ b, rtol=1e-5, atol=1e-5)
    assert ops.bmm(a[0, 0, 0], b[0, 0, 0], impl=fast_gemm_route.impl).equal(out[0, 0, 0])


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_linear(fast_gemm_route: Route, activation: Any) -> None:
    x, weight = normals(2, 9, 40, seed=1), normals(30, 40, seed=2)
    bias, residual = normals(30, seed=3), normals(9, 30, seed=4)
    x, weight, bias, residual = (t.to(fast_gemm_route.device) for t in (x, weight, bias, residual))
    out = ops.linear(
        x, weight, bias, activation=activation, residual=residual, impl=fast_gemm_route.impl
    )
    before = F.linear(x.double(), weight.double(), bias.double())
    after = {
        None: lambda y: y, "relu": F.relu, "gelu": F.gelu, "silu": F.silu,
        "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
    }[activation](before) + residual.double()  # fmt: skip
    assert out.shape == (2, 9, 30)
    assert (out.double() - after).abs().max() < 1e-5


def test_a_16_bit_result_is_rounded_once(fast_gemm_route: Route) -> None:
    x, weight = normals(9, 40, seed=1), normals(30, 40, seed=2)
    bias, residual = normals(30, seed=3), normals(9, 30, seed=4)
    half = [t.bfloat16().to(fast_gemm_route.device) for t in (x, weight, bias, residual)]
    options: dict[str, Any] = {
        "activation": "silu", "residual": half[3], "impl": fast_gemm_route.impl
    }  # fmt: skip
    once = ops.linear(*half[:3], **options)
    assert once.equal(ops.linear(*half[:3], out_dtype=torch.float32, **options).bfloat16())


def test_a_column_of_ones_sums_exactly(fast_gemm_route: Route) -> None:
    """Integers whose sums need all 24 bits: any lost bit shows."""
    a = torch.arange(1, 4097, dtype=torch.float32).repeat(2, 1).to(fast_gemm_route.device)
    out = ops.matmul(a, torch.ones(4096, device=a.device), impl=fast_gemm_route.impl)
    assert (out == 4096 * 4097 / 2).all()


def test_nan_and_infinity_go_where_torch_has_them(fast_gemm_route: Route) -> None:
    # long enough for several segments and compensations after the first infinity
    a, b = normals(6, 700, seed=1).abs() + 0.5, normals(700, 5, seed=2).abs() + 0.5
    a[1, 3], a[2, 300], a[3, 600], b[10, 2] = math.inf, -math.inf, math.nan, math.inf
    a, b = a.to(fast_gemm_route.device), b.to(fast_gemm_route.device)
    for compensated in (False, True):
        out = ops.matmul(a, b, compensated=compensated, impl=fast_gemm_route.impl)
        expected = a @ b
        for test in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(test(out), test(expected))


def test_products_on_request(fast_gemm_route: Route) -> None:
    a, b = (normals(20, 90, seed=i).to(fast_gemm_route.device) for i in (1, 2))
    exact = a.double() @ b.double().mT
    size = (a.double().abs() @ b.double().abs().mT).max().item()
    offered = {"bf16x3": 2.0**-15, "bf16x6": 2.0**-20}
    if fast_gemm_route.device == "cuda":
        offered |= {"tf32": 2.0**-9, "tf32x3": 2.0**-19}
    for product, bound in offered.items():
        out = ops.matmul(a, b.mT, product=product, impl=fast_gemm_route.impl)  # type: ignore[arg-type]
        assert (out.double() - exact).abs().max().item() < bound * size
    absent = "hf32" if fast_gemm_route.device == "cuda" else "tf32"
    with pytest.raises(NotImplementedError, match=absent):
        ops.matmul(a, b.mT, product=absent, impl=fast_gemm_route.impl)  # type: ignore[arg-type]


def test_float64_is_the_references() -> None:
    a, b = normals(3, 5000, seed=1).double(), normals(5000, 3, seed=2).double()
    torch.testing.assert_close(ops.matmul(a, b), a @ b, rtol=1e-13, atol=1e-11)
    with pytest.raises(NotImplementedError, match="do not compute in float64"):
        ops.matmul(a, b, impl="triton")


A, B = torch.ones(3, 5), torch.ones(5, 4)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: ops.matmul([1.0], B), TypeError, "a must be a torch.Tensor"),
        (lambda: ops.matmul(A.int(), B.int()), TypeError, "a must be float16.*got torch.int32"),
        (lambda: ops.matmul(A, B.half()), TypeError, "b must have a's dtype, torch.float32"),
        (lambda: ops.matmul(A, B.to("meta")), ValueError, "b must be on a's device, cpu; got meta"),
        (lambda: ops.matmul(A, A), ValueError, "last but one must agree: 5 and 3.*[.]mT"),
        (lambda: ops.matmul(A[0, 0], B), ValueError, "a must have at least 1 dimension"),
        (lambda: ops.matmul(A.expand(2, 3, 5), B.expand(3, 5, 4)), ValueError, "must broadcast"),
        (lambda: ops.matmul(A, B, compensated=1), TypeError, "compensated must be True, False or"),
        (lambda: ops.matmul(A, B, product="fp8"), ValueError, "product must be one of"),
        (lambda: ops.matmul(A.half(), B.half(), product="tf32"), ValueError, "exact; got .tf32"),
        (lambda: ops.matmul(A, B, out_dtype=torch.half), ValueError, "out_dtype.*where a is"),
        (lambda: ops.matmul(A, B, impl="cublas"), ValueError, "impl must be one of"),
        (lambda: ops.bmm(A, B), ValueError, "a must have 3 dimensions.*matmul takes any"),
        (lambda: ops.bmm(A[None], B.expand(2, 5, 4)), ValueError, "one batch size"),
        (lambda: ops.linear(A, B), ValueError, "x's last size and weight's.*weight.mT"),
        (lambda: ops.linear(A, B.mT, A), ValueError, r"bias must be \[out\] = \(4,\); got"),
        (lambda: ops.linear(A, B.mT, residual=A), ValueError, r"broadcast to the result, \(3, 4\)"),
        (lambda: ops.linear(A, B.mT, activation="tanh"), ValueError, "activation must be one of"),
    ],
)
def test_wrong_calls_say_what_is_wrong(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_an_epilogue_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any jit function of a tile can end the kernel, also after parts of K are added up."""
    prepare("native-linalg", monkeypatch)
    from flashasc._configs.gemm_ascend import TILES
    from flashasc._gemm_problem import gemm_problem
    from flashasc._target import target_of
    from flashasc.kernels.gemm_launch import launch_gemm

    row = next(r for r in TILES if r.compensated and r.dtype == torch.float32)
    a, b = normals(9, 300, seed=1), normals(300, 7, seed=2)
    epilogue = importlib.import_module("blocks.scores").tanh
    for part_k in (row.part_k, 128):
        out = torch.empty(9, 7)
        launch_gemm(
            a, b, None, None, out, gemm_problem(a, b, None, None, None, True, "ieee", a.dtype),
            replace(row, part_k=part_k), target_of(a.device), "native", epilogue=epilogue,
        )  # fmt: skip
        torch.testing.assert_close(out, (a @ b).tanh(), rtol=1e-5, atol=1e-5)

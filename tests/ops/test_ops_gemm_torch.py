"""Products as PyTorch sees them: gradients, compilation, autocast; the same bits each time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gemm_routes import Route, assert_same
from torch import Tensor

from flashasc import ops
from flashasc._configs import GemmTile
from flashasc._configs.gemm_ascend import TILES as ASCEND
from flashasc._configs.gemm_nvidia import TILES as NVIDIA


def normals(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_rows_do_not_depend_on_their_batch(fast_gemm_route: Route) -> None:
    """One row alone, in a batch, below other rows, and of a K that is cut in parts."""
    b = normals(33000, 5, seed=2)
    for K in (500, 33000):
        a = normals(3, 70, K, seed=1)
        whole = ops.matmul(
            a.to(fast_gemm_route.device), b[:K].to(fast_gemm_route.device),
            compensated=True, impl=fast_gemm_route.impl,
        )  # fmt: skip
        for rows in (a[1:2, 66:67], a[:2, 60:], a[1]):
            part = ops.matmul(
                rows.to(fast_gemm_route.device), b[:K].to(fast_gemm_route.device),
                compensated=True, impl=fast_gemm_route.impl,
            )  # fmt: skip
            expected = {1: whole[1:2, 66:67], 2: whole[:2, 60:]}.get(
                rows.shape[0] if rows.dim() == 3 else 0, whole[1]
            )
            assert_same(fast_gemm_route, part, expected)


def test_the_same_call_gives_the_same_bits(fast_gemm_route: Route) -> None:
    a, b = normals(70, 33000, seed=1), normals(33000, 5, seed=2)
    a, b = a.to(fast_gemm_route.device), b.to(fast_gemm_route.device)
    first = ops.matmul(a, b, compensated=True, impl=fast_gemm_route.impl)
    for _ in range(3):
        assert torch.equal(ops.matmul(a, b, compensated=True, impl=fast_gemm_route.impl), first)


@pytest.mark.parametrize("table", [ASCEND, NVIDIA], ids=["ascend", "nvidia"])
def test_rows_of_a_kind_add_up_alike(table: tuple[GemmTile, ...]) -> None:
    """Whether a bias follows or not, the sums are the same: one tile of K, one segment."""
    kinds: dict[tuple[Any, ...], set[tuple[int, ...]]] = {}
    for row in table:
        key = (row.targets, row.dtype, row.compensated, row.products)
        kinds.setdefault(key, set()).add((row.block_k, row.segment, row.part_k))
    assert all(len(ways) == 1 for ways in kinds.values())


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_gradients(activation: Any) -> None:
    x, weight, bias, residual = (
        normals(*shape, seed=i, dtype=torch.float64).requires_grad_()
        for i, shape in enumerate([(2, 3, 4), (3, 4), (3,), (3, 3)])
    )

    def call(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return ops.linear(x, weight, bias, activation=activation, residual=residual)

    inputs = (x, weight, bias, residual)
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


def test_gradients_through_the_kernel(fast_gemm_route: Route) -> None:
    """Broadcast batches: gradients are summed over what was spread."""
    a = normals(2, 1, 20, 30, seed=1).to(fast_gemm_route.device).requires_grad_()
    b = normals(3, 30, 10, seed=2).to(fast_gemm_route.device).requires_grad_()
    grad = normals(2, 3, 20, 10, seed=3).to(fast_gemm_route.device)
    found = torch.autograd.grad(ops.matmul(a, b, impl=fast_gemm_route.impl), (a, b), grad)
    expected = torch.autograd.grad(a @ b, (a, b), grad)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_16_bit_gradients() -> None:
    x = normals(6, 40, seed=1, dtype=torch.bfloat16).requires_grad_()
    weight = normals(8, 40, seed=2, dtype=torch.bfloat16).requires_grad_()
    for out_dtype in (None, torch.float32):
        out = ops.linear(x, weight, activation="gelu", out_dtype=out_dtype)
        found = torch.autograd.grad(out.float().square().sum(), (x, weight))
        wide = [t.detach().double().requires_grad_() for t in (x, weight)]
        exact = torch.autograd.grad(F.gelu(F.linear(*wide)).square().sum(), wide)
        for one, other in zip(found, exact, strict=True):
            assert one.dtype == torch.bfloat16
            assert (one.double() - other).abs().max() <= 2.0**-5 * other.abs().max()


def test_the_operator_keeps_its_promises() -> None:
    a, b = normals(2, 6, 5, seed=1).requires_grad_(), normals(5, 4, seed=2).requires_grad_()
    for bias, residual, activation in ((None, None, None), (normals(4), normals(6, 4), "silu")):
        torch.library.opcheck(
            torch.ops.flashasc.gemm.default,
            (a, b, bias, residual, activation, None, "ieee", torch.float32, "auto"),
        )


def test_torch_compile() -> None:
    def call(x: Tensor, weight: Tensor) -> Tensor:
        return ops.matmul(ops.linear(x, weight, activation="relu"), weight) + 1

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 7):
        x, weight = normals(2, rows, 8, seed=rows), normals(6, 8, seed=2)
        assert torch.equal(compiled(x, weight), call(x, weight))


def test_autocast_casts_as_for_torch() -> None:
    a, b = normals(4, 8, seed=1), normals(8, 3, seed=2)
    with torch.autocast("cpu", torch.bfloat16):
        out = ops.matmul(a, b)
        assert out.dtype == (a @ b).dtype == torch.bfloat16
    assert torch.equal(out, ops.matmul(a.bfloat16(), b.bfloat16()))


def test_forward_mode_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"where you need them, use torch\.matmul"):
        torch.func.jvp(lambda a: ops.matmul(a, a), (torch.eye(3),), (torch.eye(3),))
    x, y = torch.randn(3, 4), torch.randn(4)
    calls = [lambda t: ops.linear(x, x, t), lambda t: ops.linear(x, x, residual=t)]
    for call, t in zip(calls, (y[:3], y[:3]), strict=True):
        with pytest.raises(NotImplementedError, match="forward-mode"):
            torch.func.jvp(torch.func.vmap(call), (t[None],), (t[None],))
        with pytest.raises(NotImplementedError, match=r"torch\.func .* of flashasc\.ops\.linear"):
            torch.func.grad(lambda t, call=call: call(t).sum())(t)
    out = ops.matmul(x.requires_grad_(), x.mT)
    with torch.autograd.forward_ad.dual_level():
        grad = torch.autograd.forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out))
        with pytest.raises(NotImplementedError, match="forward-mode .* of the gradients"):
            torch.autograd.grad(out, x, grad)

"""Gradients of q, k and v through both outputs, on every route."""

from __future__ import annotations

import pytest
import torch
from routes import Route
from torch import Tensor

import flashasc
from flashasc.testing import Case, exact_attention, normal

CASES = (
    Case(B=2, Hq=4, Hk=2, Sq=9, Sk=7, D=8, causal=True),
    Case(B=2, Hq=4, Hk=2, Sq=5, Sk=7, D=8, Dv=6, causal=True, causal_align="top_left"),
    Case(B=1, Hq=2, Hk=2, Sq=5, Sk=7, D=8, layout="BSND"),
    Case(B=1, Hq=2, Hk=1, Sq=6, Sk=6, D=4, layout="BSND", causal=True, scale=-0.7),
)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("precision", ["standard", "compensated"])
def test_gradcheck(case: Case, return_lse: bool, precision: str) -> None:
    qkv = [x.requires_grad_() for x in normal(case.but(dtype=torch.float64))]

    def run(*qkv: Tensor) -> object:
        found = flashasc.attention(
            *qkv, precision=precision, return_lse=return_lse, **case.options  # type: ignore[arg-type]
        )  # fmt: skip
        if not return_lse:
            return found
        out, lse = found
        # gradcheck's finite differences cannot cross the -inf of a row that sees nothing
        return out, lse[lse > -torch.inf]

    assert torch.autograd.gradcheck(run, qkv)


def gradients(
    outputs: tuple[Tensor, Tensor], weights: list[Tensor], qkv: list[Tensor]
) -> list[Tensor]:
    seen = outputs[1] > -torch.inf
    total = (outputs[0].double() * weights[0]).sum() + (outputs[1].double() * weights[1])[
        seen
    ].sum()
    return list(torch.autograd.grad(total, qkv))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_agree_with_autograd_of_exact_attention(
    route: Route, case: Case, dtype: torch.dtype
) -> None:
    case = case.but(dtype=dtype)
    qkv = [x.requires_grad_() for x in normal(case, device=route.device)]
    outputs = route(*qkv, return_lse=True, **case.options)
    weights = [torch.randn_like(x, dtype=torch.float64) for x in outputs]
    found = gradients(outputs, weights, qkv)
    exact_qkv = [x.detach().double().requires_grad_() for x in qkv]
    exact = gradients(exact_attention(*exact_qkv, **case.options), weights, exact_qkv)
    for name, gradient, expected, tensor in zip("qkv", found, exact, qkv, strict=True):
        assert gradient.dtype == dtype and gradient.shape == tensor.shape
        error = (gradient.double() - expected).abs().max()
        # the saved output and log-sum-exp are rounded to the dtype, and so is the gradient
        assert error <= 4 * torch.finfo(dtype).eps * (1 + expected.abs().max()), name


def test_long_rows_and_grouped_heads(route: Route) -> None:
    case = Case(B=2, Hq=4, Hk=2, Sq=600, Sk=1100, D=64, causal=True)
    qkv = [x.requires_grad_() for x in normal(case, device=route.device)]
    outputs = route(*qkv, return_lse=True, **case.options)
    weights = [torch.randn_like(x, dtype=torch.float64) for x in outputs]
    found = gradients(outputs, weights, qkv)
    exact_qkv = [x.detach().double().requires_grad_() for x in qkv]
    exact = gradients(exact_attention(*exact_qkv, **case.options), weights, exact_qkv)
    for gradient, expected in zip(found, exact, strict=True):
        assert (gradient.double() - expected).norm() <= 1e-5 * expected.norm()


def test_rows_that_see_nothing_have_gradient_zero(route: Route) -> None:
    case = Case(Hq=1, Sq=76, Sk=1, D=32, causal=True)
    q, k, v = (x.requires_grad_() for x in normal(case, device=route.device))
    out = route(q, k, v, causal=True)
    dq, dk, dv = torch.autograd.grad(out.sum(), (q, k, v))
    assert (dq[:, :, :75] == 0).all() and torch.isfinite(dq).all()
    assert torch.equal(dv, torch.ones_like(v))
    # one visible key: its weight is 1 whatever k is
    assert dk.abs().max() < 1e-5


@pytest.mark.parametrize("asked", ["q", "k", "v", "qv"])
def test_only_what_asks_gets_a_gradient(route: Route, asked: str) -> None:
    tensors = dict(zip("qkv", normal(Case(Sq=5, Sk=6, D=16), device=route.device), strict=True))
    for name in asked:
        tensors[name].requires_grad_()
    route(*tensors.values()).sum().backward()
    assert {name for name, x in tensors.items() if x.grad is not None} == set(asked)


def test_gradient_through_the_log_sum_exp_alone(route: Route) -> None:
    q, k, v = (x.requires_grad_() for x in normal(Case(Sq=5, Sk=6, D=16), device=route.device))
    _, lse = route(q, k, v, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), (q, k, v), materialize_grads=True)
    scores = (q.detach().double() @ k.detach().double().mT) / 4
    weights = scores.softmax(-1)
    torch.testing.assert_close(dq.double(), weights @ k.detach().double() / 4, rtol=0, atol=1e-6)
    torch.testing.assert_close(dk.double(), weights.mT @ q.detach().double() / 4, rtol=0, atol=1e-6)
    assert (dv == 0).all()


def test_gradients_of_empty_sizes() -> None:
    for sizes in ({"B": 0}, {"Sq": 0}, {"Sk": 0}):
        qkv = [x.requires_grad_() for x in normal(Case(D=16).but(**sizes))]
        flashasc.attention(*qkv).sum().backward()
        assert all((x.grad == 0).all() and x.grad.shape == x.shape for x in qkv)


def test_gradients_repeat_bit_for_bit(route: Route) -> None:
    qkv = [x.requires_grad_() for x in normal(Case(Sq=130, Sk=600), device=route.device)]
    first, second = (
        torch.autograd.grad(route(*qkv, causal=True).square().sum(), qkv) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_second_derivatives_raise() -> None:
    q, k, v = (x.requires_grad_() for x in normal(Case(Sq=4, Sk=4, D=16)))
    (dq,) = torch.autograd.grad(flashasc.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(dq.sum(), q)

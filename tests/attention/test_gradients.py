"""Gradients of q, k and v, through the output and through the log-sum-exp."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from flashasc.testing import Case, eager_attention, error_budget, exact_attention, normal
from tests.attention.routes import Route
from tests.cases_table import DTYPES, FLOAT16

SMALL = Case(Hq=2, Hk=1, Sq=3, Sk=4, D=3, Dv=2, dtype=torch.float64)


def leaves(case: Case, device: str = "cpu") -> list[Tensor]:
    return [x.requires_grad_() for x in normal(case, device=device)]


def gradients(run: Any, inputs: list[Tensor], grad_out: Tensor, grad_lse: Tensor) -> list[Tensor]:
    """Of (out, lse) with respect to the inputs, in the inputs' dtype."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out, lse = run(*inputs)
    seen = lse > -math.inf
    loss = (out * grad_out.to(out.dtype)).sum() + (lse[seen] * grad_lse.to(lse.dtype)[seen]).sum()
    return list(torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": True, "causal_align": "top_left"},
        {"causal": True, "Sq": 4, "Sk": 2},
        {"causal": True, "causal_align": "top_left", "Sq": 4, "Sk": 2},
        {"scale": -0.7},
        {"scale": 0.0},
        {"precision": "standard", "causal": True},
        {"Hk": 2},
        {"B": 2, "Hq": 3},
    ],
    ids=str,
)
def test_gradcheck(options: dict[str, Any], layout: str) -> None:
    options = dict(options)
    precision = options.pop("precision", "compensated")
    case = SMALL.but(layout=layout, **options)

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = flashasc.attention(q, k, v, return_lse=True, precision=precision, **case.options)
        return out, lse.masked_fill(lse == -math.inf, 0.0)

    assert torch.autograd.gradcheck(run, leaves(case))


BACKWARD = (
    Case(Hq=4, Hk=2, Sq=70, Sk=300, D=64, causal=True),
    Case(Hq=4, Hk=2, Sq=150, Sk=40, D=80, Dv=40, causal=True, layout="BSND"),
    Case(Hq=3, Hk=1, Sq=97, Sk=97, D=192),
    Case(Hq=2, Sq=70, Sk=130, causal=True, causal_align="top_left"),
    # more rows and keys than the backward pass handles at once
    Case(B=4, Hq=4, Hk=2, Sq=200, Sk=1100, causal=True),
)


@pytest.mark.parametrize("case", BACKWARD, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_against_float64(route: Route, dtype: torch.dtype, case: Case) -> None:
    """Error within the budget of eager autograd in the same dtype."""
    case = case.but(dtype=dtype)
    inputs = list(normal(case, device=route.device))
    exact_inputs = [x.double() for x in inputs]
    grad_out = torch.randn(exact_attention(*inputs, **case.options).out.shape).to(inputs[0])
    grad_lse = torch.randn(case.B, case.Hq, case.Sq, device=route.device)

    def kernel(*args: Tensor) -> Any:
        return route(*args, return_lse=True, **case.options)

    def eager(*args: Tensor) -> Any:
        return eager_attention(*args, **case.options)

    found = gradients(kernel, inputs, grad_out, grad_lse)
    plain = gradients(eager, inputs, grad_out, grad_lse)
    exact = gradients(eager, exact_inputs, grad_out, grad_lse)
    for name, a, b, e in zip("qkv", found, plain, exact, strict=True):
        assert a.dtype == dtype
        error = (a.double() - e).abs().max().item()
        assert error <= error_budget(e, b), f"gradient of {name}"


@pytest.mark.parametrize(
    "need", [n for n in itertools.product((0, 1), repeat=3) if any(n)], ids=str
)
def test_only_for_the_inputs_that_ask(route: Route, need: tuple[int, ...]) -> None:
    case = Case(Hq=2, Sq=9, Sk=9, D=16, causal=True)
    inputs = [x.requires_grad_(bool(n)) for x, n in zip(normal(case), need, strict=True)]
    inputs = [x.detach().to(route.device).requires_grad_(x.requires_grad) for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    route(*inputs, causal=True).sum().backward()
    exact_attention(*exact, causal=True).out.sum().backward()
    for x, e, n in zip(inputs, exact, need, strict=True):
        assert (x.grad is None) == (not n)
        if n:
            torch.testing.assert_close(x.grad.double(), e.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", [(76, 1), (34, 1), (146, 20)], ids=str)
def test_rows_that_see_nothing_have_gradient_zero(
    route: Route, lengths: tuple[int, int], dtype: torch.dtype
) -> None:
    """And pass nothing on: not by their output, nor by their log-sum-exp of -inf."""
    Sq, Sk = lengths
    case = Case(Sq=Sq, Sk=Sk, D=32, dtype=dtype, causal=True)
    q, k, v = leaves(case, route.device)
    out, lse = route(q, k, v, return_lse=True, causal=True)
    ((out * 3.0).sum() + lse[lse > -math.inf].sum()).backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
    assert not q.grad[:, :, : Sq - Sk].any()
    if Sk == 1:
        # one row, one key: its weight is 1 whatever its score
        assert torch.equal(v.grad, torch.full_like(v, 3.0))


def test_an_unused_log_sum_exp_of_minus_infinity(route: Route) -> None:
    """Its gradient is 0 * -inf for who multiplies it by 0; a row that saw nothing ignores it."""
    q, k, v = leaves(Case(Sq=20, Sk=3, D=16, causal=True), route.device)
    out, lse = route(q, k, v, return_lse=True, causal=True)
    torch.autograd.backward([out, lse], [torch.ones_like(out), torch.ones_like(lse)])
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
    assert not q.grad[:, :, :17].any()


def test_through_the_log_sum_exp_alone(route: Route) -> None:
    q, k, v = leaves(Case(Sq=20, Sk=30, D=16), route.device)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    _, lse = route(q, k, v, return_lse=True)
    lse.square().sum().backward()
    exact_attention(*exact).lse.square().sum().backward()
    torch.testing.assert_close(q.grad.double(), exact[0].grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(k.grad.double(), exact[1].grad, rtol=1e-5, atol=1e-5)
    assert not v.grad.any()


@pytest.mark.parametrize("sizes", [{"B": 0}, {"Sq": 0}, {"Sk": 0}, {"Hq": 0, "Hk": 0}], ids=str)
def test_sizes_of_zero(route: Route, sizes: dict[str, int]) -> None:
    q, k, v = leaves(Case(**{"B": 2, "Hq": 2, "Sq": 4, "Sk": 5, "D": 16, **sizes}), route.device)
    out, lse = route(q, k, v, return_lse=True)
    torch.autograd.backward([out, lse], [torch.ones_like(out), torch.ones_like(lse)])
    for x in (q, k, v):
        assert x.grad is not None
        assert x.grad.shape == x.shape
        assert not x.grad.any()


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_a_gradient_of_any_strides(route: Route, layout: str) -> None:
    """Transposed, and with stride 0 as `sum` makes it."""
    case = Case(B=2, Hq=4, Sq=6, Sk=6, D=32, layout=layout)
    weight = torch.randn(6, 4, 32, 2, device=route.device)
    for loss in (
        lambda out: (out.permute(2, 1, 3, 0).reshape(-1) * weight.to(out.dtype).view(-1)).sum(),
        lambda out: out.sum(),
        lambda out: out.transpose(1, 2).flatten(2).square().sum(),
    ):
        q, k, v = leaves(case, route.device)
        exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
        loss(route(q, k, v, **case.options)).backward()
        loss(exact_attention(*exact, **case.options).out).backward()
        for x, e in zip((q, k, v), exact, strict=True):
            torch.testing.assert_close(x.grad.double(), e.grad, rtol=1e-4, atol=1e-5)


def test_inputs_of_any_strides(route: Route) -> None:
    """Expanded leaves collect the sum over what they stood for."""
    k0, v0 = (torch.randn(1, 1, 65, 32, device=route.device).requires_grad_() for _ in range(2))
    q = torch.randn(1, 4, 8, 32, device=route.device)
    route(q, k0.expand(1, 4, 65, 32), v0.expand(1, 4, 65, 32)).square().sum().backward()
    kd, vd = (x.detach().double().requires_grad_() for x in (k0, v0))
    exact_attention(q, kd, vd).out.square().sum().backward()
    torch.testing.assert_close(k0.grad.double(), kd.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(v0.grad.double(), vd.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_float32_output_has_a_float32_gradient(route: Route, dtype: torch.dtype) -> None:
    """It is not rounded to 16 bits on its way."""
    q, k, v = leaves(Case(Sq=9, Sk=9, D=16, dtype=dtype), route.device)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    grad = torch.full((1, 2, 9, 16), 1.0 + 2.0**-14, device=route.device)
    route(q, k, v, out_dtype=torch.float32).backward(grad)
    exact_attention(*exact).out.backward(grad.double())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(v.grad.double(), exact[2].grad, rtol=eps, atol=eps)
    assert v.grad.dtype == dtype


def test_keys_hidden_from_every_row_pass_nothing_on(route: Route) -> None:
    case = Case(Hq=2, Hk=1, Sq=70, Sk=270, D=32, causal=True, causal_align="top_left")
    q, k, v = normal(case, device=route.device)
    k[:, :, 70:] = math.nan
    v[:, :, 70:] = math.inf
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    route(q, k, v, **case.options).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
    assert not k.grad[:, :, 70:].any()
    assert not v.grad[:, :, 70:].any()


def test_second_derivatives_raise_clearly(route: Route) -> None:
    q, k, v = leaves(Case(Sq=5, Sk=5, D=16), route.device)
    (grad,) = torch.autograd.grad(route(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"[Ss]econd derivatives.*F\.scaled_dot_product"):
        grad.sum().backward()


def test_an_output_changed_in_place_is_noticed(route: Route) -> None:
    """The backward pass needs it as it was."""
    q, k, v = leaves(Case(Sq=5, Sk=5, D=16), route.device)
    out = route(q, k, v)
    out.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_no_log_sum_exp_is_computed_in_vain(kernel_route: Route) -> None:
    """Gradients need it, plain results do not: asked for, it is returned, else it is not made."""
    from flashasc import _ops

    q, k, v = normal(Case(Sq=5, Sk=5, D=16, dtype=FLOAT16), device=kernel_route.device)
    facts = (0.25, None, False, True, None, None, "BNSD", "compensated", FLOAT16)

    def lse(asked: bool) -> Tensor:
        return _ops.attention_fwd(q, k, v, *[None] * 7, *facts, asked, None, None, "triton")[1]

    assert lse(False).numel() == 0
    assert lse(True).shape == (1, 2, 5)


def test_gradients_do_not_expand_grouped_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    def expanded(*_: Any, **__: Any) -> None:
        raise AssertionError("keys and values were repeated for each query head")

    monkeypatch.setattr(Tensor, "repeat_interleave", expanded)
    monkeypatch.setattr(Tensor, "repeat", expanded)
    q, k, v = leaves(Case(Hq=16, Hk=2, Sq=32, Sk=128))
    flashasc.attention(q, k, v).sum().backward()
    assert k.grad is not None
    assert k.grad.shape == k.shape


@pytest.mark.parametrize("size", [1e4, 1e6, 1e7, 1e12, 1e30])
def test_weights_stay_weights_where_scores_are_large(route: Route, size: float) -> None:
    """The log-sum-exp of such rows is rounded by more than 1; a weight must not be."""
    q = torch.full((1, 1, 1, 4), 0.65 * math.sqrt(size), device=route.device)
    k = torch.full((1, 1, 300, 4), 0.55 * math.sqrt(size), device=route.device)
    v = torch.randn(1, 1, 300, 4, device=route.device, requires_grad=True)
    (dv,) = torch.autograd.grad(route(q, k, v).sum(), v)
    torch.testing.assert_close(dv, torch.full_like(v, 1 / 300), rtol=1e-6, atol=0)


@pytest.mark.parametrize("where", ["q", "grad"])
def test_nan_in_a_row_that_sees_nothing_stays_there(route: Route, where: str) -> None:
    q, k, v = leaves(Case(Sq=20, Sk=8, D=16, causal=True), route.device)
    if where == "q":
        q = q.detach().index_fill(2, torch.tensor([0], device=route.device), math.nan)
        q.requires_grad_()
    out, lse = route(q, k, v, causal=True, return_lse=True)
    grad_out, grad_lse = torch.ones_like(out), torch.ones_like(lse)
    if where == "grad":
        grad_out[:, :, 0] = grad_lse[:, :, 0] = math.nan
    for gradient in torch.autograd.grad((out, lse), (q, k, v), (grad_out, grad_lse)):
        assert gradient.isfinite().all()

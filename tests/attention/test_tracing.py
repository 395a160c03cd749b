"""Attention under PyTorch's tracing, and in the contexts in which models call it."""

from __future__ import annotations

import threading

import pytest
import torch
from routes import Route
from torch._subclasses.fake_tensor import FakeTensorMode

import flashasc
from flashasc import _ops
from flashasc.testing import Case, normal

CASE = Case(B=2, Hq=4, Hk=2, Sq=40, Sk=50, D=16, causal=True)


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
@pytest.mark.parametrize("with_lse", [False, True])
def test_operators_pass_opcheck(route: Route, layout: str, with_lse: bool) -> None:
    q, k, v = normal(CASE, device=route.device)
    arguments = (0.25, True, 10, layout, "compensated", torch.float32, with_lse, route.impl)
    torch.library.opcheck(_ops.attention_fwd, (q, k, v, *arguments))
    qkv = [x.requires_grad_() for x in (q, k, v)]
    if with_lse:
        torch.library.opcheck(_ops.attention_fwd, (*qkv, *arguments))


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_compiles_as_one_graph(route: Route, layout: str) -> None:
    def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, lse = route(q * 2, k, v, causal=True, layout=layout, return_lse=True)
        return out.sum(-1) + lse.sum()

    torch._dynamo.reset()
    qkv = normal(CASE.but(layout=layout), device=route.device)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*qkv), block(*qkv))


def test_compiled_gradients_agree(route: Route) -> None:
    torch._dynamo.reset()
    qkv = [x.requires_grad_() for x in normal(CASE, device=route.device)]
    compiled = torch.compile(
        lambda q, k, v: route(q, k, v, causal=True), fullgraph=True, backend="aot_eager"
    )
    found = torch.autograd.grad(compiled(*qkv).square().sum(), qkv)
    expected = torch.autograd.grad(route(*qkv, causal=True).square().sum(), qkv)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_shapes_without_computing() -> None:
    with FakeTensorMode():
        q, k, v = normal(CASE.but(layout="BSND", dtype=torch.float16, Dv=24))
        out, lse = flashasc.attention(
            q, k, v, layout="BSND", return_lse=True, out_dtype=torch.float32
        )
    assert (out.shape, out.dtype, out.is_contiguous()) == ((2, 40, 4, 24), torch.float32, True)
    assert (lse.shape, lse.dtype) == ((2, 4, 40), torch.float32)


def test_meta_tensors_give_meta_outputs() -> None:
    q, k, v = (x.to("meta") for x in normal(CASE))
    out = flashasc.attention(q, k, v, causal=True)
    assert out.device.type == "meta" and out.shape == (2, 4, 40, 16)


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
def test_without_autograd(route: Route, context: type) -> None:
    q, k, v = (x.requires_grad_() for x in normal(CASE, device=route.device))
    expected = route(q, k, v, causal=True)
    with context():
        out = route(q, k, v, causal=True)
    assert not out.requires_grad
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_decides_the_dtype(route: Route, dtype: torch.dtype) -> None:
    q, k, v = normal(CASE, device=route.device)
    with torch.autocast(route.device, dtype):
        out = route(q, k.to(dtype), v, causal=True)  # mixed on purpose
    assert out.dtype == dtype
    assert torch.equal(out, route(q.to(dtype), k.to(dtype), v.to(dtype), causal=True))


def test_autocast_leaves_float64_alone() -> None:
    q, k, v = normal(CASE.but(dtype=torch.float64))
    with torch.autocast("cpu", torch.bfloat16):
        assert flashasc.attention(q, k, v).dtype == torch.float64


def test_lower_precision_allowed_elsewhere_does_not_reach_the_sums(route: Route) -> None:
    q, k, v = normal(CASE, device=route.device)
    expected = route(q, k, v)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(route(q, k, v), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_inputs_are_left_as_they_were(route: Route) -> None:
    qkv = normal(CASE, device=route.device)
    before = [x.clone() for x in qkv]
    route(*qkv, causal=True)
    assert all(torch.equal(a, b) for a, b in zip(qkv, before, strict=True))


def test_threads_do_not_disturb_each_other(route: Route) -> None:
    inputs = [normal(CASE, seed, route.device) for seed in range(4)]
    expected = [route(*qkv, causal=True) for qkv in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            if not torch.equal(route(*inputs[number], causal=True), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_explain_names_what_runs(route: Route) -> None:
    plan = route.explain(*normal(CASE, device=route.device), causal=True)
    expected = {"reference": "reference", "cuda": "device"}.get(route.name, "native")
    assert plan.route == expected
    if expected == "reference":
        assert plan.config is None and "reference" in str(plan)
    else:
        assert plan.config is not None and plan.target is not None
        assert plan.target.arch in str(plan) and plan.config.source in str(plan)


def test_cpu_tensors_go_to_the_reference_unless_the_kernel_is_asked_for() -> None:
    assert flashasc.explain(*normal(CASE)).route == "reference"
    assert flashasc.explain(*normal(CASE.but(dtype=torch.float64))).route == "reference"

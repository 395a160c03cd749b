"""Inside PyTorch: torch.compile, operator checks, autocast, fake and meta tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from flashasc import _ops
from flashasc.testing import Case, exact_attention, normal
from tests.attention.routes import Route
from tests.cases_table import DTYPES, FLOAT16, FLOAT32


def block(attention: Any, linear: torch.nn.Linear, heads: int, layout: str) -> Any:
    """A projection, attention over its thirds, and the heads put together again."""

    def run(x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (heads, -1)) for t in linear(x).chunk(3, dim=-1))
        if layout == "BNSD":
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = attention(q, k, v, causal=True, layout=layout)
        return (out.transpose(1, 2) if layout == "BNSD" else out).flatten(2)

    return run


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_compile_forward_and_backward(route: Route, layout: str) -> None:
    """One graph, equal to eager, for strided inputs and for their gradients."""
    linear = torch.nn.Linear(32, 96).to(route.device)
    eager = block(route, linear, 2, layout)
    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 9, 32, device=route.device)
    results = []
    for run in (eager, compiled):
        linear.zero_grad()
        out = run(x)
        out.square().sum().backward()
        results.append((out.detach(), linear.weight.grad.clone()))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_compile_to_code() -> None:
    """Through Inductor: what it assumes of strides is checked as the code runs."""
    linear = torch.nn.Linear(32, 96)
    run = block(flashasc.attention, linear, 2, "BSND")
    x = torch.randn(2, 9, 32)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(run, fullgraph=True)(x), run(x))


def test_compile_once_for_many_lengths() -> None:
    """The second length makes the sizes symbolic, and no later one compiles again."""
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    run = torch.compile(
        lambda q, k, v: flashasc.attention(q, k, v, causal=True), fullgraph=True, backend=count
    )
    for Sk in (20, 31, 32, 33, 47, 100):
        q, k, v = normal(Case(Sq=5, Sk=Sk, D=16))
        expected = exact_attention(q, k, v, causal=True).out
        torch.testing.assert_close(run(q, k, v).double(), expected, rtol=1e-5, atol=1e-6)
    assert len(graphs) == 2


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_operator_checks_of_the_forward(
    route: Route, dtype: torch.dtype, layout: str, needs_grad: bool
) -> None:
    """Schema, fake kernel, autograd and dispatch, as PyTorch's own checker sees them."""
    case = Case(B=2, Hq=4, Hk=2, Sq=5, Sk=7, D=16, Dv=8, dtype=dtype)
    q, k, v = normal(case, device=route.device)
    if needs_grad:
        q, k, v = (x.requires_grad_() for x in (q, k, v))
    out_dtype = FLOAT32 if layout == "BSND" else dtype
    facts = (0.25, None, True, True, None, None, layout, "compensated", out_dtype, True)
    arguments = (q, k, v, *[None] * 7, *facts, None, None, route.impl)
    torch.library.opcheck(_ops.attention_fwd, arguments)


@pytest.mark.parametrize("with_grad_lse", [False, True])
def test_operator_checks_of_the_backward(with_grad_lse: bool) -> None:
    q, k, v = normal(Case(B=2, Hq=4, Hk=2, Sq=5, Sk=7, D=16, Dv=8))
    out, lse = flashasc.attention(q, k, v, return_lse=True)
    grad_lse = torch.randn_like(lse) if with_grad_lse else None
    facts = (0.25, None, False, True, None, None, "BNSD", "compensated", FLOAT32, True)
    inputs = (q, k, v, *[None] * 7, *facts, None, None, "reference")
    needs = [True, False, True, False, False, False]
    grads = (torch.randn_like(out), grad_lse)
    torch.library.opcheck(_ops.attention_bwd, (*grads, out, lse, *inputs, needs))


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(route: Route, autocast: torch.dtype) -> None:
    """Inputs of several dtypes are cast as for F.scaled_dot_product_attention."""
    q, k, v = normal(Case(Sq=10, Sk=10, D=32), device=route.device)
    mixed = (q, k.to(torch.float16), v.to(torch.bfloat16))
    with torch.autocast(route.device, dtype=autocast):
        out, lse = route(*mixed, return_lse=True)
        assert route.explain(*mixed) == route.explain(*(x.to(autocast) for x in mixed))
        assert route(*mixed, out_dtype=FLOAT32).dtype == FLOAT32
    assert out.dtype == autocast
    assert lse.dtype == FLOAT32
    assert torch.equal(out, route(*(x.to(autocast) for x in mixed)))
    with pytest.raises(TypeError, match="float16"):
        route(*mixed)


def test_autocast_and_gradients(route: Route) -> None:
    """They come back in the dtype of the leaf."""
    q, k, v = (x.requires_grad_() for x in normal(Case(Sq=10, Sk=10, D=32), device=route.device))
    with torch.autocast(route.device, dtype=torch.bfloat16):
        out = route(q, k, v)
    out.float().sum().backward()
    assert q.grad.dtype == k.grad.dtype == v.grad.dtype == FLOAT32


def test_autocast_leaves_float64_alone() -> None:
    q, k, v = normal(Case(Sq=5, Sk=5, D=8, dtype=torch.float64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert flashasc.attention(q, k, v).dtype == torch.float64


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_fake_tensors_have_the_real_shape_dtype_and_strides(
    dtype: torch.dtype, layout: str
) -> None:
    case = Case(B=2, Hq=4, Hk=2, Sq=5, Sk=7, D=16, Dv=8, dtype=dtype, layout=layout)
    q, k, v = normal(case)
    options = {**case.options, "return_lse": True, "out_dtype": FLOAT32}
    real = flashasc.attention(q, k, v, **options)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = flashasc.attention(*(mode.from_tensor(x) for x in (q, k, v)), **options)
    meta = flashasc.attention(*(x.to("meta") for x in (q, k, v)), **options)
    for a, b, c in zip(real, fake, meta, strict=True):
        assert a.shape == b.shape == c.shape
        assert a.dtype == b.dtype == c.dtype
        assert a.stride() == b.stride() == c.stride()


def test_meta_tensors_of_any_size() -> None:
    """Shapes alone: nothing is allocated for 2**40 scores."""
    q = torch.empty(1, 8, 2**20, 64, device="meta", dtype=FLOAT16)
    out, lse = flashasc.attention(q, q, q, causal=True, return_lse=True)
    assert out.shape == q.shape
    assert lse.shape == (1, 8, 2**20)


@pytest.mark.gpu
def test_a_device_that_is_not_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU here")
    q, k, v = normal(Case(Sq=70, Sk=70), device="cuda:1")
    with torch.cuda.device(0):
        out = flashasc.attention(q, k, v)
    assert out.device == q.device
    torch.testing.assert_close(out.double(), exact_attention(q, k, v).out, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_the_current_stream_is_used_and_can_be_captured() -> None:
    q, k, v = normal(Case(Sq=300, Sk=300, dtype=FLOAT16), device="cuda")
    expected = flashasc.attention(q, k, v)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        flashasc.attention(q, k, v)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            out = flashasc.attention(q, k, v)
    q.copy_(q.flip(2))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected.flip(2))


@pytest.mark.gpu
def test_no_length_compiles_again_on_a_gpu() -> None:
    """Decoding: one key more at each step, and the same kernel."""
    from flashasc.kernels.attention_split import attention_split_kernel

    cache = torch.randn(1, 8, 256, 64, device="cuda", dtype=FLOAT16)
    q = torch.randn(1, 8, 1, 64, device="cuda", dtype=FLOAT16)
    flashasc.attention(q, cache[:, :, :99], cache[:, :, :99])
    kernels = attention_split_kernel.device_caches[torch.cuda.current_device()][0]
    before = len(kernels)
    for Sk in range(100, 164):
        flashasc.attention(q, cache[:, :, :Sk], cache[:, :, :Sk])
    assert len(kernels) == before


def test_forward_mode_derivatives_raise() -> None:
    """And do not come out as zeros."""
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    with pytest.raises(NotImplementedError, match="forward-mode derivatives"):
        torch.func.jvp(lambda x: flashasc.attention(x, k, v), (q,), (torch.ones_like(q),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="forward-mode derivatives"):
            flashasc.attention(dual, k, v)
        # nothing to lose
        assert torch.equal(flashasc.attention(q, k, v), flashasc.attention(q, k, v))


def test_transforms_are_refused_wherever_they_stand() -> None:
    """Also around others: the innermost transform alone would not see what is lost."""
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    func = torch.func

    def attend(x: torch.Tensor) -> torch.Tensor:
        return flashasc.attention(x, k, v)

    def inside(x: torch.Tensor) -> torch.Tensor:
        return func.grad(lambda y: (attend(x) * y).sum())(torch.ones(()))

    both = torch.stack([q, q])
    for run, x in ((func.vmap(attend), both), (inside, q)):
        with pytest.raises(NotImplementedError, match="forward-mode derivatives"):
            func.jvp(run, (x,), (x,))
    asked = [
        (func.grad(lambda x: attend(x).sum()), q),
        (func.jacrev(attend), q),
        (func.hessian(lambda x: attend(x).sum()), q),
        (func.vmap(func.grad(lambda x: attend(x).sum())), both),
        (func.grad(inside), q),
    ]
    for run, x in asked:
        with pytest.raises(NotImplementedError, match=r"torch\.func .*use torch\.autograd\.grad"):
            run(x)
    # what is not differentiated by may pass, and so may what only runs over a batch
    assert torch.equal(func.vmap(attend)(both)[0], attend(q))
    scaled = func.grad(lambda y: (attend(q) * y).sum())(torch.ones(()))
    torch.testing.assert_close(scaled, attend(q).sum())


def test_a_tangent_of_a_gradient_is_not_lost() -> None:
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    out = flashasc.attention(q.requires_grad_(), k, v)
    with torch.autograd.forward_ad.dual_level():
        grad = torch.autograd.forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out))
        with pytest.raises(NotImplementedError, match="second derivatives"):
            torch.autograd.grad(out, q, grad)

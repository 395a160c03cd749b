"""Inside PyTorch: gradients, torch.compile, operator checks, fake tensors."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flashasc import ops
from flashasc.ops._normalize_operator import normalize
from flashasc.ops._reduce_operator import reduce
from tests.attention.routes import Route

NAMES = ("sum", "mean", "var", "norm", "logsumexp", "amax", "amin")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("dim", [None, 1, (0, 2)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_first_and_second_derivatives_of_reductions(name: str, dim: object) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    run = lambda t: getattr(ops, name)(t, dim)  # noqa: E731
    assert torch.autograd.gradcheck(run, (x,))
    assert torch.autograd.gradgradcheck(run, (x,))


@pytest.mark.parametrize("mode", ["softmax", "rms_norm", "layer_norm"])
def test_first_and_second_derivatives_of_norms(mode: str) -> None:
    x, weight, bias = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 3, 4), (3, 4), (3, 4))
    )
    calls: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
        "softmax": (lambda t: ops.softmax(t, 1), (x,)),
        "rms_norm": (lambda t, w: ops.rms_norm(t, (3, 4), w, eps=0.1), (x, weight)),
        "layer_norm": (lambda t, w, b: ops.layer_norm(t, (3, 4), w, b), (x, weight, bias)),
    }
    run, inputs = calls[mode]
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_gradients_are_torchs() -> None:
    """In bf16, a leaf's gradient in its own dtype."""
    x = (torch.randn(4, 300) * 3 + 60).bfloat16()
    pairs: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
        (lambda t: ops.logsumexp(t, 1), lambda t: t.logsumexp(1)),
        (lambda t: ops.var(t, 1), lambda t: t.var(1)),
        (lambda t: ops.norm(t, 1), lambda t: t.norm(dim=1)),
        (lambda t: ops.softmax(t)[:, 0], lambda t: t.softmax(1)[:, 0]),
        (
            lambda t: ops.layer_norm(t, 300)[:, 0],
            lambda t: torch.nn.functional.layer_norm(t, (300,))[:, 0],
        ),
    ]
    for ours, theirs in pairs:
        leaf, exact = x.clone().requires_grad_(), x.double().requires_grad_()
        ours(leaf).float().sum().backward()
        theirs(exact).sum().backward()
        assert leaf.grad is not None
        assert exact.grad is not None
        assert leaf.grad.dtype == torch.bfloat16
        off = (leaf.grad.double() - exact.grad).abs().max()
        # softmax is saved as rounded to 16 bits; the gradient is rounded too
        assert off <= 2.0**-6 * exact.grad.abs().max()


def test_the_gradient_of_a_norm_is_finite_where_the_norm_is() -> None:
    """Times a gradient above 1 the numbers themselves would overflow."""
    x = torch.tensor([[2e38, -1e38], [1e-40, 0.0]], requires_grad=True)
    ops.norm(x, 1).backward(torch.tensor([2.0, 3.0]))
    assert x.grad is not None
    expected = torch.tensor([[4 / 5**0.5, -2 / 5**0.5], [3.0, 0.0]])
    torch.testing.assert_close(x.grad, expected, rtol=2e-5, atol=0)


def test_operator_checks(route: Route) -> None:
    x = torch.randn(3, 5, 8, device=route.device, requires_grad=True)
    weight = torch.randn(8, device=route.device, requires_grad=True)
    facts = (torch.float32, route.impl)
    torch.library.opcheck(reduce, (x, "var", (0, 2), False, 1.0, "kahan", *facts))
    torch.library.opcheck(normalize, (x, weight, weight, "layer_norm", 1, 1e-5, "plain", *facts))


def test_compile_once_for_many_lengths() -> None:
    """One graph, equal to eager; the second length makes sizes symbolic."""
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    def block(x: Tensor) -> Tensor:
        y = ops.rms_norm(x, x.shape[-1:])
        return ops.softmax(y, 0) * ops.sum(y, -1, keepdim=True)

    compiled = torch.compile(block, fullgraph=True, backend=count)
    for n in (20, 31, 47, 100):
        x = torch.randn(n, 24)
        assert torch.equal(compiled(x), block(x))
    assert len(graphs) == 2


def test_compile_forward_and_backward() -> None:
    x = torch.randn(6, 40, requires_grad=True)
    weight = torch.randn(40, requires_grad=True)

    def loss(x: Tensor, w: Tensor) -> Tensor:
        y = ops.layer_norm(x.t().contiguous().t(), 40, w)
        return ops.logsumexp(y) + ops.var(y, 0).sum()

    results = []
    for run in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        results.append(torch.autograd.grad(run(x, weight), (x, weight)))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)


def test_fake_and_meta_tensors() -> None:
    x = torch.randn(2, 3, 4).transpose(0, 2)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        fakes = [ops.mean(fake, (0, 1)), ops.softmax(fake, 1), ops.rms_norm(fake, 2)]
    reals = [ops.mean(x, (0, 1)), ops.softmax(x, 1), ops.rms_norm(x, 2)]
    for a, b in zip(fakes, reals, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
    huge = torch.empty(2**20, 2**20, device="meta", dtype=torch.float16)
    assert ops.sum(huge, 1, out_dtype=torch.float32).dtype == torch.float32
    assert ops.layer_norm(huge, 2**20).shape == huge.shape


@pytest.mark.parametrize("name", [*NAMES, "softmax", "rms_norm", "layer_norm"])
def test_forward_mode_and_transforms_are_refused(name: str) -> None:
    """Also where another transform stands between; plain gradients come by autograd."""
    x = torch.randn(3, 4)
    shape = (4,) if name.endswith("_norm") else ()
    run = lambda t: getattr(ops, name)(t, *shape)  # noqa: E731
    inside = lambda t: torch.func.grad(lambda y: (run(t) * y).sum())(torch.ones(()))  # noqa: E731
    for outer in (run, torch.func.vmap(run), inside):
        with pytest.raises(NotImplementedError, match="forward-mode"):
            torch.func.jvp(outer, (x,), (x,))
        with pytest.raises(NotImplementedError, match=r"by torch\.func .* use torch\.autograd"):
            torch.func.grad(lambda t, outer=outer: outer(t).sum())(x)
    if shape:
        with pytest.raises(NotImplementedError, match="forward-mode"):
            torch.func.jvp(lambda w: getattr(ops, name)(x, 4, w), (x[0],), (x[0],))


X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.sum([1.0]), TypeError, "x must be a torch.Tensor; got list"),
        (lambda: ops.sum(torch.ones(2).int()), TypeError, "x must be float16.*got torch.int32"),
        (lambda: ops.sum(X, 2), IndexError, r"dim must be from -2 to 1 .* got 2"),
        (lambda: ops.sum(X, (0, -2)), ValueError, "dim must name each dimension once"),
        (lambda: ops.sum(X, "0"), TypeError, "dim must be an int, a tuple of ints or None"),
        (lambda: ops.sum(X, 1.0), TypeError, "dim must be an int, a tuple of ints or None"),
        (lambda: ops.sum(X, keepdim=1), TypeError, "keepdim must be True or False"),
        (lambda: ops.sum(X, compensated="kahan"), ValueError, "Kahan's sum is True"),
        (lambda: ops.sum(X, compensated=1), TypeError, "compensated must be 'auto'"),
        (lambda: ops.sum(X, out_dtype=torch.float16), ValueError, "out_dtype must be torch.float3"),
        (lambda: ops.sum(X, out_dtype="float32"), TypeError, "out_dtype must be a torch.dtype"),
        (lambda: ops.sum(X, impl="cuda"), ValueError, "impl must be one of"),
        (lambda: ops.sum(X.double(), impl="triton"), NotImplementedError, "float64"),
        (lambda: ops.sum(X.to_sparse()), TypeError, "strided"),
        (lambda: ops.var(X, correction=math.nan), ValueError, "correction must be finite"),
        (lambda: ops.var(X, correction=10**400), ValueError, "correction must be finite"),
        (lambda: ops.var(X, correction=X[0, 0]), TypeError, "correction.item()"),
        (lambda: ops.softmax(X, (0, 1)), TypeError, "dim must be an int"),
        (lambda: ops.softmax(X, None), TypeError, "dim must be an int"),
        (lambda: ops.softmax(X, (1,)), TypeError, "dim must be an int"),  # type: ignore[arg-type]
        (lambda: ops.rms_norm(X, 4), ValueError, r"last sizes of x, \(2, 3\); got \(4,\)"),
        (lambda: ops.rms_norm(X, ()), ValueError, "at least one dimension"),
        (lambda: ops.rms_norm(X, 3, torch.ones(2)), ValueError, "weight must have the normalised"),
        (lambda: ops.rms_norm(X, 3, eps=-1.0), ValueError, "eps must be 0 or more"),
        (lambda: ops.layer_norm(X, 3, eps=None), TypeError, "eps must be a number; got None"),  # type: ignore[arg-type]
        (lambda: ops.layer_norm(X, 3, None, torch.ones(3).double()), TypeError, "bias must not be"),
        (lambda: ops.layer_norm(X, 3, torch.ones(3, device="meta")), ValueError, "x's device"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(
    call: Callable[[], Tensor], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_auto_compensates_from_the_threshold_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from flashasc._configs.compensation import REDUCTION_LENGTH
    from flashasc.ops import norms, reductions

    methods = []
    noted = lambda x, *facts: methods.append(facts) or x  # noqa: E731
    monkeypatch.setattr(reductions, "reduce", noted)
    monkeypatch.setattr(norms, "normalize", noted)
    for length in (REDUCTION_LENGTH - 1, REDUCTION_LENGTH):
        x = torch.empty(2, length, device="meta")
        ops.sum(x, 1)
        ops.softmax(x)
    kept = [next(f for f in facts if f in ("plain", "kahan", "sum2")) for facts in methods]
    assert kept == ["plain", "plain", "kahan", "kahan"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_the_default_eps_of_small_numbers_is_torchs(dtype: torch.dtype) -> None:
    x = (torch.randn(2, 64, generator=torch.Generator().manual_seed(0)) * 1e-3).to(dtype)
    expected = torch.nn.functional.rms_norm(x, (64,))
    torch.testing.assert_close(ops.rms_norm(x, 64), expected)

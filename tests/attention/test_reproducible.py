"""The same call gives the same bits: again, on other threads, in any batch, over any memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flashasc.testing import Case, assert_accurate, cut_from_nan, normal, poisoned_memory
from tests.attention.routes import Route
from tests.cases_table import DTYPES, FLOAT16, RAGGED


@pytest.mark.parametrize("precision", ["standard", "compensated"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_twice(every_route: Route, dtype: torch.dtype, precision: str) -> None:
    q, k, v = normal(RAGGED.but(dtype=dtype), device=every_route.device)
    calls = [every_route(q, k, v, precision=precision, return_lse=True) for _ in range(3)]
    for out, lse in calls[1:]:
        assert torch.equal(out, calls[0][0])
        assert torch.equal(lse, calls[0][1])


@pytest.mark.parametrize("shape", [(41, 48), (59, 96), (131, 32)], ids=str)
def test_the_first_call_of_a_shape_is_no_exception(route: Route, shape: tuple[int, int]) -> None:
    S, D = shape
    q, k, v = normal(Case(Hq=3, Sq=S, Sk=S, D=D), device=route.device)
    runs = []
    for _ in range(2):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = route(*leaves)
        out.sum().backward()
        runs.append([out.detach(), *(x.grad for x in leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, kernel_route: Route, threads: str
) -> None:
    q, k, v = normal(RAGGED.but(B=3), device=kernel_route.device)
    expected = kernel_route(q, k, v)
    monkeypatch.setenv("FLASHASC_NATIVE_THREADS", threads)
    assert torch.equal(kernel_route(q, k, v), expected)


# a single query over a long cache, whole tiles, ragged ones
LENGTHS = ((1, 777), (64, 256), (70, 300), (300, 300))


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batch_mates_do_not_matter(
    kernel_route: Route, dtype: torch.dtype, lengths: tuple[int, int], layout: str
) -> None:
    """A sequence alone, and at every position of larger batches."""
    Sq, Sk = lengths
    case = Case(B=9, Hq=4, Hk=2, Sq=Sq, Sk=Sk, D=64, dtype=dtype, layout=layout, causal=True)
    q, k, v = normal(case, device=kernel_route.device)
    alone, alone_lse = kernel_route(q[:1], k[:1], v[:1], return_lse=True, **case.options)
    for size, place in ((2, 0), (3, 2), (9, 4), (33, 32)):
        rows = torch.arange(size, device=kernel_route.device).remainder(8) + 1
        rows[place] = 0
        out, lse = kernel_route(q[rows], k[rows], v[rows], return_lse=True, **case.options)
        assert torch.equal(out[place], alone[0])
        assert torch.equal(lse[place], alone_lse[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_heads_do_not_matter(kernel_route: Route, dtype: torch.dtype) -> None:
    q, k, v = normal(Case(Hq=6, Hk=3, Sq=70, Sk=300, D=64, dtype=dtype), device=kernel_route.device)
    whole = kernel_route(q, k, v)
    for head in range(3):
        group = slice(2 * head, 2 * head + 2)
        part = kernel_route(q[:, group], k[:, head : head + 1], v[:, head : head + 1])
        assert torch.equal(part, whole[:, group])


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
@pytest.mark.parametrize("lengths", [(100, 100), (1, 20), (200, 50), (5, 0), (129, 300)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_element_is_written(
    route: Route, dtype: torch.dtype, lengths: tuple[int, int], layout: str
) -> None:
    """Memory that held NaN before shows no trace of it."""
    Sq, Sk = lengths
    case = Case(B=2, Hq=4, Hk=2, Sq=Sq, Sk=Sk, D=64, dtype=dtype, layout=layout, causal=True)
    q, k, v = normal(case, device=route.device)
    with poisoned_memory():
        assert torch.empty(3, device=route.device).isnan().all()
        out, lse = route(q, k, v, return_lse=True, **case.options)
    assert_accurate(out, q, k, v, lse, **case.options)


@pytest.mark.parametrize("lengths", [(100, 100), (1, 20), (65, 300)], ids=str)
def test_gradients_are_written_completely(route: Route, lengths: tuple[int, int]) -> None:
    case = Case(Hq=4, Hk=2, Sq=lengths[0], Sk=lengths[1], D=16, causal=True)
    q, k, v = (x.requires_grad_() for x in normal(case, device=route.device))
    with poisoned_memory():
        route(q, k, v, causal=True).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


def test_nothing_outside_the_output_is_written(kernel_route: Route) -> None:
    """The kernel given an output that lies inside a larger tensor."""
    from flashasc._problem import Extras
    from flashasc._validate import Arguments, validate_attention
    from flashasc.kernels.attention_launch import launch_attention_fwd

    case = Case(B=2, Hq=4, Hk=2, Sq=70, Sk=300, D=64, Dv=40, dtype=FLOAT16)
    q, k, v = normal(case, device=kernel_route.device)
    problem = validate_attention(Arguments(q, k, v, **case.options, return_lse=True))
    plan = kernel_route.explain(q, k, v)
    out = torch.full((2, 4, 70, 40), -7.0, dtype=FLOAT16, device=q.device)
    for dim in (1, 2, 3):
        out = cut_from_nan(out, dim=dim, before=2, after=3)
    lse = cut_from_nan(torch.zeros(2 * 4 * 70, device=q.device), dim=0, before=64, after=64)
    launch_attention_fwd(
        q, k, v, out, lse.view(2, 4, 70), problem, Extras(), plan.config, plan.target, plan.route
    )
    assert_accurate(out, q, k, v, lse.view(2, 4, 70))
    for tensor in (out, lse):
        storage = tensor.untyped_storage()
        everything = torch.empty(0, dtype=tensor.dtype, device=q.device).set_(storage)  # type: ignore[call-overload]
        assert int(everything.isnan().sum()) == everything.numel() - tensor.numel()


def test_inputs_are_left_alone(route: Route) -> None:
    q, k, v = normal(RAGGED, device=route.device)
    copies = [x.clone() for x in (q, k, v)]
    route(q, k, v, causal=True)
    assert all(torch.equal(a, b) for a, b in zip(copies, (q, k, v), strict=True))


def test_first_calls_from_several_threads(route: Route) -> None:
    """Each with a shape of its own, started together, on whatever has to be compiled first."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(6)

    def work(number: int) -> None:
        try:
            case = Case(Sq=33 + number, Sk=40 + number, D=16 + 8 * (number % 3))
            q, k, v = normal(case, seed=number, device=route.device)
            barrier.wait()
            assert_accurate(route(q, k, v), q, k, v)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_threads_do_not_disturb_each_other(route: Route) -> None:
    inputs = [normal(RAGGED.but(B=1), seed, route.device) for seed in range(4)]
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


@pytest.mark.parametrize(
    "context",
    [torch.no_grad, torch.inference_mode, torch.enable_grad],
    ids=lambda context: context.__name__,
)
def test_modes_of_autograd(route: Route, context: Callable[[], Tensor]) -> None:
    """Whether anybody asks for gradients changes no bit of the results."""
    case = RAGGED.but(dtype=torch.bfloat16)
    q, k, v = normal(case, device=route.device)
    plain, plain_lse = route(q, k, v, return_lse=True)
    with context():
        out, lse = route(q.clone().requires_grad_(), k, v, return_lse=True)
        alone = route(q.clone().requires_grad_(), k, v)
    assert torch.equal(out, plain)
    assert torch.equal(lse, plain_lse)
    assert torch.equal(alone, plain)


def test_results_do_not_depend_on_matmul_settings(route: Route) -> None:
    """float32 products stay float32 where PyTorch may use less; the setting is left as it was."""
    q, k, v = normal(RAGGED, device=route.device)
    expected = route(q, k, v)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(route(q, k, v), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)

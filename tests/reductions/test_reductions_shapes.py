"""Any axes, strides, sizes and values, against torch in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flashasc import ops
from tests.attention.routes import Route

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EXACT: dict[str, Any] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "var": torch.var,
    "norm": torch.linalg.vector_norm,
    "logsumexp": torch.logsumexp,
    "amax": torch.amax,
    "amin": torch.amin,
}


def assert_reduced(found: Tensor, what: str, x: Tensor, dims: tuple[int, ...]) -> None:
    """Within a few roundings in fp32 of what float64 gives, and one in the result's dtype."""
    exact = EXACT[what](x.double(), dim=dims)
    size = x.double().abs().sum(dims) if what in ("sum", "mean") else exact.abs()
    if what == "mean":
        size = size / max(math.prod(x.shape[d] for d in dims), 1)
    length = math.prod(x.shape[d] for d in dims)
    bound = (min(length, 40) + 8) * 2.0**-24 * (size + (what == "logsumexp"))
    bound = bound + torch.finfo(found.dtype).eps * exact.abs()
    wrong = ~((found.double() - exact).abs() <= bound) & ~(exact.isnan() & found.isnan())
    wrong &= ~(found.double() == exact)
    assert found.shape == exact.shape
    assert not wrong.any(), (what, tuple(x.shape), x.stride(), dims)


@st.composite
def views(draw: st.DrawFn) -> tuple[Tensor, tuple[int, ...]]:
    """A tensor of up to four dimensions, permuted, sliced, expanded, and dimensions of it."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 7, 16, 130]), min_size=1, max_size=4))
    while math.prod(shape) > 20_000:
        shape[shape.index(max(shape))] = 2
    x = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    x = (x * 3 + draw(st.sampled_from([0.0, 10.0]))).to(draw(st.sampled_from(DTYPES)))
    x = x.permute(draw(st.permutations(range(x.dim()))))
    d = draw(st.integers(0, x.dim() - 1))
    match draw(st.sampled_from(["whole", "every other", "expanded", "shifted"])):
        case "every other":
            x = x[(slice(None),) * d + (slice(None, None, 2),)]
        case "expanded":
            x = x.narrow(d, 0, 1).expand(*x.shape[:d], 5, *x.shape[d + 1 :])
        case "shifted" if x.shape[d] > 1:
            x = x.narrow(d, 1, x.shape[d] - 1)
    dims = draw(st.sets(st.integers(0, x.dim() - 1), min_size=1))
    return x, tuple(sorted(dims))


@settings(max_examples=20)
@given(view=views(), what=st.sampled_from(["sum", "amax"]))
def test_any_view_natively(view: tuple[Tensor, tuple[int, ...]], what: str) -> None:
    """How a view falls into rows is the same for every reduction: two of them show it."""
    pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
    x, dims = view
    found = getattr(ops, what)(x.float(), dims, impl="triton")
    assert_reduced(found, what, x.float(), dims)


@settings(max_examples=60)
@given(view=views(), what=st.sampled_from(sorted(EXACT)))
def test_any_view_by_the_reference(view: tuple[Tensor, tuple[int, ...]], what: str) -> None:
    x, dims = view
    assert_reduced(getattr(ops, what)(x, dims, impl="reference"), what, x, dims)


def assert_normalised(name: str, x: Tensor, dims: tuple[int, ...], impl: str) -> None:
    """Within a few roundings of what float64 gives."""
    functional = torch.nn.functional
    if name == "softmax":
        found = ops.softmax(x, dims[0], impl=impl)
        exact = x.double().softmax(dims[0])
    else:
        shape = x.shape[dims[0] :]
        weight = torch.linspace(-1, 2, math.prod(shape), device=x.device).view(shape)
        found = getattr(ops, name)(x, shape, weight, eps=0.1, impl=impl)
        exact = getattr(functional, name)(x.double(), shape, weight.double(), eps=0.1)
    assert found.is_contiguous()
    bound = torch.finfo(x.dtype).eps * exact.abs() + 3e-6 * exact.abs().amax() + 1e-7
    assert ((found.double() - exact).abs() <= bound).all(), (tuple(x.shape), x.stride())


@settings(max_examples=40)
@given(view=views(), name=st.sampled_from(["softmax", "rms_norm", "layer_norm"]))
def test_any_view_is_normalised_by_the_reference(
    view: tuple[Tensor, tuple[int, ...]], name: str
) -> None:
    assert_normalised(name, *view, "reference")


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm"])
def test_views_are_normalised(kernel_route: Route, name: str) -> None:
    """Heads beside each other, columns, a row broadcast, every other number, a part of each row."""
    x = torch.randn(4, 7, 6, 20, device=kernel_route.device) * 3 + 1
    for view in (x.transpose(1, 2), x.transpose(-1, -2).transpose(-1, -2)[..., :5, :],
                 x[:, :1].expand(4, 7, 6, 20), x.permute(3, 0, 1, 2).movedim(0, -1)[:, ::2],
                 torch.cat([x, x], -1)[..., ::2]):  # fmt: skip
        assert_normalised(name, view, (3,), kernel_route.impl)


def test_over_nothing(route: Route) -> None:
    x = torch.empty(3, 0, 4, device=route.device)
    for name in ("sum", "mean", "var", "norm", "logsumexp"):
        found = getattr(ops, name)(x, 1, impl=route.impl)
        exact = {"mean": torch.nan, "var": torch.nan, "logsumexp": -torch.inf}.get(name, 0.0)
        torch.testing.assert_close(found.cpu(), torch.full((3, 4), exact), equal_nan=True)
        assert getattr(ops, name)(x, 0, impl=route.impl).shape == (0, 4)
    assert ops.sum(x, impl=route.impl) == 0
    assert ops.softmax(x, 1, impl=route.impl).shape == x.shape
    with pytest.raises(ValueError, match="amax has no value over no numbers"):
        ops.amax(x, 1, impl=route.impl)
    assert ops.amax(x, 0, impl=route.impl).shape == (0, 4)


def test_what_is_not_finite_is_as_in_torch(route: Route) -> None:
    n = 150_000
    inf, nan = math.inf, math.nan
    x = torch.rand(6, n, device=route.device)
    for row, numbers in enumerate([(inf,), (-inf,), (nan,), (inf, -inf)]):
        x[row, 7 : 7 + len(numbers)] = torch.tensor(numbers)
    x[4] = -inf
    close = {"rtol": 1e-4, "atol": 1e-6, "equal_nan": True}
    for name in EXACT:
        levels = (None,) if name in ("amax", "amin") or route.native else (False, True, "sum2")
        for level in levels:
            options = {} if level is None else {"compensated": level}
            found = getattr(ops, name)(x, 1, impl=route.impl, **options)
            exact = EXACT[name](x.double(), dim=1)
            torch.testing.assert_close(found.double(), exact, **close, msg=name)
    torch.testing.assert_close(ops.softmax(x, impl=route.impl), x.softmax(1), **close)
    torch.testing.assert_close(
        ops.layer_norm(x, n, impl=route.impl), torch.nn.functional.layer_norm(x, (n,)), **close
    )


def test_scalars_and_keepdim(route: Route) -> None:
    x = torch.tensor(3.0, device=route.device)
    assert ops.sum(x, impl=route.impl) == 3
    assert ops.sum(x, 0, impl=route.impl).shape == ()
    assert ops.softmax(x, impl=route.impl) == 1
    y = torch.randn(2, 3, 4, device=route.device)
    for dim in (1, (0, 2), None, (-1, 0)):
        expected = y.double().sum(dim, keepdim=True)
        found = ops.sum(y, dim, keepdim=True, impl=route.impl)
        assert found.shape == expected.shape
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("correction", [0, 1, 2.5, 7, 9])
def test_a_correction_is_torchs(route: Route, correction: float) -> None:
    x = torch.randn(3, 7, device=route.device)
    found = ops.var(x, 1, correction=correction, impl=route.impl)
    exact = x.double().var(1, correction=correction)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0, equal_nan=True)


def test_a_rows_bits_do_not_depend_on_the_others(route: Route) -> None:
    n = 150_000
    x = torch.randn(11, n, device=route.device)
    for reduced in (
        lambda t: ops.sum(t, 1, compensated=True, impl=route.impl),
        lambda t: ops.var(t, 1, impl=route.impl),
        lambda t: ops.softmax(t, 1, impl=route.impl),
    ):
        whole = reduced(x)
        assert torch.equal(whole, reduced(x)), "the same call, other bits"
        assert torch.equal(whole[:1], reduced(x[:1]))
        assert torch.equal(whole[5:9], reduced(x[5:9]))
        aside = torch.empty(11, n + 3, device=route.device)[:, 1:-2]
        assert torch.equal(whole, reduced(aside.copy_(x)))


def test_64_bit_offsets_give_the_same_bits(
    kernel_route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(5, 150_000, device=kernel_route.device)
    x = torch.cat([x, torch.full((1, 150_000), 2.0, device=x.device)])

    def results() -> list[Tensor]:
        return [
            ops.amax(x, 1, impl=kernel_route.impl),
            ops.sum(x, 0, impl=kernel_route.impl),
        ]

    narrow = results()
    monkeypatch.setattr("flashasc.kernels.reduce_launch._LIMIT", 1)
    assert all(map(torch.equal, narrow, results()))

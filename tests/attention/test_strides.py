"""Any strides: what is computed depends on the values alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flashasc.testing import Case, Inputs, assert_accurate, exact_attention, normal
from tests.attention.routes import Route
from tests.cases_table import DTYPES, FLOAT16, FLOAT32, RAGGED

# enough rows and keys for several tiles, none of them whole
CASE = Case(B=2, Hq=4, Hk=4, Sq=70, Sk=270)


def transposed(x: Tensor) -> Tensor:
    """[B, H, S, D] out of [B, S, H, D] memory, as a projection leaves it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def columns_first(x: Tensor) -> Tensor:
    """Columns far apart, rows adjacent."""
    return x.mT.contiguous().mT


def every_other_column(x: Tensor) -> Tensor:
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan)
    wide[..., ::2] = x
    return wide[..., ::2]


def every_third_row(x: Tensor) -> Tensor:
    B, H, S, D = x.shape
    long = x.new_full((B, H, 3 * S, D), torch.nan)
    long[:, :, 1::3] = x
    return long[:, :, 1::3]


def out_of_a_fused_projection(x: Tensor) -> Tensor:
    """The middle third of [B, S, 3 * H * D]."""
    B, H, S, D = x.shape
    fused = x.new_full((B, S, 3, H, D), torch.nan)
    fused[:, :, 1] = x.transpose(1, 2)
    return fused[:, :, 1].transpose(1, 2)


def misaligned(x: Tensor) -> Tensor:
    """One element after an aligned address, rows an odd distance apart."""
    B, H, S, D = x.shape
    row = D + 1
    strides = (H * S * row, S * row, row, 1)
    view = x.new_full((B * H * S * row + 1,), torch.nan).as_strided(x.shape, strides, 1)
    return view.copy_(x)


def batch_last(x: Tensor) -> Tensor:
    return x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)


VIEWS: tuple[Callable[[Tensor], Tensor], ...] = (
    transposed, columns_first, every_other_column, every_third_row, out_of_a_fused_projection,
    misaligned, batch_last,
)  # fmt: skip


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_views(route: Route, view: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    q, k, v = normal(CASE.but(dtype=dtype), device=route.device)
    expected, expected_lse = route(q, k, v, return_lse=True)
    assert torch.equal(view(k), k)
    assert view(k).stride() != k.stride() or view(k).data_ptr() % 16
    out, lse = route(view(q), view(k), view(v), return_lse=True)
    route.assert_same(out, expected)
    route.assert_same(lse, expected_lse)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["q", "k", "v"])
def test_each_tensor_has_strides_of_its_own(route: Route, place: int) -> None:
    inputs = list(normal(CASE.but(dtype=FLOAT16), device=route.device))
    expected = route(*inputs)
    inputs[place] = out_of_a_fused_projection(inputs[place])
    route.assert_same(route(*inputs), expected)
    inputs[place] = every_other_column(inputs[place])
    route.assert_same(route(*inputs), expected)


def test_columns_apart_at_every_level(every_route: Route) -> None:
    inputs = normal(CASE.but(dtype=FLOAT16), device=every_route.device)
    expected = every_route(*inputs)
    every_route.assert_same(every_route(*map(every_other_column, inputs)), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_aligned_then_misaligned(route: Route, dtype: torch.dtype) -> None:
    """A kernel that was compiled for aligned addresses must not serve others."""
    q, k, v = normal(CASE.but(dtype=dtype), device=route.device)
    expected = route(q, k, v)
    for offset in (1, 2, 3):
        flat = (torch.empty(x.numel() + offset, dtype=dtype, device=x.device) for x in (q, k, v))
        shifted = (f[offset:].view(x.shape).copy_(x) for f, x in zip(flat, (q, k, v), strict=True))
        route.assert_same(route(*shifted), expected)


@pytest.mark.parametrize("D, Dv", [(64, 16), (32, 8), (128, 32), (16, 64), (17, 33)])
def test_misaligned_head_sizes_of_their_own(route: Route, D: int, Dv: int) -> None:
    """Narrow values that cannot be loaded 16 bytes at a time."""
    q, k, v = normal(CASE.but(D=D, Dv=Dv, dtype=FLOAT16), device=route.device)
    out, lse = route(*(misaligned(x) for x in (q, k, v)), return_lse=True)
    assert_accurate(out, q, k, v, lse)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1), (2,), (0, 1, 2), (3,)], ids=str)
def test_expanded_dimensions(route: Route, dims: tuple[int, ...], dtype: torch.dtype) -> None:
    """Stride 0: one batch, head, row or column standing for many."""
    q, k, v = normal(CASE.but(dtype=dtype), device=route.device)
    for d in dims:
        q, k, v = (x.narrow(d, 0, 1) for x in (q, k, v))
    wide = (x.expand(2, 4, n, 64) for x, n in zip((q, k, v), (70, 270, 270), strict=True))
    q, k, v = wide
    assert all(k.stride(d) == 0 for d in dims)
    route.assert_same(route(q, k, v), route(q.contiguous(), k.contiguous(), v.contiguous()))


def test_a_lazily_negated_view(route: Route) -> None:
    q, k, v = normal(CASE, device=route.device)
    negated = torch.view_as_complex(torch.stack([q, -q], dim=-1)).conj().imag
    assert negated.is_neg()
    assert torch.equal(negated, q)
    route.assert_same(route(negated, k, v), route(q, k, v))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts_agree(every_route: Route, dtype: torch.dtype) -> None:
    """BSND is BNSD with other strides: the same bits."""
    case = RAGGED.but(dtype=dtype, causal=True)
    q, k, v = normal(case, device=every_route.device)
    expected, expected_lse = every_route(q, k, v, causal=True, return_lse=True)
    out, lse = every_route(
        *(x.transpose(1, 2).contiguous() for x in (q, k, v)),
        layout="BSND", causal=True, return_lse=True,
    )  # fmt: skip
    every_route.assert_same(out.transpose(1, 2), expected)
    every_route.assert_same(lse, expected_lse)


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_the_output_is_contiguous_in_its_layout(route: Route, layout: str) -> None:
    """Whatever the strides of the input."""
    case = RAGGED.but(Dv=16, layout=layout, dtype=FLOAT16)
    for view in (lambda x: x, transposed, columns_first):
        q, k, v = (view(x) for x in normal(case, device=route.device))
        out = route(q, k, v, layout=layout)
        assert out.shape == (*q.shape[:3], 16)
        assert out.is_contiguous()


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_offsets_beyond_32_bits(route: Route, causal: bool) -> None:
    """Rows 2**30 elements apart: the third one's offset does not fit int32, its stride does."""
    # on a CPU, pages that are never touched take no memory
    memory = torch.empty(2**31 + 64, dtype=FLOAT16, device=route.device)
    q, k, v = Inputs(
        *(memory.as_strided((1, 1, 3, 16), (0, 0, 2**30, 1), start) for start in (0, 16, 32))
    )
    for x in (q, k, v):
        x.copy_(torch.randn(1, 1, 3, 16))
    assert_accurate(route(q, k, v, causal=causal), q, k, v, causal=causal)


def test_a_stride_beyond_32_bits(route: Route) -> None:
    """Two heads 2**31 + 8 elements apart."""
    memory = torch.empty(2**31 + 1024, dtype=FLOAT16, device=route.device)
    x = memory.as_strided((1, 2, 20, 16), (0, 2**31 + 8, 16, 1))
    x.copy_(torch.randn(1, 2, 20, 16))
    assert_accurate(route(x, x, x), x, x, x)


@pytest.mark.parametrize("shape", [(1, 65537, 2, 16), (65536, 1, 4, 16)], ids=str)
def test_more_than_65535_heads(route: Route, shape: tuple[int, ...]) -> None:
    """Beyond what one axis of a GPU's grid may have, and all of an NPU's together."""
    if route.native:
        q = torch.empty(shape, dtype=FLOAT16)
        assert programs_started(route, q) <= 65535
        return
    q, k, v = (torch.randn(shape).to(route.device, FLOAT16) for _ in range(3))
    out = route(q, k, v)
    assert (out.double() - exact_attention(q, k, v).out).abs().max() < 4e-3


def programs_started(route: Route, q: Tensor) -> int:
    """The most programs that a kernel would be started with; nothing runs."""
    from flashasc.kernels import attention_launch, split_launch

    started: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (attention_launch, split_launch):
            patch.setattr(module, "launch", lambda kernel, n, *_, **__: started.append(n))
        route(q, q, q)
    return max(started)

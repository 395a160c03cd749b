"""Rows of docs/edge-cases.md: nothing to see, and lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from tests.attention.routes import Route
from tests.docs.edge_table import INF, NAN, SINKS, draw, row


def blind(attend: Route, **options: Any) -> tuple[Tensor, Tensor]:
    """A batch of two, the second of which sees no key."""
    q, k, v = draw(B=2)
    out, lse = attend(q, k, v, kv_lens=torch.tensor([5, 0]), return_lse=True, **options)
    assert not out[0].isnan().any() and out[0].any()
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    return out, lse


@row("a row that sees no key")
def _(attend: Route) -> None:
    # a sink of -inf is none; with it the kernel is the one of the other rows here
    _, lse = blind(attend, sinks=torch.full((2,), -INF))
    assert (lse[1] == -INF).all()


@row("a row that sees no key, with a sink")
def _(attend: Route) -> None:
    _, lse = blind(attend, sinks=SINKS)
    assert torch.equal(lse[1], SINKS[:, None].expand(2, 4))


@row("gradients of a row that sees no key")
def _(attend: Route) -> None:
    def gradients(rows: slice) -> list[Tensor]:
        q, k, v = (x.requires_grad_() for x in draw(Sq=5, Sk=3))
        out, lse = attend(q[:, :, rows], k, v, causal=True, return_lse=True)
        (out.square().sum() + lse[lse > -INF].sum()).backward()
        return [x.grad for x in (q, k, v)]

    dq, dk, dv = gradients(slice(0, 5))
    assert torch.equal(dq[:, :, :2], torch.zeros_like(dq[:, :, :2]))
    for found, expected in zip((dq, dk, dv), gradients(slice(2, 5))):
        torch.testing.assert_close(found, expected)


@row("a row whose scores are all -inf")
def _(attend: Route) -> None:
    q, k, v = draw()
    bias = torch.zeros(4, 1)
    bias[2] = -INF
    out, lse = attend(q, k, v, bias=bias, return_lse=True)
    assert not out[:, :, 2].any() and (lse[:, :, 2] == -INF).all()
    assert lse[:, :, [0, 1, 3]].isfinite().all()


@row("`Sk = 0`")
def _(attend: Route) -> None:
    q, k, v = draw(Sk=0)
    for sinks, expected in ((None, torch.tensor([-INF, -INF])), (SINKS, SINKS)):
        out, lse = attend(q, k, v, sinks=sinks, return_lse=True)
        assert torch.equal(out, torch.zeros(1, 2, 4, 16))
        assert torch.equal(lse, expected[None, :, None].expand(1, 2, 4))


@row("`Sq = 0`, `B = 0` or no heads")
def _(attend: Route) -> None:
    for sizes in ({"Sq": 0}, {"B": 0}, {"H": 0}):
        q, k, v = draw(**sizes)
        assert attend(q, k, v).shape == q.shape


@row("`D = 0` or `Dv = 0`", raises=True)
def _(attend: Route) -> None:
    q, k, v = draw()
    for tensors in ((q[..., :0], k[..., :0], v), (q, k, v[..., :0])):
        with pytest.raises(ValueError, match="head sizes must be at least 1"):
            attend(*tensors)


@row("`causal`, bottom-right, `Sq > Sk`")
def _(attend: Route) -> None:
    q, k, v = draw(Sq=6, Sk=4)
    out, lse = attend(q, k, v, causal=True, return_lse=True)
    assert (lse[..., :2] == -INF).all() and lse[..., 2:].isfinite().all()
    assert not out[:, :, :2].any()
    torch.testing.assert_close(out[:, :, 2], v[:, :, 0])


@row("`causal`, top-left, `Sq > Sk`")
def _(attend: Route) -> None:
    q, k, v = draw(Sq=6, Sk=4)
    out, lse = attend(q, k, v, causal=True, causal_align="top_left", return_lse=True)
    assert lse.isfinite().all()
    torch.testing.assert_close(out[:, :, 0], v[:, :, 0])
    torch.testing.assert_close(out[:, :, 3:], attend(q[:, :, 3:], k, v))


@row("`causal`, top-left, `Sq < Sk`")
def _(attend: Route) -> None:
    q, k, v = draw(Sq=3, Sk=5)
    expected = attend(q, k[:, :, :3], v[:, :, :3], causal=True)
    k[:, :, 3:] = v[:, :, 3:] = NAN
    torch.testing.assert_close(attend(q, k, v, causal=True, causal_align="top_left"), expected)


def packed(
    attend: Route, cu_q: list[int], cu_k: list[int], check: str | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """8 queries and 8 keys in packed sequences; `check` is what flashasc.check says of them."""
    q, k, v = (x[0].transpose(0, 1) for x in draw(Sq=8, Sk=8))
    lengths = {"cu_seqlens_q": torch.tensor(cu_q), "cu_seqlens_k": torch.tensor(cu_k)}
    call: dict[str, Any] = {"layout": "TND", **lengths, **options}
    if check is None:
        flashasc.check(q, k, v, **call)
    else:
        with pytest.raises(ValueError, match=check):
            flashasc.check(q, k, v, **call)
    out, lse = attend(q, k, v, return_lse=True, **call)
    assert out.shape == (8, 2, 16) and lse.shape == (2, 8) and not out.isnan().any()
    return out, lse


@row("a packed sequence without keys")
def _(attend: Route) -> None:
    out, lse = packed(attend, [0, 3, 8], [0, 0, 8])
    assert not out[:3].any() and (lse[:, :3] == -INF).all()
    assert lse[:, 3:].isfinite().all()


@row("packed tokens that belong to no sequence")
def _(attend: Route) -> None:
    out, lse = packed(attend, [0, 3, 6], [0, 4, 8], check="must end with the number of tokens")
    assert not out[6:].any() and (lse[:, 6:] == -INF).all()
    assert lse[:, :6].isfinite().all()


@row("`kv_lens` below 0 or above Sk")
def _(attend: Route) -> None:
    q, k, v = draw(B=2)
    wrong, right = torch.tensor([99, -3]), torch.tensor([5, 0])
    sinks = torch.full((2,), -INF)
    with pytest.raises(ValueError, match="kv_lens must be between 0 and Sk = 5; got 99"):
        flashasc.check(q, k, v, kv_lens=wrong)
    found, expected = (
        attend(q, k, v, kv_lens=lens, sinks=sinks, return_lse=True) for lens in (wrong, right)
    )
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


@row("`cu_seqlens_*` without the leading 0")
def _(attend: Route) -> None:
    out, _ = packed(attend, [3, 8], [4, 8], check="must start with 0; got 3")
    assert not out[:3].any()


@row("`cu_seqlens_*` that falls or exceeds the tokens")
def _(attend: Route) -> None:
    packed(attend, [0, 6, 4, 8], [0, 6, 4, 8], check="must not fall; got 6 and then 4")
    packed(attend, [0, 3, 99], [0, 3, 99], check="must end with the number of tokens")


@row("`max_seqlen_*` below the longest sequence")
def _(attend: Route) -> None:
    for side in "qk":
        lengths = {f"max_seqlen_{side}": 4}
        packed(attend, [0, 3, 8], [0, 3, 8], check="at least the longest sequence", **lengths)


@row("`max_seqlen_*` above the longest sequence")
def _(attend: Route) -> None:
    exact, _ = packed(attend, [0, 3, 8], [0, 3, 8], causal=True)
    above = {"max_seqlen_q": 100, "max_seqlen_k": 200}
    assert torch.equal(exact, packed(attend, [0, 3, 8], [0, 3, 8], causal=True, **above)[0])


@row("a row that sees one key")
def _(attend: Route) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        q, k, v = draw(Sq=3, Sk=1, dtype=dtype)
        out = attend(q, k, v)
        value = v.expand_as(out)
        assert ((out - value).abs() <= torch.finfo(dtype).eps * value.abs()).all()
        assert dtype == torch.float32 or torch.equal(out, value)

"""Rows of docs/edge-cases.md: NaN, infinity and large numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flashasc.testing import eager_attention
from tests.attention.routes import Route
from tests.docs.edge_table import INF, NAN, draw, row

LOWEST = torch.finfo(torch.float32).min


def same_but(found: Tensor, expected: Tensor, rows: list[int]) -> None:
    """Fail unless exactly these rows are NaN, and the others as expected."""
    others = [i for i in range(found.shape[2]) if i not in rows]
    assert found[:, :, rows].isnan().all()
    torch.testing.assert_close(found[:, :, others], expected[:, :, others])


@row("NaN in a query")
def _(attend: Route) -> None:
    q, k, v = draw()
    expected = attend(q, k, v)
    q[:, :, 2, 3] = NAN
    same_but(attend(q, k, v), expected, [2])


@row("NaN in a key")
def _(attend: Route) -> None:
    q, k, v = draw(Sq=5)
    expected = attend(q, k, v, causal=True)
    k[:, :, 3, 7] = NAN
    same_but(attend(q, k, v, causal=True), expected, [3, 4])


@row("NaN or inf in a value")
def _(attend: Route) -> None:
    q, k, v = draw()
    expected = attend(q, k, v)
    for poison in (NAN, INF, -INF):
        v[:, :, 3, 7] = poison
        out = attend(q, k, v)
        reached = out[..., 7]
        assert reached.isnan().all() if poison != poison else (reached == poison).all()
        columns = [c for c in range(16) if c != 7]
        torch.testing.assert_close(out[..., columns], expected[..., columns])


@row("NaN or inf in a value that some rows of a tile see")
def _(attend: Route) -> None:
    q, k, v = draw(Sq=5)
    expected = attend(q, k, v, causal=True)
    v[:, :, 3, 7] = INF
    out = attend(q, k, v, causal=True)
    assert (out[:, :, 3:, 7] == INF).all()
    # rows that do not see it: right, or NaN
    others = out[:, :, :3, 7]
    assert (others.isnan() | ((others - expected[:, :, :3, 7]).abs() < 1e-5)).all()


@row("anything in keys and values behind `kv_lens` or hidden from all rows")
def _(attend: Route) -> None:
    q, k, v = draw(B=2)
    options = {"kv_lens": torch.tensor([4, 2]), "sinks": torch.zeros(2), "return_lse": True}
    expected, _ = attend(q, k, v, **options)
    for poison in (NAN, INF):
        for x in (k, v):
            x[0, :, 4:] = poison
            x[1, :, 2:] = poison
        found, _ = attend(q, k, v, **options)
        assert torch.equal(found, expected)


@row("a score of -inf")
def _(attend: Route) -> None:
    q, k, v = draw()
    q[..., 0] = 1.0
    k[:, :, 3, 0] = -INF
    seen = [0, 1, 2, 4]
    torch.testing.assert_close(attend(q, k, v), attend(q, k[:, :, seen], v[:, :, seen]))


@row("a score of +inf, or of NaN")
def _(attend: Route) -> None:
    q, k, v = draw()
    expected = attend(q, k, v)
    for score in (INF, NAN):
        bias = torch.zeros(4, 5)
        bias[1, 2] = score
        same_but(attend(q, k, v, bias=bias), expected, [1])
    q[..., 0] = 1.0
    k[:, :, 3, 0] = INF
    assert attend(q, k, v).isnan().all() and eager_attention(q, k, v).out.isnan().all()


@row("a score of +inf or -inf with `softcap`")
def _(attend: Route) -> None:
    q, k, v = draw()
    q[..., 0] = 1.0
    for sign in (1.0, -1.0):
        k[:, :, 3, 0] = sign * 1e30
        expected = attend(q, k, v, softcap=5.0)
        k[:, :, 3, 0] = sign * INF
        torch.testing.assert_close(attend(q, k, v, softcap=5.0), expected)


@row("a `bias` of -inf")
def _(attend: Route) -> None:
    q, k, v = draw()
    mask = (q @ k.mT)[0, 0] > 0
    mask[:, 0] = True
    bias = torch.zeros(4, 5).masked_fill(~mask, -INF)
    torch.testing.assert_close(attend(q, k, v, bias=bias), attend(q, k, v, mask=mask))


@row("a `bias` of NaN or inf where `mask` hides the key")
def _(attend: Route) -> None:
    q, k, v = draw()
    mask = torch.tensor([True, True, False, True, False])
    expected = attend(q, k, v, mask=mask)
    for poison in (NAN, INF):
        bias = torch.zeros(5).masked_fill(~mask, poison)
        torch.testing.assert_close(attend(q, k, v, mask=mask, bias=bias), expected)


@row("a `sinks` of -inf")
def _(attend: Route) -> None:
    q, k, v = draw()
    found = attend(q, k, v, sinks=torch.full((2,), -INF), return_lse=True)
    for one, other in zip(found, attend(q, k, v, return_lse=True)):
        assert torch.equal(one, other)


@row("a `sinks` of +inf")
def _(attend: Route) -> None:
    q, k, v = draw()
    out, lse = attend(q, k, v, sinks=torch.tensor([INF, 0.0]), return_lse=True)
    assert (out[:, 0] == 0).all() and (lse[:, 0] == INF).all() and lse[:, 1].isfinite().all()


@row("a `sinks` of NaN")
def _(attend: Route) -> None:
    q, k, v = draw()
    out = attend(q, k, v, sinks=torch.tensor([NAN, 0.0]))
    assert out[:, 0].isnan().all() and out[:, 1].isfinite().all()


@row("float16 with scores above 65504")
def _(attend: Route) -> None:
    q, k, v = draw(dtype=torch.float16)
    q = torch.full_like(q, 300.0)
    k = torch.full_like(k, 300.0)
    k[:, :, 1] = 300.25  # 16 * 300 * 0.25 / 4 = 300 nats above the others
    out, lse = attend(q, k, v, return_lse=True)
    assert lse.min() > 65504
    assert torch.equal(out, v[:, :, 1:2].expand_as(out))


@row("float16 values at 65504")
def _(attend: Route) -> None:
    q, k, v = draw(dtype=torch.float16)
    v = torch.full_like(v, 65504.0)
    out, _ = attend(q, k, v, return_lse=True)
    assert torch.equal(out, torch.full_like(out, 65504.0))


@row("float32 or bfloat16 values near 3e38")
def _(attend: Route) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = draw(dtype=dtype)
        v = torch.full_like(v, 3e38)
        out = attend(q, k, v)
        assert ((out == INF) | ((out.float() / 3e38 - 1).abs() < 0.01)).all()


@row("float32 scores of size s")
def _(attend: Route) -> None:
    q, k, v = draw()
    for size in (1e2, 1e4, 1e5):
        bias = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)) - size
        exact = torch.softmax((q.double() @ k.double().mT) / 4 + bias.double(), -1) @ v.double()
        error = (attend(q, k, v, bias=bias) - exact).abs().max() / v.abs().max()
        assert error < 2e-7 * size + 1e-6


@row("scores that a `bias` or slopes made large")
def _(attend: Route) -> None:
    q, k, v = draw(Sq=40)
    q = torch.zeros_like(q)
    # what float32 holds at 1e7: integers
    bias = torch.randint(-4, 5, (40, k.shape[2]), device=q.device).float()
    expected = attend(q, k, v, bias=bias)
    for size in (8192.0, 65536.0, 1e7):
        torch.testing.assert_close(attend(q, k, v, bias=bias + size), expected)


@row("finite inputs whose float32 scores overflow")
def _(attend: Route) -> None:
    q, k, v = draw(Sq=5)
    expected = attend(q, k, v, causal=True)
    q[:, :, 4] = k[:, :, 4] = 1e25
    same_but(attend(q, k, v, causal=True), expected, [4])


@row("products within a score that overflow with both signs")
def _(attend: Route) -> None:
    q, k, v = draw(Sq=5)
    for options in ({}, {"softcap": 5.0}):
        expected = attend(q, k, v, causal=True, **options)
        large_q, large_k = q.clone(), k.clone()
        large_q[:, :, 4, :2] = 1e25
        large_k[:, :, 4, 0], large_k[:, :, 4, 1] = 1e25, -1e25
        same_but(attend(large_q, large_k, v, causal=True, **options), expected, [4])
        assert (
            eager_attention(large_q, large_k, v, causal=True, **options).out[:, :, 4].isnan().all()
        )


@row("results below 1.2e-38 in size")
def _(attend: Route) -> None:
    q, k, v = draw()
    for sink in (80.0, 97.0, 110.0):
        out = attend(q * 0, k, v, sinks=torch.full((2,), sink))
        exact = v.double().sum(2, keepdim=True) / (5 + math.exp(sink))
        error = (out - exact).abs()
        assert ((error <= 1e-6 * exact.abs()) | ((out == 0) & (exact.abs() < 1.2e-38))).all() or (
            error.max() < 1.2e-38
        )


@row("a weight 87 nats or more below the largest of its row, or below the sink")
def _(attend: Route) -> None:
    q, k, v = draw()
    v = v.abs() * 1e30
    for sink in (88.0, 95.0, 100.0):
        out = attend(q * 0, k, v, sinks=torch.full((2,), sink))
        exact = v.double().sum(2, keepdim=True) * math.exp(-sink)
        assert ((out == 0) | ((out - exact).abs() <= 0.05 * exact)).all()


@row("a finite `sinks` beyond 2.3e38")
def _(attend: Route) -> None:
    q, k, v = draw()
    huge = torch.finfo(torch.float32).max
    expected = attend(q, k, v, return_lse=True)
    for precision in ("compensated", "standard"):
        options = {"sinks": torch.tensor([huge, -huge]), "precision": precision}
        out, lse = attend(q, k, v, return_lse=True, **options)
        assert (out[:, 0] == 0).all() and (lse[:, 0] == huge).all()
        torch.testing.assert_close(out[:, 1], expected[0][:, 1])
        torch.testing.assert_close(lse[:, 1], expected[1][:, 1])
        nothing = torch.zeros(5, dtype=torch.bool)
        out, lse = attend(q, k, v, mask=nothing, return_lse=True, **options)
        assert (out == 0).all() and torch.equal(lse[0, :, 0], options["sinks"])


@row("a `bias` of `torch.finfo(torch.float32).min` on some keys of a row")
def _(attend: Route) -> None:
    q, k, v = draw()
    mask = torch.tensor([True, False, True, True, False])
    bias = torch.zeros(5).masked_fill(~mask, LOWEST)
    torch.testing.assert_close(attend(q, k, v, bias=bias), attend(q, k, v, mask=mask))


@row("such a `bias` on all keys of a row")
def _(attend: Route) -> None:
    q, k, v = draw()
    out = attend(q, k, v, bias=torch.full((4, 5), LOWEST))
    average = v.mean(2, keepdim=True).expand_as(out)
    assert not out.isnan().any()
    assert not out.any() or (out - average).abs().max() < 1e-5


@row("scores of any size with `softcap`")
def _(attend: Route) -> None:
    q, k, v = (x.double() for x in draw())
    for size in (1.0, 1e4, 1e30):
        scores = torch.tanh(size * (q @ k.mT) / 4 / 50) * 50
        expected = torch.softmax(scores, -1) @ v
        found = attend(q.float(), k.float(), v.float(), softcap=50.0, scale=size / 4)
        torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)

"""Rows of docs/edge-cases.md: arguments and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

import flashasc
from tests.attention.routes import Route
from tests.docs.edge_table import draw, row

LENGTHS = torch.tensor([0, 4])


def refused(text: str, error: type[Exception], *calls: tuple[dict[str, Any], str]) -> None:
    """Note a row whose calls raise, each with a message that matches."""

    @row(text, raises=True)
    def _(attend: Route) -> None:
        tensors = draw(Sq=4, Sk=4)
        for options, message in calls:
            q, k, v = options.get("tensors", tensors)
            rest = {name: value for name, value in options.items() if name != "tensors"}
            with pytest.raises(error, match=message):
                attend(q, k, v, **rest)


def packed(**options: Any) -> dict[str, Any]:
    tensors = tuple(x[0].transpose(0, 1) for x in draw(Sq=4, Sk=4))
    lengths = {"cu_seqlens_q": LENGTHS, "cu_seqlens_k": LENGTHS}
    return {"tensors": tensors, "layout": "TND", **lengths, **options}


refused(
    "lengths that are not int32 or int64",
    TypeError,
    ({"kv_lens": torch.tensor([4.0])}, "kv_lens must be int32 or int64"),
    (packed(cu_seqlens_k=LENGTHS.to(torch.int16)), "cu_seqlens_k must be int32 or int64"),
)
refused(
    '`cu_seqlens_*` or `max_seqlen_*` without `layout="TND"`',
    ValueError,
    ({"cu_seqlens_q": LENGTHS}, "cu_seqlens_q belongs to packed sequences"),
    ({"max_seqlen_k": 4}, "max_seqlen_k belongs to packed sequences"),
)
refused(
    '`mask`, `bias` or `kv_lens` with `layout="TND"`',
    NotImplementedError,
    (packed(mask=torch.ones(4, 4, dtype=torch.bool)), "mask is not supported with packed"),
    (packed(bias=torch.zeros(4, 4)), "bias is not supported with packed"),
    (packed(kv_lens=torch.tensor([4])), "kv_lens is not supported with packed"),
)
refused(
    "`scale` or `softcap` as a tensor",
    TypeError,
    ({"scale": torch.tensor(0.5)}, "scale must be a Python number"),
    ({"softcap": torch.tensor(5.0)}, "softcap must be a Python number"),
)
refused("`softcap=0`", ValueError, ({"softcap": 0.0}, "None leaves scores uncapped"))
refused("`-1` in `window`", ValueError, ({"window": (-1, 0)}, "write None"))
refused(
    "a float or integer `mask`",
    TypeError,
    ({"mask": torch.zeros(4, 4)}, "bias=..."),
    ({"mask": torch.ones(4, 4, dtype=torch.int64)}, "mask.bool()"),
)
refused(
    "a bool `bias`",
    TypeError,
    ({"bias": torch.ones(4, 4, dtype=torch.bool)}, "a bool mask is mask"),
)
refused(
    "`out_dtype` other than q's dtype or float32",
    ValueError,
    ({"out_dtype": torch.float16}, "out_dtype must be torch.float32"),
)
refused(
    '`precision="high"` with float32 or float64',
    NotImplementedError,
    ({"precision": "high"}, "for float16 and bfloat16"),
    ({"precision": "high", "tensors": draw(dtype=torch.float64)}, "for float16 and bfloat16"),
)
refused(
    "Hq that is not a multiple of Hk",
    ValueError,
    ({"tensors": (draw(H=3)[0], *draw(H=2)[1:])}, "multiple of the key/value heads"),
)


@row("a `scale` or `softcap` that changes, under `torch.compile`")
def _(attend: Route) -> None:
    q, k, v = draw()
    torch._dynamo.reset()
    counters = []
    for call in (
        lambda x, scale: flashasc.attention(x, k, v, scale=scale),
        lambda x, scale: torch.nn.functional.scaled_dot_product_attention(x, k, v, scale=scale),
        lambda x, scale: flashasc.attention(x * scale, k, v, scale=1.0),
    ):
        counters.append(CompileCounter())
        compiled = torch.compile(call, backend=counters[-1], fullgraph=True, dynamic=True)
        for scale in (0.1, 0.2, 0.3, 0.4):
            expected = attend(q, k, v, scale=scale)
            torch.testing.assert_close(compiled(q, scale), expected)
    assert [counter.frame_count for counter in counters] == [4, 4, 1]


refused("an unknown option, `dropout_p` among them", TypeError, ({"dropout_p": 0.1}, "dropout_p"))


@row("`scale=0`")
def _(attend: Route) -> None:
    q, k, v = draw(Sq=5)
    average = v.cumsum(2) / torch.arange(1, 6)[:, None]
    torch.testing.assert_close(attend(q, k, v, scale=0, causal=True), average)


@row("a negative `scale`")
def _(attend: Route) -> None:
    q, k, v = draw()
    torch.testing.assert_close(attend(q, k, v, scale=-0.5), attend(-q, k, v, scale=0.5))


@row("a `bias` of another dtype than q")
def _(attend: Route) -> None:
    q, k, v = draw(dtype=torch.float16)
    bias = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    out = attend(q, k, v, bias=bias)
    assert torch.equal(out, attend(q, k, v, bias=bias.detach().float()))
    out.float().square().sum().backward()
    assert bias.grad is not None and bias.grad.dtype == torch.float64


@row("float64 `bias`, slopes or sinks with float64 inputs")
def _(attend: Route) -> None:
    q, k, v = draw(dtype=torch.float64)
    for name, size in (("bias", (4, 5)), ("alibi_slopes", (2,)), ("sinks", (2,))):
        # in float32 that is 1
        values = torch.full(size, 1.0, dtype=torch.float64)
        values.view(-1)[0] += 1e-9
        rounded = attend(q, k, v, **{name: values.float()})
        assert not torch.equal(attend(q, k, v, **{name: values}), rounded), name


@row("q, k and v of different dtypes", raises=True)
def _(attend: Route) -> None:
    q, k, v = draw()
    with pytest.raises(TypeError, match="v must have q's dtype"):
        attend(q, k, v.half())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(q, k, v.half())
    assert torch.equal(out, attend(q.bfloat16(), k.bfloat16(), v.half().bfloat16()))


@row("float64", raises=True)
def _(attend: Route) -> None:
    tensors = draw(dtype=torch.float64)
    assert flashasc.explain(*tensors).route == "reference"
    assert attend(*tensors).dtype == torch.float64
    with pytest.raises(NotImplementedError, match="do not compute in float64"):
        flashasc.attention(*tensors, impl="triton")


@row("any strides: transposed, expanded, every second column")
def _(attend: Route) -> None:
    q, k, v = draw(Sq=5)
    transposed = q.transpose(1, 2).contiguous().transpose(1, 2)
    by_column = k.mT.contiguous().mT
    every_second = torch.stack([v, torch.full_like(v, torch.nan)], -1).flatten(-2)[..., ::2]
    torch.testing.assert_close(attend(transposed, by_column, every_second), attend(q, k, v))
    one_head = (x[:, :1].expand(-1, 2, -1, -1) for x in (k, v))
    torch.testing.assert_close(attend(q, *one_head), attend(q, k[:, :1], v[:, :1]))


@row("q as a transposed view")
def _(attend: Route) -> None:
    q, k, v = draw()
    view = q.transpose(1, 2).contiguous().transpose(1, 2)
    assert attend(view, k, v).is_contiguous()
    as_stored = attend(*(x.transpose(1, 2) for x in (view, k, v)), layout="BSND")
    assert as_stored.view(1, 4, 32).is_contiguous()


@row("second derivatives", raises=True)
def _(attend: Route) -> None:
    q, k, v = (x.requires_grad_() for x in draw())
    (dq,) = torch.autograd.grad(attend(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        dq.sum().backward()


@row("forward mode and `torch.func`: `jvp`, `grad`, `vjp`, `jacrev`, `hessian`", raises=True)
def _(attend: Route) -> None:
    q, k, v = draw()
    func = torch.func
    with pytest.raises(NotImplementedError, match="forward-mode"):
        func.jvp(lambda x: attend(x, k, v), (q,), (q,))
    for transform in (func.grad, func.jacrev, func.hessian):
        with pytest.raises(NotImplementedError, match=r"torch\.func"):
            transform(lambda x: attend(x, k, v).sum())(q)
    with pytest.raises(NotImplementedError, match=r"torch\.func"):
        func.vjp(lambda x: attend(x, k, v), q)
    torch.testing.assert_close(func.vmap(lambda x: attend(x, k, v))(q[None])[0], attend(q, k, v))
    leaf = q.clone().requires_grad_()
    (grad,) = torch.autograd.grad(attend(leaf, k, v).sum(), leaf)
    attend(leaf, k, v).sum().backward()
    torch.testing.assert_close(leaf.grad, grad)


@row("`scale` or `softcap` as a number of NumPy")
def _(attend: Route) -> None:
    q, k, v = draw()
    found = attend(q, k, v, scale=np.float16(0.5), softcap=np.float32(2.0))
    torch.testing.assert_close(found, attend(q, k, v, scale=0.5, softcap=2.0))

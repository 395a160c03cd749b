"""Options inside PyTorch: operator checks, torch.compile, fake and meta tensors, autocast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flashasc
from flashasc import _ops
from flashasc._validate import Arguments, validate_attention
from flashasc.testing import Case, exact_attention, normal
from tests.attention.option_cases import packed, together
from tests.attention.routes import Route
from tests.cases_table import FLOAT32

SMALL = Case(B=2, Hq=4, Hk=2, Sq=5, Sk=7, D=16, Dv=8)
EVERYTHING = ["window", "softcap", "mask", "bias of heads", "alibi_slopes", "sinks", "kv_lens"]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def call_with(kind: str, device: str = "cpu") -> tuple[Any, dict[str, Any]]:
    if kind == "packed":
        case = SMALL.but(B=3)
        inputs, options = packed(case, [3, 0, 2], [2, 2, 4], device=device)
        return inputs, {
            **options,
            **together(["window", "sinks", "alibi_slopes"], case, device=device),
        }
    if kind == "packed, lengths unknown":
        inputs, options = call_with("packed", device)
        return inputs, {**options, "max_seqlen_q": None, "max_seqlen_k": None}
    return normal(SMALL, device=device), together(EVERYTHING, SMALL, device=device)


KINDS = ("everything", "packed", "packed, lengths unknown")


def operator_arguments(inputs: Any, options: dict[str, Any], impl: str) -> tuple[Any, ...]:
    call = Arguments(*inputs, **options, return_lse=True)
    problem = validate_attention(call)
    q, k, v = (x.transpose(0, 1) if problem.packed else x for x in inputs)
    facts = (
        problem.scale, problem.softcap, problem.causal, problem.bottom_right, problem.window_left,
        problem.window_right, problem.layout, problem.precision, problem.out_dtype, True,
        call.max_seqlen_q, call.max_seqlen_k, impl,
    )  # fmt: skip
    return (q, k, v, *call.extras[:-1], *facts)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_operator_checks_of_the_forward(options_route: Route, kind: str, needs_grad: bool) -> None:
    inputs, options = call_with(kind, options_route.device)
    if needs_grad:
        inputs = [x.requires_grad_() for x in inputs]
        for x in options.values():
            if isinstance(x, Tensor) and x.is_floating_point():
                x.requires_grad_()
    arguments = operator_arguments(inputs, options, options_route.impl)
    torch.library.opcheck(_ops.attention_fwd, arguments)


@pytest.mark.parametrize("needs", [[True] * 6, [False, True, False] * 2], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_operator_checks_of_the_backward(kind: str, needs: list[bool]) -> None:
    inputs, options = call_with(kind)
    out, lse = flashasc.attention(*inputs, **options, return_lse=True)
    arguments = operator_arguments(inputs, options, "reference")
    grads = (torch.randn_like(out), torch.randn_like(lse))
    torch.library.opcheck(_ops.attention_bwd, (*grads, out, lse, *arguments, needs))


@pytest.mark.parametrize("kind", KINDS)
def test_compile_forward_and_backward(options_route: Route, kind: str) -> None:
    """One graph, with symbolic sizes, equal to eager."""
    inputs, options = call_with(kind, options_route.device)
    learned = [n for n in ("bias", "alibi_slopes", "sinks") if n in options]
    results = []
    for run in (
        options_route.__call__,
        torch.compile(
            lambda *a, **o: options_route(*a, **o), fullgraph=True, dynamic=True,
            backend="aot_eager",
        ),
    ):  # fmt: skip
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        more = {n: options[n].detach().clone().requires_grad_() for n in learned}
        out, lse = run(*leaves, **{**options, **more}, causal=True, return_lse=True)
        seen = lse.detach() > -torch.inf
        (out.square().sum() + torch.where(seen, lse, 0.0).sum()).backward()
        results.append([out.detach(), *(x.grad for x in (*leaves, *more.values()))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["everything", "packed"])
def test_compile_once_for_many_lengths(how: str) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    run = torch.compile(
        lambda q, k, v, o: flashasc.attention(q, k, v, **o), fullgraph=True, dynamic=True,
        backend=count,
    )  # fmt: skip
    for Sk in (20, 31, 33, 47, 100):
        if how == "packed":
            inputs, options = packed(SMALL, [3, 5], [Sk, 7])
        else:
            case = SMALL.but(Sk=Sk)
            inputs, options = normal(case), together(EVERYTHING, case)
        expected = exact_attention(*inputs, **options).out
        torch.testing.assert_close(run(*inputs, options).double(), expected, rtol=1e-5, atol=1e-5)
    assert len(graphs) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_fake_and_meta_tensors(kind: str) -> None:
    inputs, options = call_with(kind)
    more = {"return_lse": True, "out_dtype": FLOAT32}
    real = flashasc.attention(*inputs, **options, **more)

    def converted(convert: Any) -> Any:
        tensors = {n: convert(x) if isinstance(x, Tensor) else x for n, x in options.items()}
        return flashasc.attention(*map(convert, inputs), **tensors, **more)

    with torch._subclasses.FakeTensorMode() as mode:
        fake = converted(mode.from_tensor)
    meta = converted(lambda x: x.to("meta"))
    for a, b, c in zip(real, fake, meta, strict=True):
        assert a.shape == b.shape == c.shape
        assert a.dtype == b.dtype == c.dtype
        assert a.stride() == b.stride() == c.stride()


def test_autocast_casts_q_k_and_v_alone(options_route: Route) -> None:
    """Bias, slopes and sinks keep the digits they came with."""
    inputs, options = call_with("everything", options_route.device)
    with torch.autocast(options_route.device, dtype=torch.bfloat16):
        out = options_route(*inputs, **options)
    expected = options_route(*(x.to(torch.bfloat16) for x in inputs), **options)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, expected)


def test_the_facts_of_a_call() -> None:
    q, k, v = normal(SMALL)
    everything = validate_attention(Arguments(q, k, v, **together(EVERYTHING, SMALL)))
    assert (everything.window_left, everything.window_right) == (7, 3)
    assert everything.has_mask and everything.has_bias and everything.has_alibi
    assert everything.has_sinks and everything.has_kv_lens and everything.softcap == 1.5
    assert hash(everything) == hash(everything)
    for arguments, facts in (
        ({"window": (4, 0)}, (True, 4, None, 0)),
        ({"window": (4, 9), "causal": True}, (True, 4, None, 0)),
        ({"window": (None, 9)}, (False, None, 9, 9)),
        ({"window": (None, None)}, (False, None, None, None)),
        ({"window": (2**40, 2**31)}, (False, None, None, None)),
        ({"window": (np.int64(4), np.int32(9))}, (False, 4, 9, 9)),
    ):
        p = validate_attention(Arguments(q, k, v, **arguments))
        assert (p.causal, p.window_left, p.window_right, p.reach_right) == facts
    inputs, options = packed(SMALL, [3, 2], [5, 4])
    p = validate_attention(Arguments(*inputs, **options, causal_align="top_left"))
    assert (p.B, p.Sq, p.Sk, p.tokens_q, p.tokens_k, p.diagonal) == (2, 3, 5, 5, 9, 0)
    assert p.packed and not p.bottom_right

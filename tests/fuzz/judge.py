"""Whether a result is right."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import flashasc
from flashasc._configs import ascend
from flashasc._configs.tile import SCORE_OPTIONS
from flashasc.reference import scores as reference_scores
from flashasc.testing import error_budget, poisoned_memory
from tests.fuzz.calls import CALLS_PER_MOULD, Call, draw
from tests.fuzz.oracle import Expected, Rounding, expected, tokens_of_two

ROUTES = {"reference": "reference", "native": "triton", "cuda": "triton"}
_ORDERS = 5
"""In how many orders plain PyTorch may add up before an error counts as ours.

The first is the library's own; in it equal keys have equal scores, and weights are added in pairs,
as nothing that works tile by tile can promise: see `expected` for the others. `flashasc.testing`
judges by two, on data where these tell enough; the largest error of a few elements is a matter of
luck, which three more even out. Of 1000 calls 990 pass the first, 999 the second.
"""
_IN_PAIRS = 4
"""The order in which weights and weighted values are added up in two ways."""


def repro(route: str, seed: int, number: int) -> str:
    """The command that repeats one call."""
    return f"python -m tests.fuzz --route {route} --seed {seed} --only {number}"


def check_call(route: str, seed: int, number: int) -> None:
    """Run one call of a run and judge its result.

    Raises:
        AssertionError: the result is wrong; the message ends with the command that repeats it.
    """
    try:
        call = draw(route, seed, number)
        rng = random.Random(number)
        with _tiles_of(route, number, rng):
            _check(call, route, rng)
    except Exception as error:
        raise AssertionError(
            f"{type(error).__name__}: {str(error)[:1500]}\n  repeat: {repro(route, seed, number)}"
        ) from error


@contextlib.contextmanager
def _tiles_of(route: str, number: int, rng: random.Random) -> Iterator[None]:
    """Small tiles in the reference; in the kernel's table, rows that serve all options.

    Those stand behind the shipped rows, which have options where a chip was found to hold them.
    """
    small = number // CALLS_PER_MOULD % 3
    saved = (ascend.TILES, reference_scores.KEYS_PER_TILE, reference_scores.SCORES_PER_TILE)
    if route == "native":
        ascend.TILES += tuple(replace(row, options=SCORE_OPTIONS) for row in ascend.TILES)
    elif route == "reference" and small:
        reference_scores.KEYS_PER_TILE, reference_scores.SCORES_PER_TILE = 16 * small, 1
    try:
        yield
    finally:
        ascend.TILES, reference_scores.KEYS_PER_TILE, reference_scores.SCORES_PER_TILE = saved


def _check(call: Call, route: str, rng: random.Random) -> None:
    tensors = [call.q, call.k, call.v, *filter(torch.is_tensor, call.options.values())]
    before = [x.clone() for x in tensors]
    with poisoned_memory() if rng.random() < 0.3 else contextlib.nullcontext():
        out, lse = _run(call, route)
    for x, was in zip(tensors, before, strict=True):
        assert _same(x, was), "an input was changed"
    if rng.random() < 0.1:
        again, lse_again = _run(call, route)
        _check_again(call, out, again, lse, lse_again)
    exact = expected(call, torch.float64)
    _facts(call, out, lse)
    _judge_out(call, _heads_first(call, out), exact)
    if lse is not None:
        _judge_lse(call, lse if lse.dim() == 3 else lse[None], exact)


def _check_again(
    call: Call, out: Tensor, again: Tensor, lse: Tensor | None, lse_again: Tensor | None
) -> None:
    """The same bits in a second run, but where it is not said whose they are."""
    if call.options["layout"] == "TND":
        alone = ~tokens_of_two(call)
        out, again = out[alone], again[alone]
        lse, lse_again = (None if x is None else x[:, alone] for x in (lse, lse_again))
    assert _same(out, again), "out: other bits in a second run"
    assert lse is None or lse_again is None or _same(lse, lse_again), "lse: other bits"


def _run(call: Call, route: str) -> tuple[Tensor, Tensor | None]:
    q, k, v, options = call.q, call.k, call.v, call.options
    if route == "cuda":
        q, k, v = (_on_gpu(x) for x in (q, k, v))
        options = {n: _on_gpu(x) if torch.is_tensor(x) else x for n, x in options.items()}
    result = flashasc.attention(q, k, v, impl=ROUTES[route], **options)
    out, lse = result if isinstance(result, tuple) else (result, None)
    return out.cpu(), None if lse is None else lse.cpu()


def _on_gpu(x: Tensor) -> Tensor:
    """A copy on the GPU that lies in memory as x does: `Tensor.to` closes gaps and overlaps."""
    storage = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).cuda()  # type: ignore[call-overload]
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN being like NaN."""
    return (
        a.shape == b.shape
        and torch.equal(a.nan_to_num(nan=7.5e4), b.nan_to_num(nan=7.5e4))
        and (not a.is_floating_point() or torch.equal(a.isnan(), b.isnan()))
    )


def _heads_first(call: Call, x: Tensor) -> Tensor:
    match call.options["layout"]:
        case "BSND":
            return x.transpose(1, 2)
        case "TND":
            return x.transpose(0, 1)[None]
    return x


def _facts(call: Call, out: Tensor, lse: Tensor | None) -> None:
    q, dtype = call.q, call.options.get("out_dtype") or call.q.dtype
    assert out.shape == (*q.shape[:-1], call.v.shape[-1]), f"out: shape {tuple(out.shape)}"
    assert out.is_contiguous() and out.dtype == dtype, f"out: {out.stride()} {out.dtype}"
    assert (lse is not None) == call.options["return_lse"]
    if lse is not None:
        rows = {"BNSD": (0, 1, 2), "BSND": (0, 2, 1), "TND": (1, 0)}[call.options["layout"]]
        assert lse.shape == tuple(q.shape[d] for d in rows), f"lse: shape {tuple(lse.shape)}"
        assert lse.dtype == torch.promote_types(q.dtype, torch.float32), f"lse: {lse.dtype}"


def _judge_out(call: Call, out: Tensor, exact: Expected) -> None:
    judged = ~exact.free
    lost = judged & ~exact.out.isfinite() & out.isfinite()
    assert not lost.any(), f"out: finite at {_first(lost)}, where a NaN or inf is seen"
    judged &= exact.out.isfinite()
    spread = judged & ~out.isfinite() & (exact.out.abs() < torch.finfo(out.dtype).max / 2)
    assert not spread.any(), (
        f"out: {out[spread][0]} at {_first(spread)}: {exact.out[spread][0]:.6g}"
    )
    judged &= out.isfinite()
    zero = exact.lse == -math.inf
    wrong = zero[..., None] & judged & (out != 0)
    assert not wrong.any(), f"out: {out[wrong][0]} at {_first(wrong)}, whose row sees nothing"
    _within("out", call, out, exact.out, judged, "out", call.q.dtype)


def _judge_lse(call: Call, lse: Tensor, exact: Expected) -> None:
    judged = ~exact.free_lse
    lost = judged & exact.lse.isnan() & ~lse.isnan()
    assert not lost.any(), f"lse: {lse[lost][0]} at {_first(lost)}, where a NaN is seen"
    judged &= ~exact.lse.isnan()
    wrong = judged & ((lse == -math.inf) != (exact.lse == -math.inf))
    assert not wrong.any(), f"lse: {lse[wrong][0]} at {_first(wrong)}: {exact.lse[wrong][0]}"
    judged &= exact.lse.isfinite()
    wide = torch.promote_types(call.q.dtype, torch.float32)
    # a logarithm's error is absolute: one of 4 * eps changes no weight by more than that
    _within("lse", call, lse, exact.lse, judged, "lse", wide, least=4.0)


def _within(
    name: str,
    call: Call,
    actual: Tensor,
    exact: Tensor,
    judged: Tensor,
    field: str,
    dtype: torch.dtype,
    least: float = 0.0,
) -> None:
    """Fail unless every judged element is within the error budget of `flashasc.testing`."""
    if not judged.any():
        return
    errors = (actual.double() - exact).abs()
    worst = errors[judged].max().item()
    if dtype == torch.float64:
        # the oracle is no more exact itself
        budget = 1e-11 * (least + exact[judged].abs().max().item())
        # every weight inherits the rounding of its score
        budget += 1e-13 * _score_size(call) * exact[judged].abs().max().item()
        budget += torch.finfo(dtype).smallest_normal
        assert worst <= budget, f"{name}: error {worst:.3g} is over {budget:.3g}"
        return
    budget = 0.0
    weights_as: Rounding | None = None
    if call.options["precision"] == "standard" and dtype.itemsize == 2:
        # what this level is documented to be, and less exact than eager where weights are alike
        dtype, weights_as = torch.float32, _rounded(dtype)
    # sums are float32, and weights: subnormal ones may be flushed to 0, as GPUs do
    flushed = torch.finfo(torch.float32).smallest_normal
    if field == "out":
        finite = call.v[call.v.isfinite()].double().abs()
        flushed *= 1.0 + finite.sum().item()
    wider = actual.dtype.itemsize > dtype.itemsize
    for step in range(2 * _ORDERS if wider else _ORDERS):
        order = step % _ORDERS
        if step == _ORDERS:
            # 16-bit inputs, a float32 result: rounding its own to 16 bits hides eager's errors
            # where the exact result is a 16-bit number, such as that of a constant V
            high = call.options["precision"] == "high"
            dtype, weights_as = actual.dtype, _in_two_terms(call.q.dtype) if high else None
        if order == _IN_PAIRS and dtype.itemsize == 2:
            # no kernel adds up in 16 bits: two ways of it differ by more than tells anything
            continue
        # how much the largest error of one order of adding up tells is a matter of luck
        generator = None if order == 0 else torch.Generator().manual_seed(order)
        eager: Any = getattr(expected(call, dtype, generator, weights_as), field)
        safe = judged & eager.isfinite()
        if not torch.equal(safe, judged):
            # 16-bit scores or values overflow where ours do not
            if field == "out" and dtype.itemsize == 2:
                high = call.options["precision"] == "high"
                weights_as = _in_two_terms(dtype) if high else _rounded(dtype)
            dtype = torch.float32
            continue
        found = error_budget(exact[safe], eager[safe], actual.dtype, least=least)
        budget = max(budget, found + flushed)
        if worst <= budget:
            return
    where = _first(judged & (errors == worst))
    raise AssertionError(
        f"{name}: error {worst:.3g} at {where} is over the budget {budget:.3g}: got "
        f"{actual[where].item()!r}, exact {exact[where].item()!r}; hostile: {call.hostile}"
    )


def _rounded(dtype: torch.dtype) -> Rounding:
    """Weights of 16 bits, as levels below "high" multiply them."""
    return lambda weights: weights.to(dtype)


def _in_two_terms(dtype: torch.dtype) -> Rounding:
    """Weights that are the sum of two numbers of 16 bits, as "high" multiplies them."""

    def split(weights: Tensor) -> Tensor:
        first = weights.to(dtype).to(weights.dtype)
        return first + (weights - first).to(dtype).to(weights.dtype)

    return split


def _score_size(call: Call) -> float:
    q, k = (x[x.isfinite()] for x in (call.q, call.k))
    largest = q.abs().max() * k.abs().max() * call.q.shape[-1] if q.numel() and k.numel() else 0.0
    return 1.0 + float(largest) * abs(call.options.get("scale") or 1.0)


def _first(where: Tensor) -> tuple[int, ...]:
    return tuple(where.nonzero()[0].tolist())

"""Inputs that break things: one seeded generator for each way to go wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor


class Inputs(NamedTuple):
    """Tensors of one call, in the case's layout and dtype."""

    q: Tensor
    k: Tensor
    v: Tensor


@dataclass(frozen=True)
class Case:
    """Sizes and options of one attention call; a row of a test's or a benchmark's table."""

    B: int = 1
    Hq: int = 2
    Hk: int | None = None
    """Key/value heads; None: as many as query heads."""
    Sq: int = 64
    Sk: int = 64
    D: int = 64
    Dv: int | None = None
    """Size of a value; None: D."""
    dtype: torch.dtype = torch.float32
    layout: Literal["BNSD", "BSND"] = "BNSD"
    causal: bool = False
    causal_align: Literal["bottom_right", "top_left"] = "bottom_right"
    scale: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options of `flashasc.attention`, `exact_attention` and the like."""
        return {
            "layout": self.layout,
            "causal": self.causal,
            "causal_align": self.causal_align,
            "scale": self.scale,
        }

    def but(self, **changes: Any) -> Case:
        """The same case with some fields changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        """A name fit for a test id: sizes first, then what is not the default."""
        heads = f"{self.Hq}" if self.Hk in (None, self.Hq) else f"{self.Hq}over{self.Hk}"
        head = f"{self.D}" if self.Dv in (None, self.D) else f"{self.D}to{self.Dv}"
        words = [
            f"{self.B}x{heads}x{self.Sq}x{self.Sk}x{head}",
            str(self.dtype).removeprefix("torch."),
        ]
        if self.layout != "BNSD":
            words.append(self.layout)
        if self.causal:
            words.append("causal" if self.causal_align == "bottom_right" else "topleft")
        if self.scale is not None:
            words.append(f"scale{self.scale:g}")
        return "-".join(words)


def normal(case: Case, seed: int = 0, device: str | torch.device = "cpu") -> Inputs:
    """q, k and v from a standard normal distribution, the same numbers on every device."""
    return _finish(*_draw(case, seed), case, device)


def positive(case: Case, seed: int = 0, device: str | torch.device = "cpu") -> Inputs:
    """q and k normal, v uniform in [0, 1): a plain running sum drifts, nothing cancels."""
    q, k, v, generator = _draw_with(case, seed)
    return _finish(q, k, torch.rand(v.shape, generator=generator), case, device)


def sink(
    case: Case,
    seed: int = 0,
    device: str | torch.device = "cpu",
    *,
    nats: float = 100.0,
    key: int = 0,
) -> Inputs:
    """Normal, but every query scores `key` about `nats` above the others: one key takes the row.

    The first column of q and k is used for that; the others are scaled down, so that their scores
    vary by no more than a few nats.
    """
    q, k, v = _draw(case, seed)
    scale = case.D**-0.5 if case.scale is None else case.scale
    step = math.sqrt(nats / abs(scale))
    q[..., 0] = step
    k[..., 0] = 0.0
    k[:, :, key, 0] = math.copysign(step, scale)
    return _finish(q, k, v, case, device)


def rising(
    case: Case, seed: int = 0, device: str | torch.device = "cpu", *, log2_units: float = 1.0
) -> Inputs:
    """Scores that rise evenly from the first key to the last, by about `log2_units` in all.

    Every tile of keys has a new maximum, so a running softmax is rescaled at every step. Rows rise
    by up to a tenth more, so that no two rows are alike; v is uniform in [0, 1).
    """
    q, k, v, generator = _draw_with(case, seed)
    scale = case.D**-0.5 if case.scale is None else case.scale
    stretch = 1.0 + 0.1 * torch.rand(*q.shape[:3], 1, generator=generator)
    q = torch.ones_like(q) * stretch
    ramp = torch.linspace(0.0, log2_units * math.log(2.0) / (scale * case.D), case.Sk)
    k = ramp[:, None].expand_as(k)
    return _finish(q, k, torch.rand(v.shape, generator=generator), case, device)


def ill_conditioned(
    case: Case, seed: int = 0, device: str | torch.device = "cpu", *, condition: float = 1e5
) -> Inputs:
    """Equal weights over values that nearly cancel: sum(|v|) is about `condition` * |sum(v)|.

    Each value has its opposite at another key, plus a little. Every term and every partial sum is
    about `condition` times as large as the result.
    """
    q, k, v, generator = _draw_with(case, seed)
    half = case.Sk // 2
    order = torch.randperm(half, generator=generator)
    v[:, :, half : 2 * half] = -v[:, :, :half][:, :, order]
    return _finish(torch.zeros_like(q), k, v + 1.0 / condition, case, device)


INPUTS: dict[str, Callable[..., Inputs]] = {
    "normal": normal,
    "positive": positive,
    "sink": sink,
    "rising": rising,
    "ill_conditioned": ill_conditioned,
}
"""The generators by name."""


def cut_from_nan(tensor: Tensor, dim: int, before: int = 0, after: int = 0) -> Tensor:
    """An equal tensor that is a view of a larger one, whose remainder along `dim` is NaN.

    Whoever reads outside the view gets a NaN; whoever multiplies it by 0 keeps it.
    """
    shape = list(tensor.shape)
    shape[dim] += before + after
    buffer = tensor.new_full(shape, math.nan)
    view = buffer.narrow(dim, before, tensor.shape[dim])
    view.copy_(tensor)
    return view


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill every uninitialised tensor made inside with NaN, so that what is never written shows."""
    before = torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    fill = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn)
        settings.fill_uninitialized_memory = fill


def _draw_with(case: Case, seed: int) -> tuple[Tensor, Tensor, Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    Hk = case.Hq if case.Hk is None else case.Hk
    Dv = case.D if case.Dv is None else case.Dv
    q = torch.randn(case.B, case.Hq, case.Sq, case.D, generator=generator)
    k = torch.randn(case.B, Hk, case.Sk, case.D, generator=generator)
    v = torch.randn(case.B, Hk, case.Sk, Dv, generator=generator)
    return q, k, v, generator


def _draw(case: Case, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return _draw_with(case, seed)[:3]


def _finish(q: Tensor, k: Tensor, v: Tensor, case: Case, device: str | torch.device) -> Inputs:
    if case.layout == "BSND":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return Inputs(*(x.to(device, case.dtype).contiguous() for x in (q, k, v)))

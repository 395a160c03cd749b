"""Attention in plain PyTorch: the same algorithm as the kernels, on any device.

Works in float32, and in float64 for float64 input: 16-bit tiles are widened before they are
multiplied, so a product of two of them is exact. Its memory beyond input and output is a tile of
scores, O(Sq * tile), never O(Sq * Sk), forward and backward.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ._problem import AttentionProblem

KEYS_PER_TILE = 512
SCORES_PER_TILE = 1 << 20
"""Scores held at once, over batch and heads: 4 MiB in float32, about what a CPU cache holds."""


def attention_fwd(
    q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem
) -> tuple[Tensor, Tensor]:
    """Attention output and log-sum-exp, a tile of queries and a tile of keys at a time.

    Args:
        q: [B, Hq, Sq, D] any strides.
        k: [B, Hk, Sk, D] any strides.
        v: [B, Hk, Sk, Dv] any strides.
        problem: the facts of the call.

    Returns:
        (out, lse): [B, Hq, Sq, Dv] and [B, Hq, Sq], contiguous, both in the working dtype; lse in
        natural-log units.

    Source: Milakov, Gimelshein, arXiv:1805.02867 (2018); Kahan, CACM 8 (1965), 40.
    """
    working = working_dtype(problem.dtype)
    out = q.new_zeros(problem.B, problem.Hq, problem.Sq, problem.Dv, dtype=working)
    lse = q.new_full((problem.B, problem.Hq, problem.Sq), -math.inf, dtype=working)
    if problem.empty:
        return out, lse
    scale_log2 = problem.scale * math.log2(math.e)
    with _full_precision_products(problem.device):
        for rows in _row_tiles(problem):
            q_tile = _grouped(q[:, :, rows], problem).to(working)
            state = _State(q_tile, problem)
            for keys in _key_tiles(problem, rows):
                k_tile = k[:, :, keys].to(working)
                v_tile = v[:, :, keys].to(working)
                scores = (q_tile @ k_tile.mT).mul_(scale_log2)
                _hide(scores, rows, keys, problem)
                state.update(scores, v_tile)
            out_tile, lse_tile = state.finalize()
            out[:, :, rows] = out_tile.unflatten(2, (problem.group, -1)).flatten(1, 2)
            lse[:, :, rows] = lse_tile.unflatten(2, (problem.group, -1)).flatten(1, 2)
    return out, lse


def attention_bwd(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    problem: AttentionProblem,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, from scores computed again a tile of keys at a time.

    Args:
        grad_out, out: [B, Hq, Sq, Dv].
        grad_lse, lse: [B, Hq, Sq], natural-log units; grad_lse may be None.
        q, k, v, problem: as in the forward pass.

    Returns:
        (dq, dk, dv): contiguous [B, H, S, D] in the input's dtype. A row that saw nothing has
        gradient 0.

    Source: Dao, arXiv:2307.08691 (2023), algorithm 2.
    """
    working = working_dtype(problem.dtype)
    dq = torch.zeros(q.shape, dtype=working, device=q.device)
    dk = torch.zeros(k.shape, dtype=working, device=q.device)
    dv = torch.zeros(v.shape, dtype=working, device=q.device)
    if problem.empty:
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
    # a row that saw nothing passes nothing on, whatever it holds: 0 * NaN would
    blind = (lse == -math.inf)[..., None]
    q, grad_out, out = (x.to(working).masked_fill(blind, 0.0) for x in (q, grad_out, out))
    # softmax's Jacobian: ds = p * (dp - delta), and an lse gradient enters as p * grad_lse
    delta = (grad_out * out).sum(-1, keepdim=True)
    if grad_lse is not None:
        delta = delta - grad_lse.to(working)[..., None].masked_fill(blind, 0.0)
    with _full_precision_products(problem.device):
        for rows in _row_tiles(problem):
            q_tile, grad_tile, delta_tile = (
                _grouped(x[:, :, rows], problem) for x in (q, grad_out, delta)
            )
            row_max, row_sum = _row_statistics(q_tile, k, rows, problem)
            dq_tile = torch.zeros_like(q_tile)
            for keys in _key_tiles(problem, rows):
                k_tile = k[:, :, keys].to(working)
                v_tile = v[:, :, keys].to(working)
                scores = _scores(q_tile, k_tile, rows, keys, problem)
                weights = scores.sub_(row_max).exp_().div_(row_sum)
                dv[:, :, keys] += weights.mT @ grad_tile
                ds = (grad_tile @ v_tile.mT).sub_(delta_tile).mul_(weights).mul_(problem.scale)
                dq_tile += ds @ k_tile
                dk[:, :, keys] += ds.mT @ q_tile
            dq[:, :, rows] = dq_tile.unflatten(2, (problem.group, -1)).flatten(1, 2)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which sums are kept: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class _State:
    """Running softmax of a tile of query rows; the kernels' counterpart is `blocks.softmax`."""

    def __init__(self, q_tile: Tensor, problem: AttentionProblem) -> None:
        rows = q_tile.shape[:-1]
        self.dtype = problem.dtype
        # weights of 16 bits are rounded relative to the row maximum; others have a whole-number
        # pivot, so that a rescale is an exact power of two
        self.rounded = problem.dtype.itemsize == 2
        self.compensated = problem.precision == "compensated"
        self.separate_lse = self.compensated and self.rounded
        self.pivot = q_tile.new_full(rows, -math.inf)
        # (sum, compensation) pairs: of the weights as multiplied, as they were, and of the output
        self.row_sum = self.lse_sum = (q_tile.new_zeros(rows), q_tile.new_zeros(rows))
        out_shape = (*rows, problem.Dv)
        self.acc = (q_tile.new_zeros(out_shape), q_tile.new_zeros(out_shape))

    def update(self, scores: Tensor, v_tile: Tensor) -> None:
        """Fold one tile of keys in; scores [..., M, N] are in log2 units and are overwritten."""
        candidate = scores.amax(-1)
        if not self.rounded:
            candidate = candidate.ceil_()
        elif self.dtype == torch.float16:
            # not from 2**24 on: there the difference is rounded, and weights may exceed 65504
            candidate = torch.where(candidate.abs() < 2.0**24, candidate - 14, candidate)
        pivot = torch.maximum(self.pivot, candidate)
        base = torch.where(pivot == -math.inf, 0.0, pivot)
        rescale = self.pivot - base
        rescale = torch.exp2(rescale) if self.rounded else _power_of_two(rescale)
        self.pivot = pivot

        weights = scores.sub_(base[..., None]).exp2_()
        factors = weights.to(self.dtype).to(weights.dtype) if self.rounded else weights
        summed = factors if self.compensated else weights
        self.row_sum = self._add(self.row_sum, rescale, summed.sum(-1))
        if self.separate_lse:
            self.lse_sum = self._add(self.lse_sum, rescale, weights.sum(-1))
        self.acc = self._add(self.acc, rescale[..., None], factors @ v_tile)

    def _add(
        self, pair: tuple[Tensor, Tensor], rescale: Tensor, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        acc, comp = pair
        acc = acc * rescale
        if not self.compensated:
            return acc.add_(x), comp
        x = x.add_(comp * rescale)
        total = acc + x
        comp = x.sub_(acc.sub_(total).neg_())
        # comp is not finite only where total is not either: kept, inf - inf would turn an honest
        # infinity into NaN on the next step
        return total, comp.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def finalize(self) -> tuple[Tensor, Tensor]:
        divisor = self.row_sum[0] + self.row_sum[1]
        empty = divisor == 0
        out = (self.acc[0] + self.acc[1]) / torch.where(empty, 1.0, divisor)[..., None]
        total = self.lse_sum[0] + self.lse_sum[1] if self.separate_lse else divisor
        lse = self.pivot * math.log(2.0) + torch.where(empty, 1.0, total).log()
        return out.masked_fill_(empty[..., None], 0.0), lse.masked_fill_(empty, -math.inf)


def _row_statistics(
    q_tile: Tensor, k: Tensor, rows: slice, problem: AttentionProblem
) -> tuple[Tensor, Tensor]:
    """Largest score of each row and its sum of exp(score - largest), both [..., M, 1].

    Computed again rather than taken from the saved log-sum-exp: that is rounded, and where scores
    are large its rounding would be a factor on every weight.
    """
    row_max = q_tile.new_full((*q_tile.shape[:-1], 1), -math.inf)
    row_sum = torch.zeros_like(row_max)
    for keys in _key_tiles(problem, rows):
        scores = _scores(q_tile, k[:, :, keys].to(q_tile.dtype), rows, keys, problem)
        raised = torch.maximum(row_max, scores.amax(-1, keepdim=True))
        base = torch.where(raised == -math.inf, 0.0, raised)
        tile_sum = scores.sub_(base).exp_().sum(-1, keepdim=True)
        row_sum = row_sum * (row_max - base).exp() + tile_sum
        row_max = raised
    # rows that saw nothing: weights exp(-inf - 0) / 1
    empty = row_sum == 0
    return torch.where(empty, 0.0, row_max), torch.where(empty, 1.0, row_sum)


def _scores(
    q_tile: Tensor, k_tile: Tensor, rows: slice, keys: slice, problem: AttentionProblem
) -> Tensor:
    """Scaled scores in natural-log units, -inf where a row may not see a key."""
    scores = (q_tile @ k_tile.mT).mul_(problem.scale)
    _hide(scores, rows, keys, problem)
    return scores


def _row_tiles(problem: AttentionProblem) -> Iterator[slice]:
    heads = problem.B * problem.Hq
    size = max(64, SCORES_PER_TILE // (heads * min(KEYS_PER_TILE, problem.Sk)))
    for start in range(0, problem.Sq, size):
        yield slice(start, min(start + size, problem.Sq))


def _key_tiles(problem: AttentionProblem, rows: slice) -> Iterator[slice]:
    """Tiles of the keys that some row sees, anchored at key 0."""
    end = problem.Sk
    if problem.causal:
        end = min(max(rows.stop + problem.diagonal, 0), end)
    for start in range(0, end, KEYS_PER_TILE):
        yield slice(start, min(start + KEYS_PER_TILE, end))


def _hide(scores: Tensor, rows: slice, keys: slice, problem: AttentionProblem) -> None:
    """Write -inf where a row may not see a key; scores are [B, Hk, group * rows, keys]."""
    if not problem.causal or keys.stop <= rows.start + problem.diagonal + 1:
        return
    offs_m = torch.arange(rows.start, rows.stop, device=scores.device)
    offs_n = torch.arange(keys.start, keys.stop, device=scores.device)
    hidden = offs_n > offs_m[:, None] + problem.diagonal
    scores.unflatten(2, (problem.group, -1)).masked_fill_(hidden, -math.inf)


def _grouped(x: Tensor, problem: AttentionProblem) -> Tensor:
    """[B, Hq, M, C] -> [B, Hk, group * M, C]: query heads that share keys, one below the other."""
    grouped: Tensor = x.unflatten(1, (problem.Hk, problem.group)).flatten(2, 3)
    return grouped


def _power_of_two(exponent: Tensor) -> Tensor:
    """Exactly 2**exponent for whole numbers <= 0; 0 below the normal range."""
    if exponent.dtype == torch.float64:
        return ((exponent.clamp(-1023, 0).to(torch.int64) + 1023) << 52).view(torch.float64)
    return ((exponent.clamp(-127, 0).to(torch.int32) + 127) << 23).view(torch.float32)


@contextmanager
def _full_precision_products(device: torch.device) -> Iterator[None]:
    """Products in the dtype of their factors, whatever shortcut is allowed elsewhere.

    Autocast would make 16-bit products of float32 tiles, and TF32 or bfloat16 ones are allowed by
    process-wide settings: those are set aside until the last thread in here has left.
    """
    with torch.autocast(device.type, enabled=False):
        with _settings.lock:
            if _settings.users == 0:
                _settings.put_aside()
            _settings.users += 1
        try:
            yield
        finally:
            with _settings.lock:
                _settings.users -= 1
                if _settings.users == 0:
                    _settings.put_back()


class _ProductSettings:
    """PyTorch's settings of how float32 matrices are multiplied, per library."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.before: list[tuple[Any, str]] = []

    def put_aside(self) -> None:
        # read and written per library: the older torch.get_float32_matmul_precision raises once
        # somebody has used these
        libraries: tuple[Any, ...] = (
            torch.backends.cuda.matmul,
            torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
        )
        self.before = [(library, library.fp32_precision) for library in libraries]
        for library, setting in self.before:
            if setting != "ieee":
                library.fp32_precision = "ieee"

    def put_back(self) -> None:
        for library, setting in self.before:
            if setting != "ieee":
                library.fp32_precision = setting


_settings = _ProductSettings()

"""The calls that `bench.tune` makes: which problems a row of the tile table is tried on.

A row serves causal and full attention, dense and packed alike. A window may have a row of its own.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from flashasc._configs import TileConfig
from flashasc._problem import AttentionProblem, Extras, Precision, attention_problem
from flashasc._target import target_of

from .cases import AttentionCase, long_tailed
from .gate import AttentionInputs, Expected, expected_attention
from .long_rows import attention_float64

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LONG_KEYS, LONG_QUERIES = 1 << 20, 128
WINDOW = 1024
"""Keys that a query sees, the last of them its own."""
COMPILED_LENGTH = 2048
"""From so many keys on they are read by descriptor, which is another kernel."""


@dataclass(frozen=True)
class Kind:
    """What one row of the table serves, and the problem that it is timed on."""

    dtype: str
    D: int
    precision: Precision
    length: int = 8192
    heads: int = 32
    call: Literal["dense", "packed", "window"] = "dense"
    """packed: `length` tokens in all, of a long-tailed distribution. window: four heads share keys.
    """

    @property
    def masks(self) -> dict[str, bool]:
        """What is timed, by name: causal or not."""
        return {"causal": True} if self.call == "window" else {"causal": True, "full": False}

    def case(self, *, causal: bool, small: bool = False) -> AttentionCase:
        """The call; small: as short as it may be to need the same kernel."""
        S, heads = (COMPILED_LENGTH, 4) if small else (self.length, self.heads)
        return AttentionCase(
            "tune", 1, heads, heads // 4 if self.call == "window" else heads, S, S, self.D,
            DTYPES[self.dtype], causal, WINDOW - 1 if self.call == "window" else None,
            () if self.call != "packed" else (S,) if small else long_tailed(S),
        )  # fmt: skip


def inputs(case: AttentionCase, device: str, seed: int = 0) -> AttentionInputs:
    """q, k normal and v uniform in [0, 1): [1, H, S, D], packed [tokens, H, D]."""
    torch.manual_seed(seed)
    shapes = ((case.Hq, case.Sq), (case.Hk, case.Sk), (case.Hk, case.Sk))
    q, k, v = (
        draw(*((S, H) if case.lengths else (1, H, S)), case.D, device=device).to(case.dtype)
        for draw, (H, S) in zip((torch.randn, torch.randn, torch.rand), shapes)
    )
    ends = torch.tensor([0, *case.lengths]).cumsum(0).to(device, torch.int32)
    return AttentionInputs(q, k, v, ends if case.lengths else None)


def problem_of(
    case: AttentionCase,
    precision: Precision,
    given: AttentionInputs,
    out_dtype: torch.dtype | None = None,
) -> tuple[tuple[Tensor, Tensor, Tensor], AttentionProblem, Extras]:
    """Views of q, k and v as the launcher takes them, and the facts of the call."""
    q, k, v = (x.transpose(0, 1) if case.lengths else x for x in given[:3])
    extras = Extras(cu_seqlens_q=given.cu_seqlens, cu_seqlens_k=given.cu_seqlens)
    longest = max(case.lengths, default=None)
    problem = attention_problem(
        q, k, v, extras, scale=1 / math.sqrt(case.D), softcap=None, causal=case.causal,
        bottom_right=True, window_left=case.window, window_right=None,
        layout="TND" if case.lengths else "BNSD", precision=precision,
        out_dtype=out_dtype or q.dtype,
        with_lse=False, max_seqlen_q=longest, max_seqlen_k=longest,
    )  # fmt: skip
    return (q, k, v), problem, extras


def launch(
    case: AttentionCase, precision: Precision, row: TileConfig, given: AttentionInputs, out: Tensor
) -> None:
    """Attention by a row that need not be in the table."""
    from flashasc.kernels.attention_launch import launch_attention_fwd

    views, problem, extras = problem_of(case, precision, given, out.dtype)
    out = out.transpose(0, 1) if case.lengths else out
    target = target_of(out.device)
    launch_attention_fwd(*views, out, None, problem, extras, row, target, "device")


@functools.lru_cache(maxsize=8)
def problem_and_result(
    kind: Kind, causal: bool, seed: int, device: str = "cuda"
) -> tuple[AttentionInputs, Expected]:
    """Inputs of a kind, and what the result must be; the precision does not count."""
    case = kind.case(causal=causal)
    given = inputs(case, device, seed)
    return given, expected_attention(case, given)


def long_row(kind: Kind, row: TileConfig) -> dict[str, float]:
    """Error of the output of queries that see 1 048 576 keys: in float32, and as rounded."""
    (q, k, v), exact = _long_rows(kind.dtype, kind.D)
    case = AttentionCase("tune", 1, 1, 1, LONG_QUERIES, LONG_KEYS, kind.D, DTYPES[kind.dtype])
    out, whole = torch.empty_like(q), torch.empty_like(q, dtype=torch.float32)
    for result in (out, whole):
        launch(case, kind.precision, row, AttentionInputs(q, k, v, None), result)
    return {
        "long_row_error": float((whole - exact).norm() / exact.norm()),
        "long_row_correct": float((out == exact.to(out.dtype)).double().mean()),
    }


@functools.lru_cache(maxsize=4)
def _long_rows(dtype: str, D: int) -> tuple[list[Tensor], Tensor]:
    case = AttentionCase("tune", 1, 1, 1, LONG_QUERIES, LONG_KEYS, D, DTYPES[dtype])
    given: Any = inputs(case, "cuda", 1)[:3]
    return list(given), attention_float64(*given)[0]

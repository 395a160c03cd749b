"""What is measured: one table of cases, which the suites time and the tests run small.

Sizes are those at which a large GPU or NPU is full; `small()` is the same call at a size that a CPU
answers at once, and `CPU` rows are what the suites time there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

Bound = Literal["flops", "bytes"]
"""Which roof a case runs under: the rate of matrix products or the bandwidth of a copy."""

FLOAT32, FLOAT16, BFLOAT16 = torch.float32, torch.float16, torch.bfloat16


@dataclass(frozen=True)
class AttentionCase:
    """One forward call of attention."""

    name: str
    B: int = 1
    Hq: int = 16
    Hk: int = 16
    Sq: int = 1
    Sk: int = 1
    D: int = 128
    dtype: torch.dtype = BFLOAT16
    causal: bool = False
    window: int | None = None
    """Keys before its own that a query sees; None: all."""
    lengths: tuple[int, ...] = ()
    """Packed sequences, queries as many as keys; B, Sq and Sk are not used then."""
    page: int = 0
    """Keys of a page of the cache that is decoded from; 0: in one piece."""

    @property
    def decode(self) -> bool:
        """Whether one new token of each sequence attends to a cache."""
        return self.Sq == 1 and not self.lengths

    @property
    def bound(self) -> Bound:
        """Decoding reads a cache once; everything else multiplies."""
        return "bytes" if self.decode else "flops"

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """(queries, keys) of each sequence."""
        return tuple((n, n) for n in self.lengths) or ((self.Sq, self.Sk),) * self.B

    @property
    def keys(self) -> int:
        """The most keys of a sequence."""
        return max(Sk for _, Sk in self.sequences)

    @property
    def options(self) -> dict[str, Any]:
        """Options of `flashasc.attention` that say who sees whom."""
        window = None if self.window is None else (self.window, None)
        return {"causal": self.causal, "window": window}

    def flops(self) -> int:
        """Operations that the definition needs: two products of every query with what it sees."""
        pairs = sum(self._pairs(Sq, Sk) for Sq, Sk in self.sequences)
        return 4 * self.D * self.Hq * pairs

    def moved(self) -> int:
        """Bytes that must be read or written at least once."""
        per_token = sum(2 * Sq * self.Hq + 2 * Sk * self.Hk for Sq, Sk in self.sequences)
        return per_token * self.D * self.dtype.itemsize

    def seen(self, i: int, Sq: int, Sk: int) -> range:
        """Keys that query i of a sequence sees; the last query is aligned with the last key."""
        at = i + Sk - Sq
        first = 0 if self.window is None else max(0, at - self.window)
        return range(first, at + 1 if self.causal else Sk)

    def _pairs(self, Sq: int, Sk: int) -> int:
        if not self.causal and self.window is None:
            return Sq * Sk
        return sum(len(self.seen(i, Sq, Sk)) for i in range(Sq))

    def small(self) -> AttentionCase:
        """The same kind of call: dtype, head size, groups and options, few and short sequences."""
        group = self.Hq // self.Hk
        Hk = min(2, self.Hk)
        longest = max(self.lengths, default=1)
        return replace(
            self,
            B=min(2, self.B),
            Hq=group * Hk,
            Hk=Hk,
            Sq=1 if self.Sq == 1 else 140,
            Sk=384 if self.decode else 140,
            window=None if self.window is None else 40,
            lengths=tuple(max(1, n * 140 // longest) for n in self.lengths[:5]),
        )


@dataclass(frozen=True)
class GemmCase:
    """One matrix product, [M, K] by [K, N]."""

    name: str
    M: int
    N: int
    K: int
    dtype: torch.dtype = BFLOAT16
    bound: ClassVar[Bound] = "flops"

    def flops(self) -> int:
        """Operations of the product."""
        return 2 * self.M * self.N * self.K

    def moved(self) -> int:
        """Bytes that must be read or written at least once."""
        numbers = self.M * self.K + self.K * self.N + self.M * self.N
        return numbers * self.dtype.itemsize

    def small(self) -> GemmCase:
        """The same kind of product, of sizes that are no multiple of a tile."""
        return replace(self, M=min(self.M, 70), N=min(self.N, 90), K=300)


Reduced = Literal["sum", "var", "logsumexp", "softmax", "rms_norm", "layer_norm"]


@dataclass(frozen=True)
class ReductionCase:
    """One reduction or norm of [rows, columns] along the columns."""

    name: str
    op: Reduced
    rows: int
    columns: int
    dtype: torch.dtype = BFLOAT16
    bound: ClassVar[Bound] = "bytes"

    @property
    def keeps_shape(self) -> bool:
        """Whether as much is written as read."""
        return self.op in ("softmax", "rms_norm", "layer_norm")

    def flops(self) -> int:
        """An operation a number: never what bounds it."""
        return self.rows * self.columns

    def moved(self) -> int:
        """Bytes that must be read or written at least once."""
        numbers = self.rows * self.columns
        written = numbers if self.keeps_shape else self.rows
        return (numbers + written) * self.dtype.itemsize

    def small(self) -> ReductionCase:
        """The same kind of call, of a length that is no multiple of a tile."""
        return replace(self, rows=min(self.rows, 7), columns=min(self.columns, 3001))


def long_tailed(tokens: int, seed: int = 0) -> tuple[int, ...]:
    """Lengths of packed sequences, log-normal about 800 tokens: many short ones, a few long."""
    draw, lengths = random.Random(seed), list[int]()
    while (left := tokens - sum(lengths)) > 0:
        lengths.append(min(left, max(16, int(draw.lognormvariate(6.7, 1.1)))))
    return tuple(lengths)


def _prefill(D: int, Hq: int, S: int, causal: bool, B: int | None = None) -> AttentionCase:
    name = f"prefill-d{D}-{S // 1024}k-{'causal' if causal else 'full'}"
    return AttentionCase(name, B or max(1, (1 << 14) // S), Hq, Hq, S, S, D, causal=causal)


K = 1024
_GROUPED = AttentionCase("gqa-32k-causal", 1, 32, 8, 32 * K, 32 * K, causal=True)
_DECODE = AttentionCase("decode-b32-32k", 32, 32, 8, Sk=32 * K)
_PACKED = AttentionCase("packed-full", lengths=long_tailed(64 * K))

# names: a case without a mask is "full", so that `-k causal` finds the causal ones alone
ATTENTION = (
    *(_prefill(128, 16, S * K, causal) for S in (4, 8, 16, 32) for causal in (False, True)),
    *(_prefill(64, 32, 8 * K, causal) for causal in (False, True)),
    *(_prefill(256, 8, 8 * K, causal) for causal in (False, True)),
    replace(_prefill(64, 32, 8 * K, causal=False), name="prefill-f32-d64-8k-full", dtype=FLOAT32),
    AttentionCase("ungrouped-8k-causal", 1, 32, 32, 8 * K, 8 * K, causal=True),
    AttentionCase("gqa-8k-causal", 1, 32, 8, 8 * K, 8 * K, causal=True),
    _GROUPED,
    replace(_GROUPED, name="window1024-32k-causal", window=K - 1),
    _PACKED,
    replace(_PACKED, name="packed-causal", causal=True),
    *(_prefill(128, 8, 128 * K, causal) for causal in (False, True)),
    _DECODE,
    replace(_DECODE, name="decode-b32-32k-paged", page=128),
    replace(_DECODE, name="decode-b8-32k", B=8),
    replace(_DECODE, name="decode-b1-32k", B=1),
    replace(_DECODE, name="decode-b1-128k", B=1, Sk=128 * K),
)  # fmt: skip

ATTENTION_CPU = (
    *(AttentionCase(f"prefill-d64-{S}-{'causal' if causal else 'full'}", 1, 4, 4, S, S, 64, FLOAT32,
                    causal)
      for S, causal in ((256, False), (1024, False), (1024, True))),
    AttentionCase("prefill-f16-d128-512-causal", 1, 4, 4, 512, 512, 128, FLOAT16, True),
    AttentionCase("gqa-512-causal", 1, 8, 2, 512, 512, 64, FLOAT16, True),
    AttentionCase("window64-512-causal", 1, 4, 4, 512, 512, 64, FLOAT16, True, window=63),
    AttentionCase("packed-causal", 1, 4, 4, 1, 1, 64, FLOAT16, True, lengths=(37, 400, 5, 150)),
    AttentionCase("decode-b2-2k", 2, 8, 2, 1, 2 * K, 64, FLOAT16),
)  # fmt: skip

GEMM = (
    GemmCase("square-8k", 8 * K, 8 * K, 8 * K),
    GemmCase("square-4k", 4 * K, 4 * K, 4 * K),
    GemmCase("square-4k-f16", 4 * K, 4 * K, 4 * K, FLOAT16),
    GemmCase("tall-64k", 64 * K, 4 * K, 4 * K),
    GemmCase("long-k-128k", 2 * K, 2 * K, 128 * K),
    GemmCase("square-4k-f32", 4 * K, 4 * K, 4 * K, FLOAT32),
)

GEMM_CPU = (
    GemmCase("square-256-f32", 256, 256, 256, FLOAT32),
    GemmCase("long-k-16k-f32", 64, 64, 16 * K, FLOAT32),
)

REDUCTIONS = (
    ReductionCase("sum-1e9", "sum", 1, 10**9, FLOAT32),
    ReductionCase("sum-rows-8k", "sum", 122_070, 8 * K, FLOAT32),
    ReductionCase("var-rows-8k", "var", 122_070, 8 * K, FLOAT32),
    ReductionCase("logsumexp-rows-8k", "logsumexp", 64 * K, 8 * K),
    ReductionCase("softmax-8k", "softmax", 64 * K, 8 * K),
    ReductionCase("rms-norm-8k", "rms_norm", 64 * K, 8 * K),
    ReductionCase("layer-norm-8k", "layer_norm", 64 * K, 8 * K),
)

REDUCTIONS_CPU = (
    ReductionCase("sum-1e6", "sum", 1, 10**6, FLOAT32),
    ReductionCase("softmax-1k", "softmax", 256, K, FLOAT16),
    ReductionCase("rms-norm-1k", "rms_norm", 256, K, FLOAT16),
)

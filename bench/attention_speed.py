"""Speed of attention's forward pass on a GPU, beside other implementations, in one run.

    python -m bench.attention_speed [--quick] [--match REGEX] [--output FILE.json]

Each result is checked against float64 on a sample of rows before it is timed; a wrong one is not
timed. Times are medians of `triton.testing.do_bench`, which empties the L2 cache before each call.
FlashAttention-3 takes part where `fa3_fwd` (PyPI) or `flash_attn_interface` can be imported.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashasc

from .machine import facts

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-20}
"""Largest relative error of an output: one rounding of it and of its weights."""

SAMPLE = 64
"""Rows on which a result is checked: the last ones of the first head."""

BACKENDS = {
    "FlashAttention-2": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@dataclass(frozen=True)
class Case:
    """One problem: `tokens` in all, so that the machine is full at every length."""

    dtype: str
    D: int
    length: int
    causal: bool
    Hq: int = 16
    Hk: int = 16
    tokens: int = 16384
    window: int | None = None

    @property
    def batch(self) -> int:
        """Sequences."""
        return max(1, self.tokens // self.length)

    @property
    def products(self) -> float:
        """Multiplications and additions of both products, over the keys that are seen."""
        seen = self.length**2 / (2 if self.causal else 1)
        if self.window is not None:
            seen = self.length * (self.window + 1) - self.window * (self.window + 1) / 2
        return 4.0 * self.batch * self.Hq * seen * self.D

    def __str__(self) -> str:
        name = f"{self.dtype} D={self.D} {self.length // 1024}K"
        name += f" {self.Hq}/{self.Hk} heads" if self.Hq != self.Hk else ""
        name += " causal" if self.causal else ""
        return name + (f" window {self.window}" if self.window is not None else "")


CASES = (
    *(Case("bf16", 128, n << 10, c) for n in (8, 16, 32) for c in (False, True)),
    *(Case("bf16", 64, 8192, c, 32, 32) for c in (False, True)),
    *(Case("bf16", 256, 8192, c, 8, 8) for c in (False, True)),
    *(Case("fp16", 128, 8192, c) for c in (False, True)),
    Case("fp32", 64, 8192, False, 8, 8),
    Case("bf16", 128, 32768, True, 32, 8, 32768),
    Case("bf16", 128, 32768, True, 32, 32, 32768),
    Case("bf16", 128, 32768, True, 32, 8, 32768, window=1023),
    *(Case("bf16", 128, n << 10, True, 16, 16, n << 10) for n in (4, 64, 128)),
)


def main() -> None:
    """Check, time, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only bf16 and fp32 at 8K")
    parser.add_argument("--match", default="", help="regular expression: implementations timed")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    cases = [c for c in CASES if not arguments.quick or (c.length == 8192 and c.dtype != "fp16")]
    records = [record for case in cases for record in measure(case, arguments.match)]
    if arguments.output:
        result = {"machine": facts(), "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def exact_rows(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None = None
) -> Tensor:
    """Attention of the last SAMPLE queries of the first head, in float64: [SAMPLE, Dv]."""
    scores = q[0, 0, -SAMPLE:].double() @ k[0, 0].double().mT / math.sqrt(q.shape[-1])
    Sk = k.shape[2]
    last = torch.arange(Sk - SAMPLE, Sk, device=q.device)[:, None]
    keys = torch.arange(Sk, device=q.device)[None, :]
    if causal:
        scores = scores.masked_fill(keys > last, -math.inf)
    if window is not None:
        scores = scores.masked_fill(keys < last - window, -math.inf)
    return scores.softmax(-1) @ v[0, 0].double()


def relative_error(out: Tensor, exact: Tensor) -> float:
    """Error of the rows of `exact_rows`, relative to them, in the Frobenius norm."""
    return float((out[0, 0, -SAMPLE:].double() - exact).norm() / exact.norm())


def inputs(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [batch, heads, length, D], normal."""
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(
            case.batch, heads, case.length, case.D, generator=generator, device="cuda"
        ).to(DTYPES[case.dtype])
        for heads in (case.Hq, case.Hk, case.Hk)
    )  # fmt: skip
    return q, k, v


def implementations(case: Case, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], Tensor]]:
    """What is compared, by name."""
    runs: dict[str, Callable[[], Tensor]] = {}
    if case.window is None:
        for name, backend in BACKENDS.items():
            if case.dtype == "fp32" and name != "efficient":
                continue
            runs[name] = lambda backend=backend: sdpa(backend, case, q, k, v)  # type: ignore[misc]
    fa3 = flash_attention_3() if case.dtype != "fp32" else None
    if fa3 is not None:
        # its own layout, made before it is timed
        rows = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        window = (-1 if case.window is None else case.window, -1)
        runs["FlashAttention-3"] = lambda: fa3(
            *rows, causal=case.causal, window_size=window
        ).transpose(1, 2)
    levels = ("standard", "compensated") + (("high",) if case.dtype != "fp32" else ())
    for precision in levels:
        runs[f"flashasc {precision}"] = lambda precision=precision: flashasc.attention(  # type: ignore[misc]
            q, k, v, causal=case.causal, precision=precision, impl="triton",
            window=None if case.window is None else (case.window, 0),
        )  # fmt: skip
    return runs


def sdpa(backend: SDPBackend, case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's attention by one of its backends."""
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=case.causal, enable_gqa=case.Hq != case.Hk
        )


def flash_attention_3() -> Callable[..., Tensor] | None:
    """Its forward function, where it is installed."""
    for name in ("fa3_fwd_interface", "flash_attn_interface"):
        try:
            function: Callable[..., Any] = importlib.import_module(name).flash_attn_func
        except (ImportError, OSError):
            continue

        def first(*args: Any, **options: Any) -> Tensor:
            out: Any = function(*args, **options)  # noqa: B023
            result: Tensor = out[0] if isinstance(out, tuple) else out
            return result

        return first
    return None


def measure(case: Case, match: str) -> list[dict[str, Any]]:
    """Every implementation whose name matches, on one case: checked, then timed."""
    from triton.testing import do_bench

    q, k, v = inputs(case)
    exact = exact_rows(q, k, v, causal=case.causal, window=case.window)
    records = []
    print(case, flush=True)
    for name, run in implementations(case, q, k, v).items():
        if not re.search(match, name):
            continue
        record: dict[str, Any] = asdict(case) | {"case": str(case), "implementation": name}
        try:
            record["relative_error"] = relative_error(run(), exact)
            if not record["relative_error"] <= ROUNDING[case.dtype]:
                raise RuntimeError(f"wrong: relative error {record['relative_error']:.1e}")
            low, median, high = do_bench(run, warmup=30, rep=150, quantiles=(0.2, 0.5, 0.8))
            record |= {"ms": median, "ms_20": low, "ms_80": high}
            record["tflops"] = case.products / median / 1e9
        except Exception as failure:
            # a backend that does not take the case
            record["failed"] = (str(failure).splitlines() or [repr(failure)])[0]
        records.append(record)
        speed = f"{record['tflops']:6.1f} TFLOP/s" if "tflops" in record else record["failed"][:60]
        print(
            f"  {name:<22} {speed}  error {record.get('relative_error', math.nan):.1e}", flush=True
        )
    ratios(records)
    return records


def ratios(records: list[dict[str, Any]]) -> None:
    """What the others and the levels come to, as shares."""
    speed = {r["implementation"]: r["tflops"] for r in records if "tflops" in r}
    ours = speed.get("flashasc standard")
    if ours is None:
        return
    parts = [f"standard = {ours / s:.2f} x {name}" for name, s in speed.items() if name[0] != "f"]
    parts += [
        f"{level} = {speed[f'flashasc {level}'] / ours:.2f} x standard"
        for level in ("compensated", "high")
        if f"flashasc {level}" in speed
    ]
    print("    " + ", ".join(parts), flush=True)


if __name__ == "__main__":
    main()

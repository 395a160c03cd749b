"""A language model on flashasc's kernels, and how attention's error grows with its length.

`make demo` runs this. Everything happens on the CPU: the Triton kernel is lowered by triton-ascend,
the Ascend compiler's front end, and what it lowers is run natively.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import _smollm2
import flashasc
from flashasc.integrations import transformers as asc

TEXT = Path(__file__).with_name("alice.txt")
NEW_TOKENS = 24
KEYS = [1 << bits for bits in range(10, 19, 2)]
QUERIES, HEAD_SIZE = 64, 64

console = Console(highlight=False)


def main() -> None:
    """Run both parts and print what came out."""
    started = time.perf_counter()
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "triton-ascend")]
    console.print(
        f"[bold]flashasc[/] on {', '.join(versions)}; {torch.get_num_threads()} threads\n"
    )
    torch.manual_seed(0)
    with torch.inference_mode():
        language_model()
        long_rows()
    console.print(f"{time.perf_counter() - started:.0f} s in all")


# --- a language model ---------------------------------------------------------------------------


def language_model() -> None:
    """Let SmolLM2 read a text and go on with it, its attention computed in three ways."""
    with console.status("loading SmolLM2-135M"):
        model, tokenizer = _smollm2.load()
        kernel = asc.register(impl="triton")
    tokens = tokenizer(TEXT.read_text(), return_tensors="pt").input_ids
    console.print(
        "[bold]SmolLM2-135M reads the opening of Alice in Wonderland[/] "
        f"({tokens.shape[1]} tokens, float32)"
    )
    show_plan(model, tokens)

    logits, seconds, continuations = {}, {}, {}
    for name, implementation in {"flashasc": kernel, "SDPA": "sdpa"}.items():
        model.set_attn_implementation(implementation)
        with console.status(f"reading with {name}; the first time, kernels are compiled"):
            read(model, tokens)
            logits[name], seconds[name] = read(model, tokens)
        with console.status(f"writing with {name}"):
            continuations[name] = go_on(model, tokens)
    with console.status("reading in float64"):
        exact, seconds["float64"] = read(model.double(), tokens)
    logits["float64"] = exact

    table = Table("\nattention", box=box.SIMPLE_HEAD, collapse_padding=True)
    titles = ["same next token\nas float64", "\nas SDPA"]
    titles += ["max. logit diff.\nto float64", "\nto SDPA", "\nseconds"]
    for title in titles:
        table.add_column(title, justify="right")
    for name, found in logits.items():
        table.add_row(
            name,
            agreement(found, exact),
            agreement(found, logits["SDPA"]),
            difference(found, exact),
            difference(found, logits["SDPA"]),
            f"{seconds[name]:.2f}",
        )
    console.print(table)
    same = int((continuations["flashasc"] == continuations["SDPA"]).sum())
    console.print(f"It goes on (the same as with SDPA in {same} of {NEW_TOKENS} tokens):")
    console.print(f"[italic]…{tokenizer.decode(continuations['flashasc']).strip()}[/]\n")


def show_plan(model: Any, tokens: Tensor) -> None:
    """Print what flashasc will run for a layer of this model."""
    config = model.config
    shape = (1, config.num_attention_heads, tokens.shape[1], config.head_dim)
    q = torch.empty(shape)
    k = torch.empty(1, config.num_key_value_heads, *shape[2:])
    plan = flashasc.explain(q, k, k, causal=True, impl="triton")
    console.print(str(plan), style="dim")


def read(model: Any, tokens: Tensor) -> tuple[Tensor, float]:
    """Logits at every position, [tokens, vocabulary], and the seconds they took."""
    start = time.perf_counter()
    logits: Tensor = model(tokens).logits[0]
    return logits, time.perf_counter() - start


def go_on(model: Any, tokens: Tensor) -> Tensor:
    """The most likely next tokens, one by one, over the key-value cache."""
    written: Tensor = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW_TOKENS, do_sample=False
    )
    return written[0, tokens.shape[1] :]


def agreement(found: Tensor, expected: Tensor) -> str:
    """At how many positions both find the same token most likely."""
    same = found.argmax(-1) == expected.argmax(-1)
    return f"{int(same.sum())} of {same.numel()}"


def difference(found: Tensor, expected: Tensor) -> str:
    """Largest difference of two sets of logits."""
    return f"{(found.double() - expected.double()).abs().max().item():.1e}"


# --- long rows ----------------------------------------------------------------------------------

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

WAYS: dict[str, Attention] = {
    "SDPA": F.scaled_dot_product_attention,
    "standard": lambda *qkv: flashasc.attention(*qkv, precision="standard", impl="triton"),
    "compensated": lambda *qkv: flashasc.attention(*qkv, precision="compensated", impl="triton"),
}


def long_rows() -> None:
    """Print errors against float64 as the number of keys grows."""
    table = Table("\nkeys", box=box.SIMPLE_HEAD, collapse_padding=True)
    for dtype in ("float32", "bfloat16"):
        for way in WAYS:
            table.add_column(f"{dtype}\n{way}", justify="right")
    for keys in track(KEYS, "long rows", console=console, transient=True):
        fp32 = [f"{error:.1e}" for error in errors(keys)]
        bf16 = [f"{share:.1%}" for share in correctly_rounded(keys)]
        table.add_row(f"{keys:,}", *fp32, *bf16)
    console.print(
        f"[bold]Attention over long rows[/] ({QUERIES} queries, one head of {HEAD_SIZE}, values "
        "uniform in [0, 1))\n"
        "float32: error relative to the norm of the exact output, which float64 gives\n"
        "bfloat16: share of outputs that are the exact ones correctly rounded"
    )
    console.print(table)


def errors(keys: int) -> list[float]:
    """Error of each way in float32, relative to the norm of the exact output."""
    q, k, v = rows(keys)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    return [float((way(q, k, v) - exact).norm() / exact.norm()) for way in WAYS.values()]


def correctly_rounded(keys: int) -> list[float]:
    """Share of the outputs of each way in bfloat16 that could not be nearer to the exact ones."""
    q, k, v = (tensor.bfloat16() for tensor in rows(keys))
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double()).bfloat16()
    return [float((way(q, k, v) == exact).double().mean()) for way in WAYS.values()]


def rows(keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys from a normal distribution, values uniform in [0, 1): [1, 1, rows, D]."""
    q = torch.randn(1, 1, QUERIES, HEAD_SIZE)
    k = torch.randn(1, 1, keys, HEAD_SIZE)
    return q, k, torch.rand(1, 1, keys, HEAD_SIZE)


if __name__ == "__main__":
    main()

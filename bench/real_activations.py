"""Error of attention on the queries, keys and values of a language model that reads a long text.

    python -m bench.real_activations [--device DEVICE] [--output FILE]

SmolLM2-135M reads 8 192 tokens of Python's own documentation; q, k and v of a few layers are kept
as they get to attention (positions applied). The last 64 queries attend to all 8 192 keys, and to
the same keys and values laid end to end up to 131 072: no model reads so far, the kernels only. In
float32, and cast to bfloat16. The error is the norm of the difference from float64, on the same
inputs, over the norm of the exact result; "rounded" is the share of outputs that are the exact
ones correctly rounded. On a CPU the kernel runs as lowered for Ascend 910B3.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import flashasc
from flashasc._problem import Precision
from flashasc.testing import exact_attention, relative_error, share_correctly_rounded

from .machine import facts

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import _smollm2

TOKENS, QUERIES = 8192, 64
KEYS = (8192, 131072)
LAYERS = (0, 5, 10)


def main() -> None:
    """Measure, print a line a record, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    records = []
    for layer, qkv in activations(arguments.device):
        for keys in KEYS:
            for dtype in (torch.float32, torch.bfloat16):
                records.append({"layer": layer, "keys": keys, **measure(qkv, keys, dtype)})
                print(json.dumps(records[-1]), flush=True)
    if arguments.output:
        result = {"machine": facts(), "records": records}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def activations(device: str) -> Iterator[tuple[int, tuple[Tensor, Tensor, Tensor]]]:
    """(layer, (q, k, v)): q [1, 9, QUERIES, 64], the last ones; k and v [1, 3, TOKENS, 64]."""
    import transformers
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    kept: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def keeping(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any) -> Any:
        if module.layer_idx in LAYERS:
            kept[module.layer_idx] = (q[:, :, -QUERIES:].clone(), k.clone(), v.clone())
        sdpa = transformers.AttentionInterface()["sdpa"]
        return sdpa(module, q, k, v, mask, **options)

    transformers.AttentionInterface.register("keeping", keeping)
    AttentionMaskInterface.register("keeping", sdpa_mask)
    model, tokenizer = _smollm2.load()
    text = "\n\n".join(pydoc_data.topics.topics.values())
    tokens = tokenizer(text[: 8 * TOKENS], return_tensors="pt").input_ids[:, :TOKENS]
    assert tokens.shape == (1, TOKENS), tokens.shape
    model.set_attn_implementation("keeping")
    # what follows the last of these layers is not needed
    model.model.layers = model.model.layers[: max(LAYERS) + 1]
    model.to(device).model(tokens.to(device), use_cache=False)
    yield from kept.items()


def measure(qkv: tuple[Tensor, Tensor, Tensor], keys: int, dtype: torch.dtype) -> dict[str, Any]:
    """Errors of SDPA and of each precision that serves the dtype."""
    q, k, v = (x.to(dtype) for x in qkv)
    k, v = (x.repeat(1, 1, keys // x.shape[2], 1) for x in (k, v))
    exact = exact_attention(q, k, v).out
    results = {"SDPA": F.scaled_dot_product_attention(q, k, v, enable_gqa=True)}
    levels: tuple[Precision, ...] = ("standard", "compensated", "high")
    for precision in levels[: 2 if dtype == torch.float32 else 3]:
        results[precision] = flashasc.attention(q, k, v, precision=precision, impl="triton")
    record: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch.")}
    for name, out in results.items():
        record[name] = relative_error(out, exact)
        if dtype != torch.float32:
            record[f"{name}, rounded"] = share_correctly_rounded(out, exact)
    return record


if __name__ == "__main__":
    main()

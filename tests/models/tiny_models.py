"""Small language models with random weights, one for each thing that attention may be asked for."""

from __future__ import annotations

import os
from typing import Any

import torch

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from flashasc.testing import exact_attention

_DECODER = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_ENCODER = {
    name: x for name, x in _DECODER.items() if name not in ("num_key_value_heads", "head_dim")
}
_WINDOWED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
_BART = {"d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
_BART |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {}),
    "mistral": ("MistralConfig", {"sliding_window": 6}),
    "gemma2": ("Gemma2Config", {**_WINDOWED, "attn_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3TextConfig", _WINDOWED),
    "gpt_oss": (
        "GptOssConfig",
        {**_WINDOWED, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}


def decoder(name: str) -> Any:
    """A causal language model in float32, in eval, with eager attention."""
    config, options = DECODERS[name]
    return _made(AutoModelForCausalLM, config, {**_DECODER, **options})


def bert() -> Any:
    """An encoder."""
    return _made(AutoModel, "BertConfig", _ENCODER)


def bart() -> Any:
    """An encoder and a decoder with attention from one to the other."""
    options = {"vocab_size": 97, "init_std": 0.3, "max_position_embeddings": 64, **_BART}
    return _made(AutoModelForSeq2SeqLM, "BartConfig", {**options, "forced_eos_token_id": None})


def t5() -> Any:
    """The same with learnt position biases, unscaled scores, and heads narrower than the width."""
    options = {"vocab_size": 97, "d_model": 48, "d_kv": 8, "num_heads": 4, "d_ff": 64}
    options |= {"num_layers": 2, "decoder_start_token_id": 0, "eos_token_id": None}
    return _made(AutoModelForSeq2SeqLM, "T5Config", options)


def exact_forward(
    module: torch.nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention in float64; eager attention in Transformers takes weights from float32 always."""
    causal = mask is None and q.shape[2] > 1 and bool(getattr(module, "is_causal", True))
    options = {"scale": scaling, "softcap": softcap, "sinks": s_aux, "bias": position_bias}
    out = exact_attention(q, k, v, mask=mask, causal=causal, **options).out
    return out.transpose(1, 2), None


transformers.AttentionInterface.register("exact", exact_forward)
AttentionMaskInterface.register("exact", sdpa_mask)


def _made(auto: Any, config: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    made = getattr(transformers, config)(**options)
    model = auto.from_config(made, attn_implementation="eager").eval()
    if config == "GptOssConfig":
        # the grouped products that are its default know no float64
        model.set_experts_implementation("eager")
        for layer in model.model.layers:
            torch.nn.init.normal_(layer.self_attn.sinks)
    return model

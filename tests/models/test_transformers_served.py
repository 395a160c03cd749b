"""Models of Transformers that compute their attention themselves say so, and no others do."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from flashasc.integrations import transformers as asc
from flashasc.integrations.transformers.served import _look, require_interface

transformers = pytest.importorskip("transformers")
importlib.import_module("tiny_models")

TOKENS = torch.arange(5, 13).repeat(2, 1)
PADDED = torch.ones_like(TOKENS)
PADDED[0, :3] = 0
TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
BART = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1}


def made(config: str, **options: Any) -> Any:
    """A model whose config names us, as by `from_pretrained`."""
    made = getattr(transformers, config)(**TINY | options)
    name = asc.register()
    return transformers.AutoModel.from_config(made, attn_implementation=name).eval()


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("MPNetConfig", {}),
        ("BloomConfig", {"n_layer": 1, "n_head": 4}),
        ("MegatronBertConfig", {}),
        ("NystromformerConfig", {}),
        ("ConvBertConfig", {}),
        ("CanineConfig", {}),
        ("TapasConfig", {}),
        # its decoder asks for our attention, its encoder computes its own
        ("BigBirdPegasusConfig", BART),
    ],
)
def test_models_with_attention_of_their_own_raise(config: str, options: dict[str, Any]) -> None:
    """With padding or without: None in place of a causal mask is as wrong as bool."""
    model = made(config, **options)
    name = config.removesuffix("Config")
    for mask in (PADDED, None):
        with pytest.raises(
            NotImplementedError, match=rf'{name}\w* computes its own .*attn_implementation="eager"'
        ):
            model(input_ids=TOKENS, attention_mask=mask)


def test_a_part_with_a_config_of_its_own_raises() -> None:
    """AutoModel does not know it, and the module named like its config's asks the interface."""
    config = transformers.BlipTextConfig(**TINY, bos_token_id=1, sep_token_id=2)
    kind = transformers.BlipTextModel
    model = kind._from_config(config, attn_implementation=asc.register()).eval()
    with pytest.raises(NotImplementedError, match="BlipTextModel computes its own"):
        model(TOKENS, attention_mask=PADDED)


def test_a_composite_of_served_models_is_served() -> None:
    text = transformers.LlamaConfig(**TINY)
    vision = TINY | {"image_size": 28, "patch_size": 14, "num_hidden_layers": 2}
    config = transformers.LlavaConfig(
        text_config=text,
        vision_config=transformers.CLIPVisionConfig(**vision),
        image_token_index=96,
    )
    auto = transformers.AutoModelForImageTextToText
    torch.manual_seed(0)
    model = auto.from_config(config, attn_implementation=asc.register()).eval()
    other = auto.from_config(config, attn_implementation="eager").eval()
    other.load_state_dict(model.state_dict())
    tokens = TOKENS.clone()
    tokens[:, 3:7] = 96
    inputs = {"input_ids": tokens, "attention_mask": PADDED}
    inputs["pixel_values"] = torch.randn(2, 3, 28, 28)
    found, expected = (x(**inputs).logits[PADDED.bool()] for x in (model, other))
    torch.testing.assert_close(found, expected)


OURS = """
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

class OursConfig(PreTrainedConfig):
    pass

class OursAttention(nn.Module):
    def forward(self, scores, mask):
        {}

class OursModel(PreTrainedModel):
    config_class = OursConfig
"""


@pytest.mark.parametrize(
    ("name", "does", "refused"),
    [
        ("ours_adds", "return scores + mask", True),
        ("ours_asks", "return ALL_ATTENTION_FUNCTIONS[self.name](scores, mask)", False),
    ],
)
def test_models_outside_transformers(
    name: str, does: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their text: they may ask the interface in another way than Transformers' own."""
    (tmp_path / f"{name}.py").write_text(OURS.format(does))
    monkeypatch.syspath_prepend(tmp_path)
    config = importlib.import_module(name).OursConfig()
    if refused:
        with pytest.raises(NotImplementedError, match="OursModel computes its own"):
            require_interface(config)
    else:
        require_interface(config)


def test_the_check_is_no_break_in_a_compiled_model() -> None:
    model = made("LlamaConfig")
    _look.cache_clear()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    inputs = {"input_ids": TOKENS, "attention_mask": PADDED, "use_cache": False}
    torch.testing.assert_close(compiled(**inputs)[0], model(**inputs)[0])

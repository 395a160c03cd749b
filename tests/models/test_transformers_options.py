"""What Transformers hands to attention: honoured, harmless, or refused; and the name."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc
from flashasc.integrations import transformers as asc
from flashasc.integrations.transformers.options import HARMLESS

transformers = pytest.importorskip("transformers")
tiny = importlib.import_module("tiny_models")

Q = torch.randn(2, 4, 6, 8)
K = torch.randn(2, 2, 6, 8)
ENDS = torch.tensor([0, 6])


class Layer(torch.nn.Module):
    """A layer as far as attention looks at it."""

    def __init__(self, is_causal: bool = True) -> None:
        super().__init__()
        self.is_causal = is_causal


def call(
    q: Tensor = Q, k: Tensor = K, mask: Any = None, causal: bool = True, **options: Any
) -> Tensor:
    out, weights = asc.attention_forward(Layer(causal), q, k, k, mask, **options)
    assert weights is None
    return out


def expected(q: Tensor = Q, k: Tensor = K, **options: Any) -> Tensor:
    return flashasc.attention(q, k, k, **options).transpose(1, 2)


def test_causality_is_the_modules() -> None:
    assert torch.equal(call(), expected(causal=True))
    assert torch.equal(call(causal=False), expected())
    assert torch.equal(call(is_causal=False), expected())
    assert torch.equal(call(causal=False, is_causal=True), expected(causal=True))


def test_causality_without_a_mask_where_lengths_differ() -> None:
    """One query is the last; several at the start of a static cache are the first."""
    assert torch.equal(call(Q[:, :, :1]), expected(Q[:, :, :1]))
    first = call(Q[:, :, :3])
    assert torch.equal(first, expected(Q[:, :, :3], causal=True, causal_align="top_left"))
    torch.testing.assert_close(first, call()[:, :3])


def test_a_mask_says_everything() -> None:
    mask = torch.rand(2, 1, 6, 6) < 0.7
    assert torch.equal(call(mask=mask), expected(mask=mask))
    assert torch.equal(call(mask=mask, sliding_window=2), expected(mask=mask))
    added = torch.randn(2, 1, 6, 6)
    assert torch.equal(call(mask=added), expected(bias=added))


def test_options_arrive() -> None:
    sinks = torch.randn(4)
    assert torch.equal(call(s_aux=sinks), expected(causal=True, sinks=sinks))
    assert torch.equal(call(softcap=2.0), expected(causal=True, softcap=2.0))
    assert torch.equal(call(scaling=0.7), expected(causal=True, scale=0.7))
    bias = torch.randn(1, 4, 6, 6)
    assert torch.equal(call(position_bias=bias), expected(causal=True, bias=bias))
    mask = torch.rand(2, 1, 6, 6) < 0.7
    both = call(position_bias=bias, mask=mask)
    assert torch.equal(both, expected(bias=bias, mask=mask))
    torch.testing.assert_close(call(position_bias=bias, mask=bias), expected(bias=2 * bias))


def test_windows_count_their_own_key() -> None:
    assert torch.equal(call(sliding_window=3), expected(window=(2, 0)))
    assert torch.equal(call(causal=False, sliding_window=3), expected(window=(2, 2)))
    assert torch.equal(call(Q[:, :, :1], sliding_window=3), expected(Q[:, :, :1], window=(2, 0)))


def test_harmless_arguments_change_nothing_and_unknown_ones_raise() -> None:
    assert torch.equal(call(**dict.fromkeys(HARMLESS, 1)), call())
    assert torch.equal(call(indices=None), call())
    with pytest.raises(
        NotImplementedError, match="Layer asks attention for block_indices, indices"
    ):
        call(indices=torch.zeros(1), block_indices=0, use_cache=True)
    with pytest.raises(NotImplementedError, match="output_attentions=True"):
        call(output_attentions=True)
    assert torch.equal(call(output_attentions=False), call())
    with pytest.raises(NotImplementedError, match=r"dropout of 0.1 .*attention_dropout"):
        call(dropout=0.1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": torch.ones(2, 6)}, ValueError, "4 dimensions"),
        ({"mask": torch.ones(2, 1, 6, 6).long()}, TypeError, "must be bool"),
        ({"mask": "block mask"}, TypeError, "made for another implementation"),
        ({"mask": torch.ones(2, 1, 6, 5).bool()}, ValueError, "mask must broadcast"),
        ({"cu_seq_lens_q": ENDS}, ValueError, "cu_seq_lens_k is None"),
        ({"cu_seq_lens_q": ENDS, "cu_seq_lens_k": ENDS}, ValueError, "batch of 2"),
    ],
)
def test_what_does_not_fit_says_so(options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(**options)


def test_dropout_of_a_model_raises_in_training_alone() -> None:
    model = tiny.decoder("llama")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    model.set_attn_implementation(asc.register())
    tokens = torch.arange(2, 9)[None]
    model(tokens)
    with pytest.raises(NotImplementedError, match="attention dropout of 0.1"):
        model.train()(tokens)


@pytest.mark.parametrize("name", ["flash_asc", "asc_sdpa", "flex", "eager", "a/b", "paged|asc", ""])
def test_names_that_transformers_would_take_for_its_own(name: str) -> None:
    with pytest.raises(ValueError, match="name must not be empty nor contain"):
        asc.register(name)


def test_why_flash_is_no_name() -> None:
    """If Transformers ever takes such a name as it is, this says so."""
    transformers.AttentionInterface.register("flash_asc", asc.attention_forward)
    try:
        with pytest.raises((ImportError, ValueError, AttributeError, OSError)):
            tiny.decoder("llama").set_attn_implementation("flash_asc")
    finally:
        transformers.AttentionInterface._global_mapping.pop("flash_asc")


def test_the_name_is_a_choice_at_loading_too(tmp_path: Any) -> None:
    name = asc.register()
    assert name == "asc_attention"
    tiny.decoder("llama").save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=name)
    assert model.config._attn_implementation == name


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'flashasc\[hf\]'"):
        asc.register()

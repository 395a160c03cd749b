"""SmolLM2 writes, its attention on flashasc: three lines make the difference.

    python examples/generate.py [new tokens]

The prompts differ in length, so the batch is padded on the left. On a CPU the kernel runs as
lowered for Ascend 910B3.
"""

from __future__ import annotations

import sys

import torch

import _smollm2
from flashasc.integrations import transformers as asc

PROMPTS = ["Once upon a time, there was a little mouse who", "The three primary colours are"]


@torch.inference_mode()
def main(new_tokens: int = 12) -> None:
    """Write with eager attention and with flashasc, and say whether the words are the same."""
    model, tokenizer = _smollm2.load()
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    written = {}
    for name in ("eager", asc.register("asc_kernel", impl="triton")):
        model.set_attn_implementation(name)
        written[name] = model.generate(**batch, max_new_tokens=new_tokens, do_sample=False)
    for text in tokenizer.batch_decode(written["asc_kernel"], skip_special_tokens=True):
        print(f"{text} ...")
    same = torch.equal(written["eager"], written["asc_kernel"])
    print(f"the same tokens as with eager attention: {same}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""SmolLM2 reads a text that lies on several ranks: each has its tokens, attention sees all keys.

    torchrun --nproc_per_node=2 examples/long_prompt.py [tokens] [ring | ulysses]

Every rank has the whole model and computes its own tokens from end to end; keys and values alone go
from rank to rank. The first rank then reads the text by itself too, and compares. SmolLM2 has 9
query heads, which ulysses shares out: that takes 3 ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

import _smollm2
from flashasc.distributed import ContextParallel
from flashasc.integrations import transformers as asc

TEXT = (Path(__file__).parent / "alice.txt").read_text(encoding="utf-8")


@torch.inference_mode()
def read(model: Any, text: Tensor, mode: Literal["ring", "ulysses"] = "ring") -> tuple[Any, ...]:
    """Loss and logits of a whole text [1, S], which all ranks read together."""
    cp = ContextParallel(mode=mode, placement="zigzag")
    model.set_attn_implementation(asc.register("asc_ranks", cp=cp))
    mine = model(**asc.shard_batch(cp, text, labels=text))
    print(f"rank {dist.get_rank()}: {mine.logits.shape[1]} of {text.shape[1]} tokens", flush=True)
    # the ranks' shares of the loss add up; the logits put together, to be looked at here
    dist.all_reduce(mine.loss)
    return mine.loss, cp.unshard(mine.logits, 1)


@torch.inference_mode()
def main(tokens: int = 512, mode: Literal["ring", "ulysses"] = "ring") -> None:
    """Read the text's first tokens, repeated as often as it takes."""
    dist.init_process_group("gloo")
    model, tokenizer = _smollm2.load()
    once = tokenizer(TEXT, return_tensors="pt").input_ids
    text = once.repeat(1, -(-tokens // once.shape[1]))[:, :tokens]
    loss, logits = read(model, text, mode)
    if dist.get_rank() == 0:
        model.set_attn_implementation("eager")
        alone = model(text, labels=text, use_cache=False)
        apart = (logits - alone.logits).abs().max() / alone.logits.abs().max()
        print(f"loss: {loss:.6f}; by one process with eager attention: {alone.loss:.6f}")
        print(f"largest difference of logits, of their largest: {apart:.1e}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])  # type: ignore[arg-type]

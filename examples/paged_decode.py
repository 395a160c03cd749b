"""A decode loop with a paged cache: sequences of different lengths come, grow and go.

    python examples/paged_decode.py

One attention layer with random weights stands for a model. Each step appends one token to every
sequence and attends to all of its own; a finished sequence gives its pages back, and another one
takes them. At the end each output is compared with attention over the whole sequence at once.
"""

from __future__ import annotations

from typing import Literal

import torch

import flashasc

HEADS, KV_HEADS, HEAD = 8, 2, 64
PROMPTS = (70, 9, 33)
STEPS = 12


def project(tokens: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of new tokens: [1, H, tokens, D] each."""
    shapes = ((1, HEADS), (1, KV_HEADS), (1, KV_HEADS))
    return tuple(torch.randn(*s, tokens, HEAD, generator=generator) for s in shapes)


@torch.no_grad()
def main(impl: Literal["auto", "triton", "reference"] = "auto") -> None:
    """Run the loop; raise if an output is off."""
    generator = torch.Generator().manual_seed(0)
    # 16 pages of 32 keys, for three sequences at a time
    cache = flashasc.PagedKVCache.allocate(
        len(PROMPTS), KV_HEADS, 16, HEAD, page_size=32, longest=256, dtype=torch.float32
    )
    history: list[tuple[torch.Tensor, torch.Tensor]] = []
    for sequence, length in enumerate(PROMPTS):
        _, k, v = project(length, generator)
        cache.append(k, v, sequence=sequence, impl=impl)
        history.append((k, v))

    worst = 0.0
    for step in range(STEPS):
        if step == STEPS // 2:
            # sequence 0 is done: its pages go to a new prompt
            cache.free(0)
            _, k, v = project(100, generator)
            cache.append(k, v, sequence=0, impl=impl)
            history[0] = (k, v)
        new = [project(1, generator) for _ in PROMPTS]
        q, k, v = (torch.cat(x) for x in zip(*new, strict=True))
        out = flashasc.decode(q, cache, k=k, v=v, impl=impl)
        for sequence, (old_k, old_v) in enumerate(history):
            one = slice(sequence, sequence + 1)
            keys, values = torch.cat([old_k, k[one]], 2), torch.cat([old_v, v[one]], 2)
            history[sequence] = (keys, values)
            expected = flashasc.attention(q[one].double(), keys.double(), values.double())
            worst = max(worst, (out[one].double() - expected).abs().max().item())
    cache.check()
    if worst > 1e-5:
        raise SystemExit(f"an output is off by {worst:.1e}")
    print(f"{STEPS} steps, lengths {cache.lens.tolist()}, largest difference {worst:.1e}")


if __name__ == "__main__":
    main()

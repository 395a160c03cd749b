"""Tiles read by descriptor, in Triton's interpreter: the bits of those read by pointers, no more.

The interpreter reads a descriptor's memory as the hardware does; nothing here needs a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from compile_only import newest_capability

CASES = ("causal", "window", "packed")


@pytest.mark.skipif(newest_capability() == 90, reason="Triton 3.2 has no descriptors")
def test_same_bits_as_by_pointers() -> None:
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def main(case: str) -> None:
    from dataclasses import replace

    import torch

    from flashasc import reference
    from flashasc._configs import nvidia
    from flashasc._problem import Extras, attention_problem
    from flashasc._target import Target
    from flashasc.kernels import attention_launch, descriptors

    described = []

    def everywhere(k, v, problem, config, route):  # type: ignore[no-untyped-def]
        described.append(descriptors.key_descriptors(k, v, problem, config, "device"))
        return described[-1]

    descriptors.LEAST_KEYS = 1
    attention_launch.key_descriptors = everywhere
    torch.manual_seed(0)
    # tiles of 32 queries and 16 keys: lengths that end within one, and that do not
    lengths_q, lengths_k = {
        "causal": ((48,), (48,)), "window": ((20,), (70,)), "packed": ((33, 0, 9), (41, 5, 32)),
    }[case]  # fmt: skip
    tokens_q, tokens_k = sum(lengths_q), sum(lengths_k)
    q, k, v = (
        torch.randn(heads, n, 16).half()
        for heads, n in ((2, tokens_q), (1, tokens_k), (1, tokens_k))
    )
    extras = Extras()
    if case == "packed":
        # whatever a neighbour holds must not spread into the first
        k[:, 41:46], v[:, 41:46] = torch.nan, torch.inf
        edges = [torch.tensor((0, *x)).cumsum(0).int() for x in (lengths_q, lengths_k)]
        extras = Extras(cu_seqlens_q=edges[0], cu_seqlens_k=edges[1])
    else:
        q, k, v = (x[None] for x in (q, k, v))
    problem = attention_problem(
        q, k, v, extras, scale=0.25, softcap=None, causal=case != "packed", bottom_right=True,
        window_left=21 if case == "window" else None, window_right=None,
        layout="TND" if case == "packed" else "BNSD", precision="standard",
        out_dtype=torch.float16, with_lse=True,
        max_seqlen_q=64 if case == "packed" else None,
        max_seqlen_k=64 if case == "packed" else None,
    )  # fmt: skip
    row = replace(
        next(r for r in nvidia.TILES if r.descriptors and r.dtype == torch.float16),
        block_m=32, block_n=16, least_values=16,
    )  # fmt: skip
    found = []
    for config in (row, replace(row, descriptors=False)):
        out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:-1], torch.nan)
        target = Target("nvidia", "sm_90", 132)
        attention_launch.launch_attention_fwd(
            q, k, v, out, lse, problem, extras, config, target, "interpreter"
        )
        found.append((out, lse))
    assert described[0] is not None and described[1] is None, case
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    expected, lse = reference.attention_fwd(q, k, v, problem, extras)
    torch.testing.assert_close(found[0][0].float(), expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(found[0][1], lse, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    for name in CASES:
        main(name)

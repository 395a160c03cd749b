"""In which order the programs of attention take their tiles, see `attention_order`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import triton

from .._configs import TileConfig
from .._configs.nvidia import ORDER_SEQUENCES, ORDER_TOKENS
from .._problem import AttentionProblem
from .._target import Target
from .launch import Route, launch
from .packed_order import packed_order_kernel

Order = Literal["heads", "together", "longest"]


def order_of(problem: AttentionProblem, config: TileConfig) -> Order:
    """The order for a problem: one program a core has its own, and leaves no room for another."""
    if config.core_loop:
        return "heads"
    if problem.packed:
        return "longest"
    return "together" if heads_together(problem, config) > 1 else "heads"


def heads_together(problem: AttentionProblem, config: TileConfig) -> int:
    """How many heads take turns, so that the longest tiles of all of them go first.

    As many as have keys and values that fit into the cache; one where all tiles take alike.
    """
    alike = problem.reach_right is None or problem.window_left is not None
    if alike or problem.packed or not config.cached_bytes:
        return 1
    head_bytes: int = problem.Sk * (problem.D + problem.Dv) * problem.dtype.itemsize
    return max(1, config.cached_bytes // head_bytes) * problem.group


def tiles_of_a_head(problem: AttentionProblem, config: TileConfig, longest_q: int) -> int:
    """The most tiles that a head of all sequences together may have.

    Packed sequences need fewer than the longest one times their number: each begins a tile of its
    own, and that is all that they have beyond their tokens.
    """
    longest = -(-longest_q // config.block_m) * problem.B
    if order_of(problem, config) != "longest":
        return longest
    return min(longest, problem.tokens_q // config.block_m + problem.B)


def launch_packed_order(
    out: torch.Tensor | None,
    lse: torch.Tensor | None,
    ends: Sequence[torch.Tensor | None],
    problem: AttentionProblem,
    config: TileConfig,
    target: Target,
    route: Route,
    *,
    longest_q: int,
    longest_k: int,
    few: int,
) -> torch.Tensor:
    """Put packed sequences in order, and fill the rows that belong to none.

    Args:
        out: [Hq, tokens, Dv], any strides; None: nothing is filled.
        lse: [Hq, tokens] fp32, contiguous; or None.
        ends: cu_seqlens_q and cu_seqlens_k, contiguous.
        problem, config, target, route: as for `launch_attention_fwd`.
        longest_q, longest_k: what of a sequence lies beyond them is left out.
        few: sequences of at most so many queries have no tile.

    Returns:
        [2 * B + 1] int32, see `packed_order_kernel`.
    """
    q_ends, k_ends = ends
    order = torch.empty(2 * problem.B + 1, dtype=torch.int32, device=problem.device)
    steps = (0, 0, 1) if out is None else out.stride()
    parts = triton.cdiv(problem.B, ORDER_SEQUENCES)
    blocks = 0 if out is None else triton.cdiv(problem.tokens_q, ORDER_TOKENS)
    launch(
        packed_order_kernel,
        parts + blocks,
        {
            "out_ptr": out, "lse_ptr": lse, "cu_q_ptr": q_ends, "cu_k_ptr": k_ends,
            "order_ptr": order, "sequences": problem.B, "Hq": problem.Hq,
            "Sq": problem.tokens_q, "Sk": problem.tokens_k, "max_q": longest_q,
            "max_k": longest_k, "few": few,
            "slots": tiles_of_a_head(problem, config, longest_q), "parts": parts,
            "stride_oh": steps[0], "stride_om": steps[1],
            # a single column may come with any stride; known to be 1, it costs nothing
            "stride_od": 1 if problem.Dv == 1 else steps[2],
            "stride_lse_h": 0 if lse is None else lse.stride(0),
        },
        {
            "BLOCK_M": config.block_m, "BLOCK_B": ORDER_SEQUENCES, "BLOCK_T": ORDER_TOKENS,
            "Dv": problem.Dv, "BLOCK_DV": config.value_columns(problem.Dv),
            "FILL": out is not None, "WITH_LSE": lse is not None,
            "WIDE": max(map(abs, steps)) * 2 * max(ORDER_TOKENS, 256) >= 2**31,
        },
        route=route,
        device=problem.device,
        arch=target.arch,
        options={},
    )  # fmt: skip
    return order

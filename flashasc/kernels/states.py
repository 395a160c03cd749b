"""Kernels on raw softmax states: join two, and turn a finished one into an output."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from blocks.layout import advance, store_rows, store_tile
from blocks.softmax import online_merge

from .._target import Target
from .attention_finish import finish, load_sinks
from .launch import Route, launch
from .state_memory import load_state, store_state

_TILE = 2048
"""Numbers of a tile of accumulators: several are held at once, in a few KiB each."""


@triton.jit(do_not_specialize=["rows", "tiles", "tasks"])
def merge_states_kernel(
    rows_a_ptr, acc_a_ptr, rows_b_ptr, acc_b_ptr, rows_ptr, acc_ptr, rows, tiles, tasks,
    Dv: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
    WHOLE: tl.constexpr, NATURAL: tl.constexpr,
):  # fmt: skip
    """Join two states of [heads, 5, rows] and [heads, rows, 2, Dv], all contiguous.

    Program p takes the tasks p, p + programs, ...; task = head * tiles + tile of rows.
    """
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        head = task // tiles
        start = task % tiles * BLOCK_M
        pivot_a, row_sum_a, row_comp_a, lse_sum_a, lse_comp_a, acc_a, comp_a = load_state(
            advance(rows_a_ptr, head, 5 * rows), advance(acc_a_ptr, head, 2 * Dv * rows),
            start, rows, rows, 2 * Dv, Dv, Dv, BLOCK_M, BLOCK_DV, False,
        )  # fmt: skip
        pivot_b, row_sum_b, row_comp_b, lse_sum_b, lse_comp_b, acc_b, comp_b = load_state(
            advance(rows_b_ptr, head, 5 * rows), advance(acc_b_ptr, head, 2 * Dv * rows),
            start, rows, rows, 2 * Dv, Dv, Dv, BLOCK_M, BLOCK_DV, False,
        )  # fmt: skip
        pivot, row_sum, row_comp, lse_sum, lse_comp, acc, comp = online_merge(
            pivot_a, row_sum_a, row_comp_a, lse_sum_a, lse_comp_a, acc_a, comp_a,
            pivot_b, row_sum_b, row_comp_b, lse_sum_b, lse_comp_b, acc_b, comp_b,
            WHOLE, NATURAL,
        )  # fmt: skip
        store_state(
            advance(rows_ptr, head, 5 * rows), advance(acc_ptr, head, 2 * Dv * rows),
            pivot, row_sum, row_comp, lse_sum, lse_comp, acc, comp,
            start, rows, rows, 2 * Dv, Dv, False, False,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "tiles", "tasks", "heads"])
def finalize_state_kernel(
    rows_ptr, acc_ptr, out_ptr, lse_ptr, sinks_ptr, rows, tiles, tasks, heads,
    Dv: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr, WHOLE: tl.constexpr,
    LOWERED: tl.constexpr, NATURAL: tl.constexpr, SEPARATE_LSE: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Output [.., heads, rows, Dv] and log-sum-exp [.., heads, rows] of a state, contiguous.

    Program p takes the tasks p, p + programs, ...; task = (batch * heads + head) * tiles + tile.
    """
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        head = task // tiles
        start = task % tiles * BLOCK_M
        pivot, row_sum, row_comp, lse_sum, lse_comp, acc, comp = load_state(
            advance(rows_ptr, head, 5 * rows), advance(acc_ptr, head, 2 * Dv * rows),
            start, rows, rows, 2 * Dv, Dv, Dv, BLOCK_M, BLOCK_DV, False,
        )  # fmt: skip
        sink = 0.0
        if SINKS:
            sink = load_sinks(advance(sinks_ptr, head % heads, 1), 1, 1, 0)
        out, lse = finish(
            pivot, row_sum, row_comp, lse_sum, lse_comp, acc, comp, sink,
            SINKS, SEPARATE_LSE, WHOLE, LOWERED, NATURAL,
        )  # fmt: skip
        store_tile(advance(out_ptr, head, rows * Dv), out, start, rows, Dv, 1, Dv, False)
        store_rows(advance(lse_ptr, head, rows), lse, start, rows)


def state_blocks(Dv: int) -> dict[str, int]:
    """The tile, by the names of the kernels' constexpr arguments, for values of Dv numbers."""
    block_dv = max(16, triton.next_power_of_2(Dv))
    return {"Dv": Dv, "BLOCK_M": max(8, _TILE // block_dv), "BLOCK_DV": block_dv}


def launch_merge_states(
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    rows: torch.Tensor,
    acc: torch.Tensor,
    target: Target,
    route: Route,
    *,
    whole: bool,
    natural: bool,
) -> None:
    """Write the join of two states.

    Args:
        parts: rows and acc of the one, rows and acc of the other: [..., 5, S] and
            [..., S, 2, Dv] fp32, contiguous.
        rows, acc: likewise; the result.
        target, route: where the kernel runs.
        whole, natural: see `blocks.softmax.online_merge`.
    """
    _launch(
        merge_states_kernel,
        dict(zip(("rows_a_ptr", "acc_a_ptr", "rows_b_ptr", "acc_b_ptr"), parts, strict=True))
        | {"rows_ptr": rows, "acc_ptr": acc},
        {"WHOLE": whole, "NATURAL": natural},
        acc,
        target,
        route,
    )


def launch_finalize_state(
    rows: torch.Tensor,
    acc: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    sinks: torch.Tensor | None,
    target: Target,
    route: Route,
    *,
    whole: bool,
    lowered: bool,
    natural: bool,
    separate_lse: bool,
) -> None:
    """Write the output and the log-sum-exp of a finished state.

    Args:
        rows, acc: [..., Hq, 5, S] and [..., Hq, S, 2, Dv] fp32, contiguous.
        out, lse: [..., Hq, S, Dv] of any float dtype and [..., Hq, S] fp32, contiguous.
        sinks: [Hq] fp16, bf16 or fp32, natural-log units; contiguous.
        target, route: where the kernel runs.
        whole, lowered, natural, separate_lse: see `blocks.softmax`.
    """
    _launch(
        finalize_state_kernel,
        {"rows_ptr": rows, "acc_ptr": acc, "out_ptr": out, "lse_ptr": lse, "sinks_ptr": sinks,
         "heads": rows.shape[-3]},
        {"WHOLE": whole, "LOWERED": lowered, "NATURAL": natural, "SEPARATE_LSE": separate_lse,
         "SINKS": sinks is not None},
        acc,
        target,
        route,
    )  # fmt: skip


def _launch(
    kernel: object,
    args: Mapping[str, object],
    constants: Mapping[str, object],
    acc: torch.Tensor,
    target: Target,
    route: Route,
) -> None:
    count, Dv = acc.shape[-3], acc.shape[-1]
    blocks = state_blocks(Dv)
    tiles = triton.cdiv(count, blocks["BLOCK_M"])
    tasks = acc.numel() // (count * 2 * Dv) * tiles
    launch(
        kernel,
        min(tasks, target.cores) if target.family == "ascend" else tasks,
        {**args, "rows": count, "tiles": tiles, "tasks": tasks},
        {**constants, **blocks},
        route=route,
        device=acc.device,
        arch=target.arch,
        # a contracted product would not be the number whose rounding error two_sum finds
        options={"enable_fp_fusion": False} if target.family == "nvidia" else {},
    )

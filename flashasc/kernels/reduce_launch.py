"""Start the kernel of reductions: how rows are cut into chunks, and chunks put together again."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from .._configs.reduce import ReduceConfig, choose_reduce
from .._reductions import Largest, Method, Rows, Term, rows_of
from .._target import Target
from .launch import Route, launch
from .reduce_rows import reduce_kernel

# a tile's offsets are computed in 32 bits below this, counted in 32 bits as well
_LIMIT = 2**31


def launch_sum(
    rows: Rows,
    term: Term,
    given: Tensor | None,
    method: Method,
    target: Target,
    route: Route,
) -> list[Tensor]:
    """Sum what `term` says over each row.

    Args:
        rows: fp16, bf16 or fp32, none of their sizes 0.
        term: see `Term`.
        given: [count] fp32, contiguous: the scale, pivot or mean of each row; None for the terms
            that need none.
        method: how the sums are kept.
        target, route: what the dispatcher chose.

    Returns:
        One tensor, [count] fp32, or for "spread" two: of the squares, and of the deviations.
    """
    return _reduce(rows, term, given, method, target, route)


def launch_max(rows: Rows, of: Largest, target: Target, route: Route) -> Tensor:
    """Largest x, -x or |x| of each row; NaN where a row holds one.

    Args:
        rows: fp16, bf16 or fp32, none of their sizes 0.
        of: see `Largest`.
        target, route: what the dispatcher chose.

    Returns:
        [count] fp32.
    """
    return _reduce(rows, of, None, "max", target, route)[0]


def kernel_constants(
    config: ReduceConfig, term: str, method: str, *, raw: bool, wide: bool, long: bool
) -> dict[str, Any]:
    """The kernel's constexpr arguments, by name.

    Args:
        config: row of the tile table.
        term, method: as the kernel takes them.
        raw: rows have several chunks.
        wide, long: strides, or the numbers of a row, need 64 bits.
    """
    return {
        "TERM": term,
        "METHOD": method,
        "RAW": raw,
        "STEPS": config.steps,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "ALONG": config.along,
        "WIDE": wide,
        "LONG": long,
        "CORE_LOOP": config.core_loop,
        "STAGES": config.stages,
    }


def absent_arguments(term: str) -> dict[str, None]:
    """The pointers that a call does not pass: the compiler drops what reads them."""
    passed = {
        "given_ptr": term in ("scaled", "weight", "spread"),
        "second_ptr": term == "spread",
    }
    return {name: None for name, is_passed in passed.items() if not is_passed}


def _reduce(
    rows: Rows, term: str, given: Tensor | None, method: str, target: Target, route: Route
) -> list[Tensor]:
    x = rows.tensor
    row_outer, row_inner, outer, inner = x.shape
    config = choose_reduce(target, rows.along, inner)
    tiles_m = triton.cdiv(row_inner, config.block_m)
    tiles_n = triton.cdiv(inner, config.block_n)
    tiles = outer * tiles_n
    chunks = triton.cdiv(tiles, config.steps)
    tasks = row_outer * tiles_m * chunks
    width = 1 if chunks == 1 else chunks if method == "max" else 2 * chunks
    made = 2 if term == "spread" else 1
    out = [
        torch.empty(rows.count * width, dtype=torch.float32, device=x.device) for _ in range(made)
    ]
    within = max(abs(stride) for stride in (x.stride(1), x.stride(3)))
    args = {
        "x_ptr": x,
        "given_ptr": given,
        "out_ptr": out[0],
        "second_ptr": out[1] if made == 2 else None,
        **dict(zip(("stride_xo", "stride_xm", "stride_xp", "stride_xn"), x.stride(), strict=True)),
        "rows": row_inner,
        "numbers": inner,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "tiles": tiles,
        "chunks": chunks,
        "tasks": tasks,
    }
    launch(
        reduce_kernel,
        min(tasks, target.cores) if config.core_loop else tasks,
        args,
        kernel_constants(
            config,
            term,
            method,
            raw=chunks > 1,
            wide=within * 2 * max(config.block_m, config.block_n) >= _LIMIT,
            long=inner + config.block_n >= _LIMIT,
        ),
        route=route,
        device=x.device,
        arch=target.arch,
        options=config.compiler_options(),
    )
    if chunks == 1:
        return out
    # the second stage: a state's numbers are summed like any others, and as carefully
    second = "value"
    return [
        _reduce(rows_of(part.view(rows.count, width), (1,)), second, None, method, target, route)[0]
        for part in out
    ]

"""Start the kernel of softmax and the norms, after the reductions that long rows need."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from .._configs.reduce import NormalizeConfig, choose_normalize
from .._reductions import Method, Mode, Rows
from .._target import Target
from .launch import Route, launch
from .normalize_rows import normalize_kernel
from .reduce_launch import launch_max, launch_sum


def launch_normalize(
    rows: Rows,
    out: Rows,
    weight: Tensor | None,
    bias: Tensor | None,
    mode: Mode,
    eps: float,
    method: Method,
    target: Target,
    route: Route,
) -> None:
    """Write softmax or a norm of each row.

    Args:
        rows: fp16, bf16 or fp32, none of their sizes 0; a row's numbers fold into one dimension.
        out: the same rows of the output.
        weight, bias: [length], contiguous, or None: for the norms.
        mode: what is computed.
        eps: added to the mean square of a norm.
        method: how the sums are kept.
        target, route: what the dispatcher chose.
    """
    config = choose_normalize(target)
    x, y = rows.tensor, out.tensor
    assert x.shape == y.shape and x.shape[2] == 1
    row_outer, row_inner, _, numbers = x.shape
    given = _given(rows, mode, method, target, route) if numbers > config.max_tile else None
    block_m, block_n = config.block_m(numbers), config.block_n(numbers)
    tiles_m, tiles_n = triton.cdiv(row_inner, block_m), triton.cdiv(numbers, block_n)
    tasks = row_outer * tiles_m * tiles_n
    strides = {
        f"stride_{letter}{dim}": tensor.stride(place)
        for letter, tensor in (("x", x), ("o", y))
        for dim, place in (("o", 0), ("m", 1), ("n", 3))
    }
    within = max(abs(tensor.stride(place)) for tensor in (x, y) for place in (1, 3))
    args = {
        "x_ptr": x,
        "out_ptr": y,
        "weight_ptr": weight,
        "bias_ptr": bias,
        "first_ptr": None if given is None else given[0],
        "second_ptr": None if given is None else given[1],
        **strides,
        "rows": row_inner,
        "numbers": numbers,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "tasks": tasks,
        "eps": eps,
    }
    schedule = config.schedule(mode, numbers)
    constants = kernel_constants(
        config,
        mode,
        method,
        numbers,
        given=given is not None,
        weight=weight is not None,
        bias=bias is not None,
        wide=within * 2 * max(block_m, block_n) >= 2**31,
    )
    launch(
        normalize_kernel,
        tasks if schedule.programs is None else min(tasks, target.cores * schedule.programs),
        args,
        constants,
        route=route,
        device=x.device,
        arch=target.arch,
        options=schedule.compiler_options(),
    )


def kernel_constants(
    config: NormalizeConfig,
    mode: Mode,
    method: str,
    numbers: int,
    *,
    given: bool,
    weight: bool,
    bias: bool,
    wide: bool,
) -> dict[str, Any]:
    """The kernel's constexpr arguments, by name.

    Args:
        config: row of the tile table.
        mode, method: as the kernel takes them.
        numbers: length of a row.
        given, weight, bias: as the kernel takes them.
        wide: strides need 64 bits.
    """
    schedule = config.schedule(mode, numbers)
    return {
        "MODE": mode,
        "METHOD": method,
        "GIVEN": given,
        "WEIGHT": weight,
        "BIAS": bias,
        "HELD": schedule.held and not given,
        "BLOCK_M": config.block_m(numbers),
        "BLOCK_N": config.block_n(numbers),
        "WIDE": wide,
        "CORE_LOOP": schedule.programs is not None,
        "STAGES": schedule.stages,
    }


def absent_arguments(*, given: bool, weight: bool, bias: bool) -> dict[str, None]:
    """The pointers that a call does not pass: the compiler drops what reads them."""
    passed = {"weight_ptr": weight, "bias_ptr": bias, "first_ptr": given, "second_ptr": given}
    return {name: None for name, is_passed in passed.items() if not is_passed}


def _given(
    rows: Rows, mode: Mode, method: Method, target: Target, route: Route
) -> tuple[Tensor, Tensor]:
    """What rows that do not lie in one tile are normalised with, see the kernel."""
    match mode:
        case "softmax":
            largest = launch_max(rows, "value", target, route)
            (total,) = launch_sum(rows, "weight", largest, method, target, route)
            # all of such a row is NaN, as inf - inf is
            return largest, total.masked_fill(~largest.isfinite(), torch.nan)
        case "rms_norm":
            (squares,) = launch_sum(rows, "square", None, method, target, route)
            return torch.zeros_like(squares), squares / rows.length
        case "layer_norm":
            (total,) = launch_sum(rows, "value", None, method, target, route)
            mean = total / rows.length
            squares, apart = launch_sum(rows, "spread", mean, method, target, route)
            spread = (squares - apart * (apart / rows.length)).clamp(min=0.0)
            # the mean in two numbers: see `blocks.reduce.row_moments`
            outer = rows.tensor.shape[0]
            parts = torch.stack([x.view(outer, -1) for x in (mean, apart / rows.length)], 1)
            return parts, spread / rows.length

"""Matrix product: one tile function under a grid schedule (GPU) and a core loop (NPU).

A long K is cut in parts, the same for every problem of that K: `gemm_kernel` then writes a raw
(sum, compensation) of each, and `gemm_merge_kernel` adds them up in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.compensated import merge
from blocks.gemm import gemm_tile, grouped_order
from blocks.layout import advance, load_block, load_spread, store_block


@triton.jit
def _finish(
    total, bias_ptr, residual_ptr, start_m, start_n, M, N,
    stride_bias_n, stride_rm, stride_rn,
    EPILOGUE: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """EPILOGUE(total + bias) + residual, in fp32; EPILOGUE is a jit function of a tile, or None."""
    BLOCK_M: tl.constexpr = total.shape[0]
    BLOCK_N: tl.constexpr = total.shape[1]
    if BIAS:
        total += load_spread(
            bias_ptr, 0, 1, start_n, N, 0, stride_bias_n, "columns", BLOCK_M, BLOCK_N, WIDE
        ).to(tl.float32)
    if EPILOGUE is not None:
        total = EPILOGUE(total)
    if RESIDUAL:
        total += load_block(
            residual_ptr, start_m, M, start_n, N, stride_rm, stride_rn,
            BLOCK_M, BLOCK_N, True, True, WIDE,
        ).to(tl.float32)  # fmt: skip
    return total


@triton.jit
def _gemm_task(
    task, a_ptr, b_ptr, out_ptr, bias_ptr, residual_ptr, acc_ptr, comp_ptr,
    stride_a0, stride_a1, stride_am, stride_ak, stride_b0, stride_b1, stride_bk, stride_bn,
    stride_o0, stride_o1, stride_om, stride_on, stride_r0, stride_r1, stride_rm, stride_rn,
    stride_bias_n, batch1, batches, M, N, K, tiles_m, tiles_n, parts,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PART_K: tl.constexpr,
    GROUP: tl.constexpr, METHOD: tl.constexpr, SEGMENT: tl.constexpr, BRANCH: tl.constexpr,
    PRODUCT: tl.constexpr, SPLIT: tl.constexpr, EPILOGUE: tl.constexpr, BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr, CHECK_M: tl.constexpr, CHECK_N: tl.constexpr, CHECK_K: tl.constexpr,
    WIDE: tl.constexpr, A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute one tile: task = (batch * parts + part) * tiles_m * tiles_n + tile."""
    tiles = tiles_m * tiles_n
    tile_m, tile_n = grouped_order(task % tiles, tiles_m, tiles_n, GROUP)
    part = task // tiles % parts
    batch = task // tiles // parts
    start_m = tile_m * BLOCK_M
    start_n = tile_n * BLOCK_N
    a_ptr = advance(advance(a_ptr, batch // batch1, stride_a0), batch % batch1, stride_a1)
    b_ptr = advance(advance(b_ptr, batch // batch1, stride_b0), batch % batch1, stride_b1)
    begin_k = 0
    end_k = K
    if SPLIT:
        begin_k = part * PART_K
        end_k = tl.minimum(begin_k + PART_K, K)
    acc, comp = gemm_tile(
        a_ptr, b_ptr, start_m, start_n, begin_k, end_k, M, N,
        stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, METHOD, SEGMENT, BRANCH, PRODUCT,
        CHECK_M, CHECK_N, CHECK_K, WIDE, A_BY_COLUMNS, B_BY_COLUMNS,
    )  # fmt: skip
    if SPLIT:
        # raw pairs, [parts, batches, M, N] each
        place = part * batches + batch
        size = tl.cast(M, tl.int64) * N
        store_block(advance(acc_ptr, place, size), acc, start_m, M, start_n, N, N, 1, WIDE)
        if METHOD != "plain":
            store_block(advance(comp_ptr, place, size), comp, start_m, M, start_n, N, N, 1, WIDE)
    else:
        if METHOD != "plain":
            acc += comp
        if RESIDUAL:
            residual_ptr = advance(residual_ptr, batch // batch1, stride_r0)
            residual_ptr = advance(residual_ptr, batch % batch1, stride_r1)
        total = _finish(
            acc, bias_ptr, residual_ptr, start_m, start_n, M, N,
            stride_bias_n, stride_rm, stride_rn, EPILOGUE, BIAS, RESIDUAL, WIDE,
        )  # fmt: skip
        out_ptr = advance(advance(out_ptr, batch // batch1, stride_o0), batch % batch1, stride_o1)
        store_block(out_ptr, total, start_m, M, start_n, N, stride_om, stride_on, WIDE)


# sizes are not worth a compilation each
@triton.jit(
    do_not_specialize=["batch1", "batches", "M", "N", "K", "tiles_m", "tiles_n", "parts", "tasks"]
)
def gemm_kernel(
    a_ptr, b_ptr, out_ptr, bias_ptr, residual_ptr, acc_ptr, comp_ptr,
    stride_a0, stride_a1, stride_am, stride_ak, stride_b0, stride_b1, stride_bk, stride_bn,
    stride_o0, stride_o1, stride_om, stride_on, stride_r0, stride_r1, stride_rm, stride_rn,
    stride_bias_n, batch1, batches, M, N, K, tiles_m, tiles_n, parts, tasks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PART_K: tl.constexpr,
    GROUP: tl.constexpr, METHOD: tl.constexpr, SEGMENT: tl.constexpr, BRANCH: tl.constexpr,
    PRODUCT: tl.constexpr, SPLIT: tl.constexpr, EPILOGUE: tl.constexpr, BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr, CHECK_M: tl.constexpr, CHECK_N: tl.constexpr, CHECK_K: tl.constexpr,
    WIDE: tl.constexpr, A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr,
    CORE_LOOP: tl.constexpr,
):  # fmt: skip
    """EPILOGUE(a @ b + bias) + residual of [.., .., M, K] and [.., .., K, N], or a part of its sum.

    SPLIT: K is cut every PART_K, and raw sums are written to acc_ptr and comp_ptr instead.
    CORE_LOOP: one program per core, which loops over the tasks (NPU); otherwise one program per
    task (GPU).
    """
    if CORE_LOOP:
        for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
            _gemm_task(
                task, a_ptr, b_ptr, out_ptr, bias_ptr, residual_ptr, acc_ptr, comp_ptr,
                stride_a0, stride_a1, stride_am, stride_ak,
                stride_b0, stride_b1, stride_bk, stride_bn,
                stride_o0, stride_o1, stride_om, stride_on,
                stride_r0, stride_r1, stride_rm, stride_rn,
                stride_bias_n, batch1, batches, M, N, K, tiles_m, tiles_n, parts,
                BLOCK_M, BLOCK_N, BLOCK_K, PART_K, GROUP, METHOD, SEGMENT, BRANCH, PRODUCT, SPLIT,
                EPILOGUE, BIAS, RESIDUAL, CHECK_M, CHECK_N, CHECK_K, WIDE,
                A_BY_COLUMNS, B_BY_COLUMNS,
            )  # fmt: skip
    else:
        _gemm_task(
            tl.program_id(0), a_ptr, b_ptr, out_ptr, bias_ptr, residual_ptr, acc_ptr, comp_ptr,
            stride_a0, stride_a1, stride_am, stride_ak, stride_b0, stride_b1, stride_bk, stride_bn,
            stride_o0, stride_o1, stride_om, stride_on, stride_r0, stride_r1, stride_rm, stride_rn,
            stride_bias_n, batch1, batches, M, N, K, tiles_m, tiles_n, parts,
            BLOCK_M, BLOCK_N, BLOCK_K, PART_K, GROUP, METHOD, SEGMENT, BRANCH, PRODUCT, SPLIT,
            EPILOGUE, BIAS, RESIDUAL, CHECK_M, CHECK_N, CHECK_K, WIDE, A_BY_COLUMNS, B_BY_COLUMNS,
        )  # fmt: skip


@triton.jit
def _merge_task(
    task, acc_ptr, comp_ptr, out_ptr, bias_ptr, residual_ptr,
    stride_o0, stride_o1, stride_om, stride_on, stride_r0, stride_r1, stride_rm, stride_rn,
    stride_bias_n, batch1, batches, M, N, tiles_m, tiles_n, parts,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, METHOD: tl.constexpr, EPILOGUE: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add up the parts of one tile: task = batch * tiles_m * tiles_n + tile."""
    tiles = tiles_m * tiles_n
    batch = task // tiles
    start_m = task % tiles // tiles_n * BLOCK_M
    start_n = task % tiles_n * BLOCK_N
    size = tl.cast(M, tl.int64) * N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    comp = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for part in range(parts):
        place = part * batches + batch
        acc_part = load_block(
            advance(acc_ptr, place, size), start_m, M, start_n, N, N, 1,
            BLOCK_M, BLOCK_N, True, True, WIDE,
        )  # fmt: skip
        if METHOD == "plain":
            acc += acc_part
        else:
            comp_part = load_block(
                advance(comp_ptr, place, size), start_m, M, start_n, N, N, 1,
                BLOCK_M, BLOCK_N, True, True, WIDE,
            )  # fmt: skip
            acc, comp = merge(acc, comp, acc_part, comp_part)
    if RESIDUAL:
        residual_ptr = advance(residual_ptr, batch // batch1, stride_r0)
        residual_ptr = advance(residual_ptr, batch % batch1, stride_r1)
    total = _finish(
        acc + comp, bias_ptr, residual_ptr, start_m, start_n, M, N,
        stride_bias_n, stride_rm, stride_rn, EPILOGUE, BIAS, RESIDUAL, WIDE,
    )  # fmt: skip
    out_ptr = advance(advance(out_ptr, batch // batch1, stride_o0), batch % batch1, stride_o1)
    store_block(out_ptr, total, start_m, M, start_n, N, stride_om, stride_on, WIDE)


@triton.jit(
    do_not_specialize=["batch1", "batches", "M", "N", "tiles_m", "tiles_n", "parts", "tasks"]
)
def gemm_merge_kernel(
    acc_ptr, comp_ptr, out_ptr, bias_ptr, residual_ptr,
    stride_o0, stride_o1, stride_om, stride_on, stride_r0, stride_r1, stride_rm, stride_rn,
    stride_bias_n, batch1, batches, M, N, tiles_m, tiles_n, parts, tasks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, METHOD: tl.constexpr, EPILOGUE: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, WIDE: tl.constexpr, CORE_LOOP: tl.constexpr,
):  # fmt: skip
    """What `gemm_kernel` wrote of each part of K, added up in order, and finished."""
    if CORE_LOOP:
        for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
            _merge_task(
                task, acc_ptr, comp_ptr, out_ptr, bias_ptr, residual_ptr,
                stride_o0, stride_o1, stride_om, stride_on,
                stride_r0, stride_r1, stride_rm, stride_rn,
                stride_bias_n, batch1, batches, M, N, tiles_m, tiles_n, parts,
                BLOCK_M, BLOCK_N, METHOD, EPILOGUE, BIAS, RESIDUAL, WIDE,
            )  # fmt: skip
    else:
        _merge_task(
            tl.program_id(0), acc_ptr, comp_ptr, out_ptr, bias_ptr, residual_ptr,
            stride_o0, stride_o1, stride_om, stride_on, stride_r0, stride_r1, stride_rm, stride_rn,
            stride_bias_n, batch1, batches, M, N, tiles_m, tiles_n, parts,
            BLOCK_M, BLOCK_N, METHOD, EPILOGUE, BIAS, RESIDUAL, WIDE,
        )  # fmt: skip

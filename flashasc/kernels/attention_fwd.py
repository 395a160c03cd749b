"""Attention forward: one tile function under a grid schedule (GPU) and a core loop (NPU)."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from blocks.constants import LOG2E, NEG_INF
from blocks.gemm import dot
from blocks.layout import advance, load_tile, store_rows, store_tile
from blocks.masking import causal, key_range, within
from blocks.softmax import fold_segment, online_finalize, online_init, online_update

from .._configs import TileConfig
from .._problem import AttentionProblem
from .._target import Target
from .launch import Route, launch


@triton.jit
def _attend_tile(
    # the state, see blocks.softmax, and the pivot that acc is under
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, acc_pivot,
    q, k_ptr, v_ptr, start_n, seen_by_all, seen_by_any, offs_m, diagonal, scale,
    stride_kn, stride_kd, stride_vn, stride_vd,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, METHOD: tl.constexpr,
    SEGMENT: tl.constexpr, WITH_LSE: tl.constexpr, NATURAL: tl.constexpr,
    DOT_PRECISION: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Attend from a tile of queries to the keys [start_n, start_n + BLOCK_N).

    MASK says which tiles pay for a mask: "never" (the caller knows that every row sees every key),
    "always", or "branch" (this tile only if it has to, decided as it runs).
    """
    # keys that no row of the tile sees are not read: whatever lies there cannot spread
    k = load_tile(
        k_ptr, start_n, seen_by_any, stride_kn, stride_kd, D, BLOCK_N, BLOCK_D,
        CHECK_ROWS=MASK != "never", WIDE=WIDE,
    )  # [BLOCK_N, BLOCK_D]  # fmt: skip
    scores = dot(q, tl.trans(k), DOT_PRECISION) * scale  # [BLOCK_M, BLOCK_N]
    if MASK == "always":
        scores = _hide(scores, start_n, seen_by_any, offs_m, diagonal, CAUSAL)
    elif MASK == "branch":
        if start_n + BLOCK_N > seen_by_all:
            scores = _hide(scores, start_n, seen_by_any, offs_m, diagonal, CAUSAL)
    v = load_tile(
        v_ptr, start_n, seen_by_any, stride_vn, stride_vd, Dv, BLOCK_N, BLOCK_DV,
        CHECK_ROWS=MASK != "never", WIDE=WIDE,
    )  # [BLOCK_N, BLOCK_DV]  # fmt: skip
    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_update(
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp,
        scores, v, METHOD, False, WITH_LSE, NATURAL, DOT_PRECISION,
    )  # fmt: skip
    if METHOD == "segment":
        # counted from key 0, so that the bits do not depend on where the visible keys begin
        if start_n // BLOCK_N % SEGMENT == SEGMENT - 1:
            acc, acc_comp = fold_segment(
                acc, acc_comp, acc_pivot, pivot, v.dtype == tl.float32, NATURAL
            )
            acc_pivot = pivot
    return pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, acc_pivot


@triton.jit
def _hide(scores, start_n, seen_by_any, offs_m, diagonal, CAUSAL: tl.constexpr):
    """Scores with -inf where the row may not see the key."""
    offs_n = start_n + tl.arange(0, scores.shape[1])
    if CAUSAL:
        visible = causal(offs_m, offs_n, diagonal) & within(offs_n, seen_by_any)[None, :]
    else:
        visible = tl.broadcast_to(within(offs_n, seen_by_any)[None, :], scores.shape)
    return tl.where(visible, scores, NEG_INF)


@triton.jit
def _attention_fwd_tile(
    task, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_om, stride_od,
    Hq, group, Sq, Sk, diagonal, tiles_m,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, METHOD: tl.constexpr,
    WITH_LSE: tl.constexpr, NATURAL: tl.constexpr, COMP_DTYPE: tl.constexpr,
    DOT_PRECISION: tl.constexpr, SPLIT_LOOP: tl.constexpr, SEGMENT: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Compute one tile of query rows of one head: task = (batch * Hq + head) * tiles_m + tile."""
    pid_bh = task // tiles_m
    # the last rows of a causal problem have the most keys: they go first
    pid_m = tiles_m - 1 - task % tiles_m
    batch = pid_bh // Hq
    head = pid_bh % Hq
    q_ptr = advance(advance(q_ptr, batch, stride_qb), head, stride_qh)
    k_ptr = advance(advance(k_ptr, batch, stride_kb), head // group, stride_kh)
    v_ptr = advance(advance(v_ptr, batch, stride_vb), head // group, stride_vh)
    out_ptr = advance(advance(out_ptr, batch, stride_ob), head, stride_oh)

    start_m = pid_m * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    seen_by_all, seen_by_any = key_range(
        start_m, tl.minimum(start_m + BLOCK_M, Sq), Sk, diagonal, CAUSAL
    )
    q = load_tile(
        q_ptr, start_m, Sq, stride_qm, stride_qd, D, BLOCK_M, BLOCK_D, CHECK_ROWS=True, WIDE=WIDE
    )  # [BLOCK_M, BLOCK_D]

    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp = online_init(
        BLOCK_M, BLOCK_DV, COMP_DTYPE
    )
    # SPLIT_LOOP: whole tiles first, then those that need a mask; either loop may be empty. Without
    # it one loop that runs at least once: on Ascend A2 and A3 a loop that runs zero times leaves
    # its accumulators uninitialised (reported for triton-ascend 3.2.0).
    acc_pivot = pivot
    unmasked_end = 0
    if SPLIT_LOOP:
        unmasked_end = seen_by_all // BLOCK_N * BLOCK_N
        for start_n in range(0, unmasked_end, BLOCK_N):
            pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, acc_pivot = (
                _attend_tile(
                    pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, acc_pivot,
                    q, k_ptr, v_ptr, start_n, seen_by_all, seen_by_any, offs_m, diagonal, scale,
                    stride_kn, stride_kd, stride_vn, stride_vd, D, Dv, BLOCK_D, BLOCK_DV, BLOCK_N,
                    CAUSAL, "never", METHOD, SEGMENT, WITH_LSE, NATURAL, DOT_PRECISION, WIDE,
                )
            )  # fmt: skip
        last_end = seen_by_any
    else:
        last_end = tl.maximum(seen_by_any, 1)
    for start_n in range(unmasked_end, last_end, BLOCK_N):
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, acc_pivot = (
            _attend_tile(
                pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, acc_pivot,
                q, k_ptr, v_ptr, start_n, seen_by_all, seen_by_any, offs_m, diagonal, scale,
                stride_kn, stride_kd, stride_vn, stride_vd, D, Dv, BLOCK_D, BLOCK_DV, BLOCK_N,
                CAUSAL, "always" if SPLIT_LOOP else "branch", METHOD, SEGMENT, WITH_LSE, NATURAL,
                DOT_PRECISION, WIDE,
            )
        )  # fmt: skip
    if METHOD == "segment":
        acc, acc_comp = fold_segment(
            acc, acc_comp, acc_pivot, pivot, v_ptr.dtype.element_ty == tl.float32, NATURAL
        )

    SEPARATE_LSE: tl.constexpr = (
        WITH_LSE and METHOD != "plain"
    ) and v_ptr.dtype.element_ty != tl.float32
    out, lse = online_finalize(
        pivot, row_sum, row_sum_comp, lse_sum, lse_sum_comp, acc, acc_comp, SEPARATE_LSE, NATURAL
    )
    store_tile(out_ptr, out, start_m, Sq, stride_om, stride_od, Dv, WIDE)
    if WITH_LSE:
        store_rows(advance(lse_ptr, pid_bh, Sq), lse, start_m, Sq)


@triton.jit(do_not_specialize=["Hq", "group", "Sq", "Sk", "diagonal", "tiles_m", "tasks"])
def _attention_fwd_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_om, stride_od,
    Hq, group, Sq, Sk, diagonal, tiles_m, tasks,
    D: tl.constexpr, Dv: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, METHOD: tl.constexpr,
    WITH_LSE: tl.constexpr, NATURAL: tl.constexpr, COMP_DTYPE: tl.constexpr,
    DOT_PRECISION: tl.constexpr, SPLIT_LOOP: tl.constexpr, SEGMENT: tl.constexpr,
    WIDE: tl.constexpr,
    CORE_LOOP: tl.constexpr,
):  # fmt: skip
    """Attention of [B, Hq, Sq, D] queries to [B, Hk, Sk, D] keys and [B, Hk, Sk, Dv] values.

    CORE_LOOP: one program per core, which loops over the tasks (NPU); otherwise one program per
    task (GPU).
    """
    if CORE_LOOP:
        for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
            _attention_fwd_tile(
                task, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale,
                stride_qb, stride_qh, stride_qm, stride_qd,
                stride_kb, stride_kh, stride_kn, stride_kd,
                stride_vb, stride_vh, stride_vn, stride_vd,
                stride_ob, stride_oh, stride_om, stride_od,
                Hq, group, Sq, Sk, diagonal, tiles_m,
                D, Dv, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, CAUSAL, METHOD, WITH_LSE,
                NATURAL, COMP_DTYPE, DOT_PRECISION, SPLIT_LOOP, SEGMENT, WIDE,
            )  # fmt: skip
    else:
        _attention_fwd_tile(
            tl.program_id(0), q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale,
            stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
            stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_om, stride_od,
            Hq, group, Sq, Sk, diagonal, tiles_m,
            D, Dv, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, CAUSAL, METHOD, WITH_LSE,
            NATURAL, COMP_DTYPE, DOT_PRECISION, SPLIT_LOOP, SEGMENT, WIDE,
        )  # fmt: skip


def kernel_constants(problem: AttentionProblem, config: TileConfig, wide: bool) -> dict[str, Any]:
    """The kernel's constexpr arguments, by name, for one problem and one row of the tile table."""
    return {
        "D": problem.D,
        "Dv": problem.Dv,
        "BLOCK_D": config.columns(problem.D),
        "BLOCK_DV": config.columns(problem.Dv),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "CAUSAL": problem.causal,
        "METHOD": _method(problem, config),
        "WITH_LSE": problem.with_lse,
        "NATURAL": config.natural_exp,
        "COMP_DTYPE": tl.bfloat16 if config.comp_dtype == torch.bfloat16 else tl.float32,
        "DOT_PRECISION": config.dot_precision,
        "SPLIT_LOOP": config.split_loop,
        "SEGMENT": config.segment,
        "WIDE": wide,
        "CORE_LOOP": config.core_loop,
    }


def kernel_signature(problem: AttentionProblem) -> dict[str, str]:
    """Triton types of the kernel's runtime arguments, by name.

    As `launch_attention_fwd` passes them for tensors whose strides and sizes fit in 32 bits.
    """
    dtype = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
    types = {"out_ptr": f"*{dtype[problem.out_dtype]}", "lse_ptr": "*fp32", "scale": "fp32"}
    types |= dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), f"*{dtype[problem.dtype]}")
    constants = {p.name for p in _attention_fwd_kernel.params if p.is_constexpr}
    return {
        name: types.get(name, "i32")
        for name in _attention_fwd_kernel.arg_names
        if name not in constants
    }


def launch_attention_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    problem: AttentionProblem,
    config: TileConfig,
    target: Target,
    route: Route,
) -> None:
    """Write the attention output, and its log-sum-exp unless `lse` is None.

    Args:
        q: [B, Hq, Sq, D] any strides.
        k: [B, Hk, Sk, D] any strides.
        v: [B, Hk, Sk, Dv] any strides.
        out: [B, Hq, Sq, Dv] any strides. Every element is written.
        lse: [B, Hq, Sq] fp32, contiguous, natural-log units.
        problem: the facts of the call; not empty.
        config, target, route: what the dispatcher chose.
    """
    tiles_m = triton.cdiv(problem.Sq, config.block_m)
    tasks = problem.B * problem.Hq * tiles_m
    views = (("q", "bhmd", q), ("k", "bhnd", k), ("v", "bhnd", v), ("o", "bhmd", out))
    strides = {
        f"stride_{letter}{dim}": stride
        for letter, dims, tensor in views
        for dim, stride in zip(dims, tensor.stride(), strict=True)
    }
    # a single column may come with any stride; known to be 1, it costs nothing
    strides |= {f"stride_{x}d": 1 for x, _, tensor in views if tensor.shape[-1] == 1}
    largest = max(abs(stride) for tensor in (q, k, v, out) for stride in tensor.stride()[2:])
    wide = largest * 2 * max(config.block_m, config.block_n, 256) >= 2**31
    args = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "out_ptr": out, "lse_ptr": lse,
        "scale": problem.scale * (1.0 if config.natural_exp else LOG2E.value), **strides,
        "Hq": problem.Hq, "group": problem.group, "Sq": problem.Sq, "Sk": problem.Sk,
        "diagonal": problem.diagonal, "tiles_m": tiles_m, "tasks": tasks,
    }  # fmt: skip
    launch(
        _attention_fwd_kernel,
        min(tasks, target.cores) if config.core_loop else tasks,
        args,
        kernel_constants(problem, config, wide),
        route=route,
        device=problem.device,
        arch=target.arch,
        options=config.compiler_options(),
    )


def _method(problem: AttentionProblem, config: TileConfig) -> str:
    """How sums over keys are kept: see `blocks.softmax.online_update`."""
    if problem.precision == "standard":
        return "plain"
    return "kahan" if config.segment == 1 else "segment"

"""Start the matrix-product kernels: their arguments, and what they are specialised for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from blocks import activations

from .._configs.gemm_tile import GemmTile
from .._gemm_problem import GemmProblem
from .._target import Target
from .batches import by_columns, joined
from .gemm import gemm_kernel, gemm_merge_kernel
from .launch import Route, launch

_DTYPE = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


@dataclass(frozen=True)
class Specialised:
    """What the kernels are specialised for, beside the facts of the problem."""

    wide: bool = False
    """Strides need 64 bits."""
    a_by_columns: bool = False
    """The last stride of a is not 1, the one before it is."""
    b_by_columns: bool = False
    epilogue: Any = None
    """A `@triton.jit` function of one fp32 tile; None: the problem's activation."""


def stages(
    problem: GemmProblem, row: GemmTile, special: Specialised
) -> list[tuple[Any, dict[str, Any]]]:
    """The kernels that compute a problem, in order, each with its constexpr arguments by name."""
    epilogue = special.epilogue
    if epilogue is None and problem.activation is not None:
        epilogue = getattr(activations, problem.activation)
    method = "kahan" if problem.compensated else "plain"
    end = {"EPILOGUE": epilogue, "BIAS": problem.has_bias, "RESIDUAL": problem.has_residual}
    always = {"METHOD": method, "WIDE": special.wide, "CORE_LOOP": row.core_loop}
    split = row.parts(problem.K) > 1
    first = {
        "BLOCK_M": row.block_m,
        "BLOCK_N": row.block_n,
        "BLOCK_K": row.block_k,
        "PART_K": row.part_k,
        "GROUP": row.group,
        "SEGMENT": row.segment,
        "BRANCH": row.branch,
        "PRODUCT": problem.product,
        "SPLIT": split,
        "CHECK_M": problem.M % row.block_m != 0,
        "CHECK_N": problem.N % row.block_n != 0,
        "CHECK_K": problem.K % row.block_k != 0,
        "A_BY_COLUMNS": special.a_by_columns,
        "B_BY_COLUMNS": special.b_by_columns,
        **always,
        # of parts the second kernel makes the result
        **({"EPILOGUE": None, "BIAS": False, "RESIDUAL": False} if split else end),
    }
    if not split:
        return [(gemm_kernel, first)]
    second = {"BLOCK_M": row.merge_m, "BLOCK_N": row.merge_n, **always, **end}
    return [(gemm_kernel, first), (gemm_merge_kernel, second)]


def kernel_signature(kernel: Any, problem: GemmProblem) -> dict[str, str]:
    """Triton types of a kernel's runtime arguments, by name, for strides that fit in 32 bits."""
    types = dict.fromkeys(
        ("a_ptr", "b_ptr", "bias_ptr", "residual_ptr"), f"*{_DTYPE[problem.dtype]}"
    )
    types |= {"out_ptr": f"*{_DTYPE[problem.out_dtype]}", "acc_ptr": "*fp32", "comp_ptr": "*fp32"}
    constants = {p.name for p in kernel.params if p.is_constexpr}
    return {name: types.get(name, "i32") for name in kernel.arg_names if name not in constants}


def launch_gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    problem: GemmProblem,
    row: GemmTile,
    target: Target,
    route: Route,
    *,
    epilogue: Any = None,
) -> None:
    """Write epilogue(a @ b + bias) + residual.

    Args:
        a: [*batch, M, K], any strides; its batch broadcasts, like those of b and residual.
        b: [*batch, K, N], any strides.
        bias: [N], or None.
        residual: broadcasts to [*batch, M, N], or None.
        out: [*batch, M, N], any strides. Every element is written.
        problem: the facts of the call; not empty.
        row, target, route: what the dispatcher chose.
        epilogue: a `@triton.jit` function of one fp32 tile; None: the problem's activation.
    """
    a = a.expand(*problem.batch, *a.shape[-2:])
    b = b.expand(*problem.batch, *b.shape[-2:])
    tensors = {"a": a, "b": b, "o": out}
    if residual is not None:
        residual = tensors["r"] = residual.expand(problem.shape)
    batches = joined(tensors, shared="b")
    if len(batches.sizes) > 2:
        # more kinds of strides than the kernels count: the outermost, one by one
        inner = replace(problem, batch=problem.batch[1:])
        for i in range(problem.batch[0]):
            part = None if residual is None else residual[i]
            launch_gemm(
                a[i], b[i], bias, part, out[i], inner, row, target, route, epilogue=epilogue
            )
        return
    problem = replace(problem, batch=batches.sizes, M=batches.rows)
    parts, count = row.parts(problem.K), math.prod(batches.sizes)
    acc = comp = None
    if parts > 1:
        acc = out.new_empty((parts, count, problem.M, problem.N), dtype=torch.float32)
        comp = torch.empty_like(acc) if problem.compensated else None
    arguments: dict[str, Any] = {
        "a_ptr": a, "b_ptr": b, "out_ptr": out, "bias_ptr": bias, "residual_ptr": residual,
        "acc_ptr": acc, "comp_ptr": comp,
        "batch1": batches.sizes[-1] if batches.sizes else 1, "batches": count,
        "M": problem.M, "N": problem.N, "K": problem.K, "parts": parts,
        "stride_bias_n": 0 if bias is None else bias.stride(0),
    }  # fmt: skip
    reach = problem.N
    for name, dims in (("a", "mk"), ("b", "kn"), ("o", "mn"), ("r", "mn")):
        *outer, rows, columns = batches.strides.get(name, (0, 0))
        steps = [*[0, 0, *outer][-2:], rows, columns]
        arguments |= {f"stride_{name}{d}": s for d, s in zip("01" + dims, steps, strict=True)}
        reach = max(reach, abs(rows), abs(columns))
    special = Specialised(
        wide=reach * 2 * max(row.block_m, row.block_n, row.block_k) >= 2**31,
        a_by_columns=by_columns(batches.strides["a"], problem.K),
        b_by_columns=by_columns(batches.strides["b"], problem.N),
        epilogue=epilogue,
    )
    for kernel, constants in stages(problem, row, special):
        tiles = (
            triton.cdiv(problem.M, constants["BLOCK_M"]),
            triton.cdiv(problem.N, constants["BLOCK_N"]),
        )
        tasks = math.prod(tiles) * count * (parts if kernel is gemm_kernel else 1)
        known = arguments | {"tiles_m": tiles[0], "tiles_n": tiles[1], "tasks": tasks}
        # sums of parts are finished by the second kernel: the first has no need of these
        if not constants["BIAS"]:
            known |= {"bias_ptr": None, "stride_bias_n": 0}
        if not constants["RESIDUAL"]:
            known |= {"residual_ptr": None} | {f"stride_r{dim}": 0 for dim in "01mn"}
        launch(
            kernel,
            min(tasks, target.cores) if row.core_loop else tasks,
            {name: known[name] for name in kernel.arg_names if name in known},
            constants,
            route=route,
            device=problem.device,
            arch=target.arch,
            options=row.compiler_options(),
        )

"""The one place that picks between two ways of computing, and says why."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeAlias, TypeVar

import torch

from ._configs import (
    GemmTile,
    TileConfig,
    choose,
    choose_gemm,
    choose_split,
    rows_of_a_tile,
    within_pages,
)
from ._gemm_problem import GemmProblem
from ._problem import AttentionProblem
from ._target import Target, target_of
from ._triton import require

Impl = Literal["auto", "triton", "reference"]
KernelRoutes = Literal["device", "native", "interpreter"]
Routes = Literal["reference", KernelRoutes]


Config = TypeVar("Config", TileConfig, GemmTile)


@dataclass(frozen=True)
class Plan(Generic[Config]):
    """How a call is computed. `print(plan)` says it in words."""

    route: Routes
    reason: str
    target: Target | None = None
    """What the kernel is compiled for; None for the reference."""
    config: Config | None = None
    """The row of the tile table it runs with; None for the reference, and where no sequence has so
    many queries as to need it."""
    split: TileConfig | None = None
    """The row for sequences of few queries, whose keys are split into chunks; None where no
    sequence has so few."""
    few: int = 0
    """The most queries of a sequence that runs with `split`."""

    def __str__(self) -> str:
        if self.target is None:
            return f"reference (plain PyTorch): {self.reason}"
        where = {
            "device": f"Triton kernel on {self.target.arch}",
            "native": f"Triton kernel, lowered for {self.target.arch}, natively on the CPU",
            "interpreter": "Triton kernel in Triton's interpreter",
        }[self.route]
        parts = []
        if self.config is not None:
            tile = f"tile {self.config.block_m} x {self.config.block_n}"
            loop = "one program a core" if self.config.core_loop else "one program a tile"
            parts.append(f"{tile}, {loop} ({self.config.source})")
        if self.split is not None:
            parts.append(
                f"keys split into chunks of {self.split.chunk} for sequences of at most {self.few} "
                f"queries, tile {self.split.block_m} x {self.split.block_n} ({self.split.source})"
            )
        return f"{where}: {self.reason}; {'; '.join(parts)}"


AttentionPlan: TypeAlias = Plan[TileConfig]


@dataclass(frozen=True)
class ReductionPlan:
    """How a reduction is computed."""

    route: Routes
    target: Target | None = None
    """What the kernel is compiled for; None for the reference."""


def plan_reduction(
    device: torch.device, dtype: torch.dtype, impl: Impl, *, normalized: int = 0
) -> ReductionPlan:
    """Choose the route and the target of a reduction, by the rules of attention.

    An explicit `impl` is never replaced by another one.

    Args:
        device, dtype: of the tensor.
        impl: as asked for.
        normalized: numbers of a row that is written as well as read.

    Raises:
        NotImplementedError: the kernel does not compute in this dtype, or such long rows.
        ImportError: the kernel is needed and no fitting Triton is installed.
    """
    route, _reason = _route(device, dtype, impl, None)
    if route == "reference":
        return ReductionPlan(route)
    if normalized >= 2**30:
        raise NotImplementedError(
            f"the kernels normalise rows of fewer than 2**30 numbers; got {normalized}. Use "
            "impl='reference', which is plain PyTorch"
        )
    return ReductionPlan(route, target_of(device))


def kernel_route(device: torch.device) -> KernelRoutes:
    """Where a kernel on tensors of this device runs."""
    if device.type != "cpu":
        return "device"
    return "interpreter" if os.environ.get("TRITON_INTERPRET") == "1" else "native"


Splits = Literal["few", "never", "always"]
"""Whether keys are split into chunks: those of few queries, none, all."""


def plan_decode(problem: AttentionProblem, impl: Impl, page: int = 0) -> AttentionPlan:
    """The same as `plan_attention` for a call with a cache, whose keys are always split.

    Args:
        problem, impl: as for `plan_attention`.
        page: keys of a page; 0: a sequence's keys lie in one piece.

    Raises:
        What `plan_attention` does.
        NotImplementedError: pages too small for the target's compiler.
    """
    plan = plan_attention(problem, impl, splits="always")
    if plan.split is None:
        return plan
    if plan.route == "device" and 0 < page < plan.split.least_page:
        assert plan.target is not None
        raise NotImplementedError(
            f"the kernels for {plan.target.arch} need pages of {plan.split.least_page} keys or "
            f'more in {problem.dtype}; got pages of {page}. Use larger pages, or impl="reference"'
        )
    return replace(plan, split=within_pages(plan.split, page))


def plan_attention(
    problem: AttentionProblem, impl: Impl, *, splits: Splits = "few"
) -> AttentionPlan:
    """Choose the route, the target and the tile for a call.

    An explicit `impl` is never replaced by another one.

    Args:
        problem: the facts of the call.
        impl: what the caller asked for.
        splits: whose keys are split.

    Raises:
        NotImplementedError: the kernel cannot do this, or has no table for this device.
        ImportError: the kernel is needed and no fitting Triton is installed.
    """
    nothing = "no key or no output: at most sinks are to be written" if problem.empty else None
    route, reason = _route(problem.device, problem.dtype, impl, nothing)
    if route == "reference":
        return Plan(route, reason)
    target = target_of(problem.device)
    if route == "device" and target.family == "ascend" and not problem.in_pieces:
        # gathered element by element, such a tile overflows the chip's buffers
        raise NotImplementedError(
            f"the kernels for {target.arch} need q, k and v whose last stride, or the one before "
            "it, is 1, and a mask and a bias whose last stride is 1: rows or columns that lie in "
            "one piece. Make them so with .contiguous(), or use impl='reference'"
        )
    if splits == "never" or problem.has_mask or problem.has_bias:
        # the kernel for few queries takes neither
        return Plan(route, reason, target, choose(problem, target))
    # What decides is the sequence's own number of queries, never its batch mates: its bits stay the
    # same in any batch. Those of packed sequences are known on the device alone: both kernels run,
    # and each leaves the other's sequences out.
    split = choose_split(problem, target)
    few, _ = rows_of_a_tile(split, problem.group)
    if splits == "always":
        return Plan(route, reason, target, None, split, problem.Sq)
    if not problem.packed and problem.Sq > few:
        return Plan(route, reason, target, choose(problem, target))
    all_few = min(problem.Sq, problem.tokens_q) <= few if problem.packed else True
    return Plan(route, reason, target, None if all_few else choose(problem, target), split, few)


def plan_gemm(problem: GemmProblem, impl: Impl, *, in_pieces: bool) -> Plan[GemmTile]:
    """Choose the route, the target and the tile for a matrix product.

    An explicit `impl` is never replaced by another one.

    Args:
        problem: the facts of the call.
        impl: what was asked for.
        in_pieces: of both factors the last stride or the one before it is 1, of a residual, as it
            is broadcast, the last.

    Raises:
        NotImplementedError: the kernel cannot do this, or has no table for this device; or the
            reference has no such product.
        ImportError: the kernel is needed and no fitting Triton is installed.
    """
    nothing = "nothing to multiply" if problem.empty else None
    route, reason = _route(problem.device, problem.dtype, impl, nothing)
    if route == "reference":
        if problem.product in ("hf32", "tf32", "tf32x3") and not problem.empty:
            raise NotImplementedError(
                f'product="{problem.product}" is an accelerator\'s: the reference, in plain '
                'PyTorch, has "ieee", "bf16x3", "bf16x6", "fp16x3" and "fp16x6"'
            )
        return Plan(route, reason)
    target = target_of(problem.device)
    if route == "device" and target.family == "ascend" and not in_pieces:
        # gathered element by element, such a tile overflows the chip's buffers
        raise NotImplementedError(
            f"the kernels for {target.arch} need factors whose last stride, or the one before it, "
            "is 1, and a residual whose last stride is 1: rows or columns that lie in one piece. "
            "Make them so with .contiguous(), or use impl='reference'"
        )
    return Plan(route, reason, target, choose_gemm(problem, target))


def _route(
    where: torch.device, dtype: torch.dtype, impl: Impl, nothing: str | None
) -> tuple[Routes, str]:
    """The route of a call, and why; `nothing` says why there is nothing for a kernel to do."""
    device = where.type
    match impl, device:
        case _, "meta":
            return "reference", "meta tensors have shapes alone: nothing is computed"
        case "reference", _:
            return "reference", "asked for"
        case _, _ if nothing:
            return "reference", nothing
        case "auto", "cpu":
            return "reference", "cpu tensors; impl='triton' would run the kernel"
        case "auto", _ if dtype == torch.float64:
            return "reference", "float64, which no kernel computes in"
    if dtype == torch.float64:
        raise NotImplementedError(
            "the kernels do not compute in float64; use impl='reference', which is plain PyTorch"
        )
    reason = "asked for" if impl == "triton" else f"{device} tensors"
    route = kernel_route(where)
    if route == "interpreter":
        reason += ", TRITON_INTERPRET=1"
    require(device, interpreted=route == "interpreter")
    return route, reason

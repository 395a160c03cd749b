"""The two ways to reduce rows, behind one interface."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from .. import reference
from .._dispatch import Impl, KernelRoutes, plan_reduction
from .._reductions import Largest, Method, Rows, Term, rows_of
from .._target import Target


class Engine(Protocol):
    """Reduces the rows of one tensor to numbers, float32 (float64 for float64), [count] each."""

    def sum(self, term: Term, given: Tensor | None = None) -> list[Tensor]:
        """Sums of what `term` says; two for "spread"."""

    def max(self, of: Largest) -> Tensor:
        """Maxima."""


class Reference:
    """Plain PyTorch."""

    def __init__(self, x: Tensor, dims: Sequence[int], method: Method) -> None:
        kept = [d for d in range(x.dim()) if d not in dims]
        length = math.prod([x.shape[d] for d in dims])
        self.rows = x.permute([*kept, *dims]).reshape(-1, length)
        self.method = method

    def sum(self, term: Term, given: Tensor | None = None) -> list[Tensor]:
        """Sums of what `term` says; two for "spread"."""
        return reference.sum_rows(self.rows, term, given, self.method)

    def max(self, of: Largest) -> Tensor:
        """Maxima."""
        return reference.max_rows(self.rows, of)


class Kernels:
    """The Triton kernel."""

    def __init__(
        self, x: Tensor, dims: Sequence[int], method: Method, target: Target, route: KernelRoutes
    ) -> None:
        # gathered element by element, a tile overflows an NPU's buffers
        in_pieces = target.family == "ascend"
        self.rows: Rows = rows_of(x.resolve_neg(), dims, in_pieces=in_pieces)
        self.method, self.target, self.route = method, target, route

    def sum(self, term: Term, given: Tensor | None = None) -> list[Tensor]:
        """Sums of what `term` says; two for "spread"."""
        from ..kernels.reduce_launch import launch_sum

        return launch_sum(self.rows, term, given, self.method, self.target, self.route)

    def max(self, of: Largest) -> Tensor:
        """Maxima."""
        from ..kernels.reduce_launch import launch_max

        return launch_max(self.rows, of, self.target, self.route)


def engine_for(x: Tensor, dims: Sequence[int], method: Method, impl: Impl) -> Engine:
    """What reduces a tensor that is not empty.

    Raises:
        NotImplementedError, ImportError: as `plan_reduction`.
    """
    plan = plan_reduction(x.device, x.dtype, impl)
    if plan.route == "reference":
        return Reference(x, dims, method)
    assert plan.target is not None
    return Kernels(x, dims, method, plan.target, plan.route)

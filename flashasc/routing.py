"""Let code that calls `F.scaled_dot_product_attention` run on flashasc, for a block of it."""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ._dispatch import Impl
from ._problem import Precision
from ._validate.scalars import choices, one_of
from .sdpa import sdpa

__all__ = ["LeftCall", "RoutedCalls", "Unsupported", "route_sdpa"]

Unsupported = Literal["raise", "log", "record"]

logger = logging.getLogger("flashasc")


@dataclass(frozen=True)
class LeftCall:
    """A call that PyTorch computed, and why."""

    reason: str
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of query, key and value, as far as they are tensors."""


@dataclass
class RoutedCalls:
    """What happened in a block of `route_sdpa`."""

    taken: int = 0
    """Calls that flashasc computed."""
    left: Counter[LeftCall] = field(default_factory=Counter)
    """Calls that it could not, and that PyTorch computed instead: how often each."""


@dataclass(eq=False)
class _Route:
    """One `with` block."""

    precision: Precision
    impl: Impl
    unsupported: Unsupported
    calls: RoutedCalls


@dataclass
class _Replacement:
    """What stands in PyTorch's place while blocks are open."""

    original: Callable[..., Tensor]
    fastpath: bool
    """Whether PyTorch's fused modules were on."""
    function: Callable[..., Tensor]
    routes: list[_Route]
    """Of the open blocks, the last one opened last; changed under the lock."""


_lock = threading.Lock()
_current: list[_Replacement] = []


@contextmanager
def route_sdpa(
    *,
    unsupported: Unsupported = "raise",
    precision: Precision = "compensated",
    impl: Impl = "auto",
) -> Iterator[RoutedCalls]:
    """Compute every `F.scaled_dot_product_attention` in a block with flashasc.

        with flashasc.route_sdpa(unsupported="log") as calls:
            model(x)
        print(calls.taken, calls.left)

    Args:
        unsupported: what to do with a call that flashasc cannot take over (dropout, nested tensors,
            a device without kernels): "raise"; "log", let PyTorch compute it and say so, once a
            kind, at level WARNING of the logger "flashasc"; "record", let PyTorch compute it. Both
            count it in what the block yields.
        precision, impl: as for `flashasc.attention`.

    Yields:
        The counts of the block, filled in as calls happen.

    Raises:
        TypeError, ValueError: `unsupported`, `precision` or `impl` is none of its choices.

    Blocks nest: the innermost counts. Whatever ends a block, PyTorch's function is back when the
    outermost has ended. The function in `torch.nn.functional` is replaced for the whole process, so
    calls in other threads are routed while any block is open: by the one that was opened last.
    That is what recomputation in a backward pass needs, which runs in autograd's threads; keep the
    backward of a checkpointed model in the block. The fused paths of `nn.MultiheadAttention` and
    `nn.TransformerEncoderLayer` in eval, which pass the function by, are switched off meanwhile.

    Not reached: code that holds the function itself (`from torch.nn.functional import ...` before
    the block), what `torch.compile` compiled before it, and attention that is no call of this
    function, such as `flex_attention`.
    """
    one_of("unsupported", unsupported, get_args(Unsupported))
    choices(precision, impl)
    route = _Route(precision, impl, unsupported, RoutedCalls())
    with _lock:
        if not _current:
            _current.append(_replace())
        routes = _current[0].routes
        routes.append(route)
    try:
        yield route.calls
    finally:
        with _lock:
            routes.remove(route)
            if not routes:
                _put_back(_current.pop())


def _replace() -> _Replacement:
    original, routes = F.scaled_dot_product_attention, list[_Route]()

    @functools.wraps(original)
    def routed(*args: Any, **kwargs: Any) -> Tensor:
        innermost = routes[-1:]
        if not innermost:
            return original(*args, **kwargs)
        return _take(innermost[0], original, args, kwargs)

    F.scaled_dot_product_attention = routed
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    return _Replacement(original, fastpath, routed, routes)


def _put_back(replacement: _Replacement) -> None:
    torch.backends.mha.set_fastpath_enabled(replacement.fastpath)
    # where someone replaced ours in turn, theirs stays; ours is behind it and passes calls on
    if F.scaled_dot_product_attention is replacement.function:
        F.scaled_dot_product_attention = replacement.original


def _take(
    route: _Route, original: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Compute a call with flashasc, or do with it what the block asked for."""
    try:
        out = sdpa(*args, **kwargs, precision=route.precision, impl=route.impl)
    except (NotImplementedError, TypeError, ValueError) as error:
        if route.unsupported == "raise":
            raise
        call = LeftCall(str(error), _shapes(args, kwargs))
        if route.unsupported == "log" and call not in route.calls.left:
            logger.warning("left to PyTorch, shapes %s: %s", call.shapes, call.reason)
        route.calls.left[call] += 1
        return original(*args, **kwargs)
    route.calls.taken += 1
    return out


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    given = [*args[:3], *(kwargs[name] for name in ("query", "key", "value") if name in kwargs)]
    return tuple(tuple(x.shape) for x in given if isinstance(x, Tensor) and not x.is_nested)

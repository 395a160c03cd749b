"""Calls that repeat an earlier one in all but the numbers in their tensors.

Generation makes the same call for every token, training for every step. What such a call is
checked, planned and compiled by (shapes, strides, dtypes, options) is the same each time, and
working it out again takes longer than small kernels run. So a call's launches are recorded the
first time, and started again with the new tensors when a call comes that is alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from ._target import current

Value = TypeVar("Value")
_LIMIT = 1024
"""Calls remembered by each memo; the oldest are forgotten first."""
_PLAIN = (Tensor, torch.nn.Parameter)
_SCALARS = frozenset({type(None), bool, int, float, str, torch.dtype})
_OPTIONS = _SCALARS | {tuple}
_SCRATCH = ("rows_ptr", "acc_ptr", "order_ptr")
"""Memory that a launcher allocates for its own kernels: new for each call."""
_NOTHING: Mapping[str, float] = {}


def alike(tensors: Sequence[Tensor | None], options: tuple[Any, ...]) -> Hashable | None:
    """What the course of a call depends on: equal for calls whose launches are the same.

    Args:
        tensors: the call's.
        options: everything else that was passed.

    Returns:
        None for tensors that only PyTorch's dispatcher understands, and for options of types that
        may be equal to what is checked differently: they are looked at each time.
    """
    facts: list[Hashable] = []
    for tensor in tensors:
        if tensor is None:
            facts.append(None)
        elif type(tensor) not in _PLAIN or tensor.is_meta or tensor.is_neg():
            return None
        else:
            try:
                strides, pointer = tensor.stride(), tensor.data_ptr()
            except RuntimeError:
                # a layout that has none
                return None
            if not pointer and tensor.numel():
                # zeros that stand for themselves, in no memory
                return None
            # kernels are compiled for pointers that are multiples of 16, and again for others
            facts.append((tensor.shape, strides, tensor.dtype, tensor.device, pointer % 16 == 0))
    # True == 1 == 1.0, but not for the checks of arguments; in a tuple, a window, neither
    kinds = tuple(map(type, options))
    if tuple in kinds:
        inner = tuple(type(x) for option in options if type(option) is tuple for x in option)
        if not _SCALARS.issuperset(inner):
            return None
        kinds += inner
    return (*facts, options, kinds) if _OPTIONS.issuperset(kinds) else None


def alike_unobserved(tensors: Sequence[Tensor | None], options: tuple[Any, ...]) -> Hashable | None:
    """The same for a call that may go past PyTorch's dispatcher; None for others."""
    if torch.compiler.is_compiling():
        return None
    key = alike(tensors, options)
    return key if key is not None and _unobserved(tensors) else None


def _unobserved(tensors: Sequence[Tensor | None]) -> bool:
    """Whether nothing in PyTorch's dispatcher has a part in a call.

    Autograd, autocast, a mode, a transform, a trace or a profiler would.
    """
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        return False
    if torch._C._len_torch_function_stack() and _function_modes():
        return False
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._is_any_autocast_enabled()
        or forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or torch.autograd.profiler._is_profiler_enabled
    )


def _function_modes() -> bool:
    """Whether a mode that sees calls is on, other than a default device."""
    return any(
        not isinstance(torch._C._get_function_stack_at(i), DeviceContext)
        for i in range(torch._C._len_torch_function_stack())
    )


class Memo(Generic[Value]):
    """What was found out for calls, by what `alike` says of them."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Value] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        """What is known, or None."""
        try:
            return self._found.get(key)
        except TypeError:
            # what cannot be hashed was never kept
            return None

    def keep(self, key: Hashable, value: Value | None) -> None:
        """Remember a value, where there is one."""
        if value is None:
            return
        with self._lock:
            try:
                self._found[key] = value
            except TypeError:
                # what cannot be hashed is checked and planned each time
                return
            if len(self._found) > _LIMIT:
                del self._found[next(iter(self._found))]


class Launch:
    """One launch of a kernel, as it was recorded.

    Attributes:
        start: starts it, given its arguments in order, on the current device and stream.
        values: the arguments.
        names: what the kernel calls them.
        places: where tensors belong among the arguments.
        described: where descriptors do, and what the kernel calls the tensors that they describe.
    """

    def __init__(
        self, start: Callable[..., object], values: list[Any], names: Sequence[str]
    ) -> None:
        """Note what is to be started again."""
        self.start, self.values, self.names = start, values, names
        self.places = tuple(
            (i, name)
            for i, (name, value) in enumerate(zip(self.names, self.values, strict=True))
            if isinstance(value, Tensor)
        )
        self.described = tuple(
            (i, name.removesuffix("_desc") + "_ptr")
            for i, (name, value) in enumerate(zip(self.names, self.values, strict=True))
            if name.endswith("_desc") and value is not None
        )
        assert {name for _, name in self.described} <= {name for _, name in self.places}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors among the arguments."""
        return ((name, self.values[i]) for i, name in self.places)

    def forget(self) -> None:
        """Let go of the tensors."""
        for i, _ in self.places:
            self.values[i] = None
        for i, _ in self.described:
            self.values[i] = _described(self.values[i], None)

    def __call__(self, tensors: Mapping[str, Tensor]) -> None:
        """Start it with other tensors."""
        values = self.values.copy()
        for i, name in self.places:
            values[i] = tensors[name]
        for i, name in self.described:
            values[i] = _described(values[i], tensors[name])
        self.start(*values)


def _described(descriptor: Any, tensor: Tensor | None) -> Any:
    """A Triton descriptor of another tensor of the same shape and strides."""
    other = copy(descriptor)
    other.base = tensor
    return other


_recording = threading.local()


@contextmanager
def recording() -> Iterator[list[Launch | None]]:
    """Collect the launches of the body; None stands for one that cannot be repeated."""
    outer = getattr(_recording, "launches", None)
    launches: list[Launch | None] = []
    _recording.launches = launches
    try:
        yield launches
    finally:
        _recording.launches = outer


def record(launch: Callable[[], Launch | None]) -> None:
    """Note a launch, if anybody collects them."""
    launches = getattr(_recording, "launches", None)
    if launches is not None:
        launches.append(launch())


class Repeat(NamedTuple):
    """What calls that are alike share: their launches and the shapes of what they return."""

    launches: tuple[Launch, ...]
    device: torch.device
    allocated: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    """Name, shape and dtype of what each call allocates: its results, and scratch."""
    fill: Mapping[str, float]
    """What some of them hold before the first launch."""

    def __call__(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Make the call with other tensors.

        Args:
            tensors: the call's, by the kernels' names; what is allocated is added to them.
        """
        device = self.device
        for name, shape, dtype in self.allocated:
            tensors[name] = torch.empty(shape, dtype=dtype, device=device)
        for name, value in self.fill.items():
            tensors[name].fill_(value)
        with current(device):
            for launch in self.launches:
                launch(tensors)
        return tensors


def repeat_of(
    device: torch.device,
    launches: Sequence[Launch | None],
    given: Mapping[str, Tensor | None],
    results: Mapping[str, Tensor],
    fill: Mapping[str, float],
) -> Repeat | None:
    """How a call is made again, or None where more than kernels ran on its own tensors.

    Args:
        device: of its tensors.
        launches: the call's, see `recording`; their tensors are let go of.
        given: its tensors, by the kernels' names.
        results: what it wrote, likewise; contiguous.
        fill: what some results held before the first launch.
    """
    made = dict(results)
    known = {**given, **made}
    repeatable = bool(launches)
    for launch in launches:
        if launch is None:
            repeatable = False
            continue
        for name, tensor in launch.tensors():
            mine = known.get(name)
            if mine is None and name in _SCRATCH:
                known[name] = made[name] = tensor
            elif mine is None or mine.data_ptr() != tensor.data_ptr():
                # a copy, made on the way
                repeatable = False
        launch.forget()
    if not repeatable:
        return None
    return Repeat(
        tuple(launch for launch in launches if launch is not None),
        device,
        tuple((name, tuple(x.shape), x.dtype) for name, x in made.items()),
        fill,
    )


def repeated(
    memo: Memo[Repeat],
    tensors: dict[str, Tensor | None],
    options: tuple[Any, ...],
    results: tuple[str, str],
    compute: Callable[[], tuple[Tensor, Tensor]],
    fill: Mapping[str, float] = _NOTHING,
) -> tuple[Tensor, Tensor]:
    """What an operator returns: from its launches alone, where such a call was made before.

    Args:
        memo: the operator's.
        tensors: the call's, by the kernels' names.
        options: everything else that was passed.
        results: what the kernels call what is returned; contiguous.
        compute: makes the call.
        fill: what some results hold before the first launch.
    """
    key = alike(tuple(tensors.values()), options)
    if key is None:
        return compute()
    if (repeat := memo.get(key)) is None:
        with recording() as launches:
            found = compute()
        made = dict(zip(results, found, strict=True))
        memo.keep(key, repeat_of(found[0].device, launches, tensors, made, fill))
        return found
    again = repeat(dict(tensors))
    return again[results[0]], again[results[1]]

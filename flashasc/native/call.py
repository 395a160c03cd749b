"""Call a kernel on CPU tensors: check the arguments, find its program, run it."""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from flashasc.native import settings
from flashasc.native.checks import (
    LARGEST,
    bad_tensor,
    bad_type,
    checked_grid,
    checked_kernel,
    does_not_fit,
)
from flashasc.native.lowered import lowered_text
from flashasc.native.program import Program, get_program
from flashasc.native.sources import Dependencies, describe, find_dependencies

_DTYPES: dict[torch.dtype, str] = {
    torch.bool: "*i1",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.uint16: "*u16",
    torch.uint32: "*u32",
    torch.uint64: "*u64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}


@dataclass(frozen=True)
class _Parameter:
    name: str
    constexpr: bool
    specialise: bool  # whether an integer 1 becomes a constant
    annotated: str  # integer type its annotation fixes, "" for none
    default: object  # inspect.Parameter.empty for none


class _Kernel:
    """What is known of one `@triton.jit` function."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.name: str = kernel.__name__
        self.parameters = tuple(
            _Parameter(
                p.name,
                p.is_constexpr,
                not p.do_not_specialize,
                p.annotation_type,
                p.default,
            )
            for p in kernel.params
        )
        self.dependencies: Dependencies = find_dependencies(kernel)
        self.plans: dict[tuple[object, ...], _Plan] = {}
        self.programs: dict[tuple[object, ...], _Ready] = {}


@dataclass(frozen=True)
class _Plan:
    """How to read the arguments, for one set of constants."""

    runtime: tuple[_Parameter, ...]
    constants: Mapping[str, object]


@dataclass(frozen=True)
class _Ready:
    """A program and what packs its arguments."""

    program: Program
    pack: Callable[..., bytes]
    taken: tuple[int, ...] | None  # which runtime arguments it takes; None: all


_kernels: dict[Any, _Kernel] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    args: Mapping[str, Any],
    constants: Mapping[str, object],
    *,
    arch: str | None = None,
    level: str | None = None,
    threads: int | None = None,
) -> None:
    """Run a `@triton.jit` kernel natively on CPU tensors, and return when all programs have ended.

    No Triton driver is needed, and none is touched. The first call of a specialisation builds it
    (about a second; less when another process did it before), later ones cost some microseconds.

    Args:
        kernel: the kernel, as decorated: not wrapped by autotune or heuristics.
        grid: 1 to 3 numbers of programs; a 0 among them runs nothing. Not limited to 65 535.
        args: value of each runtime argument by name: a CPU tensor (its data pointer is passed,
            whatever its strides), an int, a float (passed as fp32), a bool or None. As in Triton,
            an int equal to 1 becomes a constant unless the kernel was decorated with
            `do_not_specialize` for it, and ints above 2**31 - 1 are passed as i64.
        constants: value of each constexpr by name, and of runtime arguments to be fixed. Names
            with a default in the kernel may be left out, here and in `args`.
        arch: Ascend processor to lower for; None: FLASHASC_NATIVE_ARCH, or "Ascend910B3".
        level: "linalg" or "hfusion"; None: FLASHASC_NATIVE_LEVEL, or "linalg".
        threads: how many threads may share the programs; None: FLASHASC_NATIVE_THREADS, or
            `torch.get_num_threads()`. A kernel with atomics runs on one.

    Raises:
        NativeError: a tool is missing, or a step of lowering, building or running fails.
        TypeError: a wrong type, or argument names that are not the kernel's.
        ValueError: a wrong value: a tensor that is not on the CPU, an int that does not fit.

    The same call gives the same bits on any number of threads, unless programs write to the same
    place. Programs must not wait for one another: they may run one after the other.
    """
    target = settings.target(arch, level)
    try:
        known = _kernels.get(kernel)
    except TypeError:
        known = None  # not hashable, so not a kernel
    if known is None or known.dependencies.changed():
        known = _kernels[kernel] = _Kernel(checked_kernel(kernel))
    constants_key = tuple(
        # 1, True and 1.0 are equal, and so are the zeros
        (name, value.__class__, value.hex() if isinstance(value, float) else value)
        for name, value in constants.items()
    )
    try:
        plan = known.plans.get(constants_key)
    except TypeError as error:
        raise TypeError(f"constants: {error}; expected values that can be hashed") from None
    if plan is None or len(args) != len(plan.runtime):
        plan = known.plans[constants_key] = _plan(known, args, constants)
    values: list[Any] = []
    kinds: list[object] = [target, constants_key]
    for parameter in plan.runtime:
        try:
            value = args[parameter.name]
        except KeyError:
            # another set of arguments than when this plan was made
            plan = known.plans[constants_key] = _plan(known, args, constants)
            return launch(kernel, grid, args, constants, arch=arch, level=level, threads=threads)
        kind = value.__class__
        if kind is int:
            kinds.append(_int_kind(value, parameter))
            values.append(value)
        elif kind is float:
            kinds.append("fp32")
            values.append(value)
        elif isinstance(value, torch.Tensor):
            if not value.is_cpu or value.is_neg():
                raise bad_tensor(known.name, parameter.name, value)
            kinds.append(value.dtype)
            values.append(value.data_ptr())
        elif kind is bool:
            kinds.append(parameter.annotated or "i1")
            values.append(value)
        elif value is None:
            kinds.append(None)
            values.append(None)
        else:
            raise bad_type(known.name, parameter.name, value)
    key = tuple(kinds)
    ready = known.programs.get(key)
    if ready is None:
        ready = known.programs[key] = _prepare(known, plan, key, target)
    taken = values if ready.taken is None else [values[i] for i in ready.taken]
    try:
        packed = ready.pack(*taken)
    except (struct.error, OverflowError):
        places = range(len(values)) if ready.taken is None else ready.taken
        names = [plan.runtime[i] for i in places]
        raise does_not_fit(
            known.name,
            [
                (parameter.name, mlir, str(kinds[2 + i]).startswith("u"), value)
                for i, parameter, mlir, value in zip(places, names, ready.program.arguments, taken)
            ],
        ) from None
    sizes = checked_grid(grid)
    if 0 not in sizes:
        ready.program.run(packed, sizes, settings.thread_count(threads))


def _int_kind(value: int, parameter: _Parameter) -> str:
    if value == 1 and parameter.specialise:
        return "1"
    if parameter.annotated:
        return parameter.annotated
    if -LARGEST - 1 <= value <= LARGEST:
        return "i32"
    return "u64" if 2**63 <= value < 2**64 else "i64"


def _plan(known: _Kernel, args: Mapping[str, Any], constants: Mapping[str, object]) -> _Plan:
    """Decide which parameter gets its value from where.

    Raises:
        TypeError: names that are unknown, missing or given twice.
    """
    names = [p.name for p in known.parameters]
    of = f"of kernel {known.name}({', '.join(names)})"
    for label, given in (("args", args), ("constants", constants)):
        if unknown := [name for name in given if name not in names]:
            raise TypeError(f"{label}: {', '.join(unknown)}: not among the arguments {of}")
    if twice := [name for name in args if name in constants]:
        raise TypeError(f"args, constants: {', '.join(twice)} given in both, expected in one")
    fixed = dict(constants)
    runtime = []
    for parameter in known.parameters:
        name = parameter.name
        if name in args:
            if parameter.constexpr:
                raise TypeError(f"args: {name} is a constexpr {of}; give it in `constants`")
            runtime.append(parameter)
        elif name not in fixed:
            if parameter.default is inspect.Parameter.empty:
                where = "constants" if parameter.constexpr else "args"
                raise TypeError(f"{where}: {name} is missing; it is an argument {of}")
            fixed[name] = parameter.default
    for name, value in fixed.items():
        try:
            describe(value)
        except TypeError as error:
            raise TypeError(f"constants: {name}: {error} cannot be a constexpr") from None
    return _Plan(tuple(runtime), fixed)


def _prepare(
    known: _Kernel, plan: _Plan, key: tuple[object, ...], target: settings.Target
) -> _Ready:
    """Lower and build one specialisation, or find it."""
    signature: dict[str, str] = {}
    constants = dict(plan.constants)
    for parameter, kind in zip(plan.runtime, key[2:]):
        if kind is None:
            constants[parameter.name] = None
        elif kind == "1":
            constants[parameter.name] = 1
        elif isinstance(kind, torch.dtype):
            if kind not in _DTYPES:
                raise TypeError(
                    f"{parameter.name}: expected a tensor of one of "
                    f"{', '.join(str(dtype)[6:] for dtype in _DTYPES)}, got {kind}; kernel "
                    f"{known.name} cannot take it"
                )
            signature[parameter.name] = _DTYPES[kind]
        else:
            signature[parameter.name] = str(kind)
    text = lowered_text(known.kernel, known.dependencies, signature, constants, target.arch)
    program = get_program(text.linalg, text.name, target)
    pack = program.packer(list(text.types.values())).pack
    places = tuple(i for i, p in enumerate(plan.runtime) if p.name in text.types)
    return _Ready(program, pack, None if len(places) == len(plan.runtime) else places)


def forget() -> None:
    """Drop every kernel seen so far; their next launches look them up on disk."""
    _kernels.clear()

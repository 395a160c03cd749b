"""How a launch answers a wrong argument: its name, what was expected, what was given, the fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

LARGEST = 2**31 - 1
_LARGEST_FP32 = 3.4028235677973366e38


def checked_kernel(kernel: Any) -> Any:
    """Refuse what is not a JIT function, with the way to one."""
    kind = type(kernel)
    if kind.__name__ == "JITFunction" and kind.__module__ == "triton.runtime.jit":
        return kernel
    hint = ""
    if "Interpreted" in kind.__name__:
        hint = "; it was decorated under TRITON_INTERPRET=1: unset that and start again"
    elif hasattr(kernel, "fn"):
        hint = "; pass the function under the decorator (kernel.fn) and its meta-parameters"
    raise TypeError(f"kernel: expected a @triton.jit function, got {kind.__name__}{hint}")


def checked_grid(grid: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the three sizes of a grid, or refuse it."""
    if not isinstance(grid, (tuple, list)) or not 1 <= len(grid) <= 3:
        raise TypeError(f"grid: expected a tuple of 1 to 3 ints, got {grid!r}")
    for size in grid:
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"grid: expected a tuple of 1 to 3 ints, got {grid!r}")
        if not 0 <= size <= LARGEST:
            raise ValueError(f"grid: expected sizes from 0 to {LARGEST}, got {grid!r}")
    return (grid[0], grid[1] if len(grid) > 1 else 1, grid[2] if len(grid) > 2 else 1)


def bad_tensor(kernel: str, name: str, tensor: torch.Tensor) -> ValueError:
    """Return what to raise for a tensor that is not on the CPU or is lazily negated."""
    if not tensor.is_cpu:
        return ValueError(
            f"{name}: expected a CPU tensor, got one on {tensor.device}; the native route runs "
            f"kernel {kernel} on the CPU: pass {name}.cpu()"
        )
    return ValueError(
        f"{name}: a lazily negated view, whose memory holds the opposite sign; pass "
        f"{name}.resolve_neg()"
    )


def bad_type(kernel: str, name: str, value: object) -> TypeError:
    """Return what to raise for a value that no kernel takes."""
    kind = type(value)
    hint = ""
    if kind.__module__ == "numpy" and hasattr(value, "item"):
        hint = f"; pass {name}.item(), which is an int or a float (floats are passed as fp32)"
    return TypeError(
        f"{name}: expected a torch tensor, int, float, bool or None for kernel {kernel}, got "
        f"{kind.__module__}.{kind.__qualname__}{hint}"
    )


def does_not_fit(kernel: str, arguments: Sequence[tuple[str, str, bool, Any]]) -> ValueError:
    """Return what to raise for numbers that cannot be packed.

    Args:
        kernel: its name.
        arguments: (name, MLIR type, whether it is unsigned, value) of each argument.
    """
    for name, mlir, unsigned, value in arguments:
        if isinstance(value, int) and mlir.startswith("i"):
            bits = int(mlir[1:])
            low = 0 if unsigned else -(2 ** (bits - 1))
            if not low <= value < low + 2**bits:
                kind = f"u{bits}" if unsigned else mlir
                return ValueError(
                    f"{name}: {value} does not fit the {kind} argument of kernel {kernel}"
                )
        elif isinstance(value, float) and mlir == "f32" and abs(value) > _LARGEST_FP32:
            return ValueError(
                f"{name}: {value} is out of the range of fp32, as which kernel {kernel} takes it"
            )
        elif isinstance(value, float) != mlir.startswith("f") and mlir != "ptr":
            return ValueError(f"{name}: {value!r} does not fit the {mlir} argument of {kernel}")
    return ValueError(f"arguments of kernel {kernel} don't fit: {arguments}")

"""Load a kernel of the user's from where it lives, with its signature and constants as text."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from flashasc.ascend import frontend
from flashasc.ascend.kernel_arguments import defaults, read_constants, read_signature

# triton.autotune is replaced in the whole process while a module is imported
_IMPORT = threading.Lock()
# (module, kernel) -> what a decorator that was left out would have tried
_tried: dict[tuple[str, str], str] = {}


@dataclass(frozen=True)
class UserKernel:
    """A kernel and how to specialise it, as `flashasc.ascend.lower` takes them.

    Attributes:
        name: where it came from, "module:function".
        kernel: the `@triton.jit` function.
        signature: runtime argument -> Triton type.
        constants: argument -> value, for constexprs and arguments with a fixed value.
        divisible_by_16: runtime arguments that are multiples of 16 (pointers: of 16 bytes).
    """

    name: str
    kernel: Any
    signature: Mapping[str, str] = field(hash=False)
    constants: Mapping[str, object] = field(hash=False)
    divisible_by_16: tuple[str, ...] = ()

    def lower(self, arch: str, *, options: Mapping[str, object] | None = None) -> frontend.Lowered:
        """Lower the kernel for a processor; see `flashasc.ascend.lower`."""
        return frontend.lower(
            self.kernel,
            self.signature,
            self.constants,
            arch,
            divisible_by_16=self.divisible_by_16,
            options=options,
        )


def load_kernel(where: str, signature: str, constants: Sequence[str] = ()) -> UserKernel:
    """Import a kernel and read how it is to be specialised.

    Args:
        where: "package.module:kernel" or "path/to/file.py:kernel".
        signature: a type for each runtime argument, in order ("*fp16, *fp16, i32, fp32") or by
            name ("x_ptr=*fp16, n=i32"). A suffix ":16" says that the argument is a multiple of
            16, ":1" that it is 1, as in Triton's ahead-of-time compiler. Arguments that
            `constants` fixes are left out.
        constants: "NAME=value" for each constexpr without a default, and for each runtime
            argument to fix: an integer, a float, True, False, None, a dtype (tl.float32), or text,
            which needs no quotes when it is one word.

    Returns:
        The kernel. Decorators round it (`triton.autotune`, `triton.heuristics`) are taken off:
        give their values as constants.

    Raises:
        ValueError: the module or the kernel is not there or fails to import; or names, types or
            values that don't fit the kernel.
        TypeError: what is there is no `@triton.jit` function.
        ToolchainError: triton-ascend is not installed.

    The module's own code runs. Where no Triton driver is active, which is where `@triton.autotune`
    would raise an error, it leaves kernels as they are during this import; use a process of its
    own if the same module is to launch tuned kernels later. With a file, its folder is on the
    import path meanwhile, as when it is run.
    """
    frontend._import_backend()
    module_name, colon, kernel_name = where.rpartition(":")
    if not colon or not module_name or not kernel_name.isidentifier():
        raise ValueError(
            f"kernel: expected 'package.module:kernel' or 'path/to/file.py:kernel', got {where!r}"
        )
    with _IMPORT, _autotune_without_driver():
        module = _import(module_name)
    found = getattr(module, kernel_name, None)
    if found is None:
        raise ValueError(f"kernel: {module_name} has no {kernel_name!r}{_kernels_of(module)}")
    kernel = _undecorated(found)
    try:
        frontend._check_kernel(kernel)
    except TypeError as error:
        raise TypeError(f"{where}: {error}{_kernels_of(module)}") from None
    fixed = defaults(kernel) | read_constants(kernel, constants)
    types, divisible, ones = read_signature(kernel, signature, fixed)
    if missing := [p.name for p in kernel.params if p.is_constexpr and p.name not in fixed]:
        options = " ".join(f"--const {name}=VALUE" for name in missing)
        raise ValueError(
            f"constants: no value for the constexpr {', '.join(missing)} of {kernel_name}; give "
            f"each: {options}{_tried.get(_key(kernel)) or _tuning(found)}"
        )
    return UserKernel(where, kernel, types, {**fixed, **ones}, divisible)


def _import(name: str) -> ModuleType:
    path = Path(name).expanduser()
    if path.suffix != ".py" and not path.is_file():
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise _import_error(name, error) from error
    if not path.is_file():
        raise ValueError(f"kernel: there is no file {name}")
    path = path.resolve()
    # a name of its own: the file's may be that of an installed module
    unique = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if known := sys.modules.get(unique):
        return known
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"kernel: {name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[unique]
        if isinstance(error, Exception):
            raise _import_error(name, error) from error
        raise
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(path.parent))
    return module


def _import_error(name: str, error: Exception) -> ValueError:
    hint = ""
    if isinstance(error, ModuleNotFoundError):
        hint = f"; install it, or import {error.name} only where the kernel is launched"
        if error.name == name.partition(".")[0]:
            hint = (
                "; is the current folder the right one? A file is given as path/to/file.py:kernel"
            )
    elif "active drivers" in str(error):
        hint = (
            "; something in it needs a device when it is imported (triton.runtime.driver.active, "
            "do_bench): do that where the kernel is launched"
        )
    return ValueError(f"kernel: importing {name} fails: {type(error).__name__}: {error}{hint}")


@contextlib.contextmanager
def _autotune_without_driver() -> Iterator[None]:
    """Let `@triton.autotune` pass where it would raise an error."""
    import triton
    from triton.runtime import autotuner
    from triton.runtime.driver import driver

    with warnings.catch_warnings():
        # looking for a driver warns of a missing compiler
        warnings.simplefilter("ignore")
        try:
            driver.active.get_current_target  # noqa: B018
            active = True
        except Exception:
            active = False
    if active:
        yield
        return

    def autotune(configs: Sequence[Any], *_: object, **__: object) -> Any:
        def leave(kernel: Any) -> Any:
            _tried[_key(_undecorated(kernel))] = _of_configs(configs)
            return kernel

        return leave

    places = [it for it in (triton, triton.runtime, autotuner) if hasattr(it, "autotune")]
    originals = [it.autotune for it in places]
    try:
        for place in places:
            place.autotune = autotune
        yield
    finally:
        for place, original in zip(places, originals, strict=True):
            place.autotune = original


def _undecorated(kernel: Any) -> Any:
    """Take Triton's launch-time decorators off a kernel."""
    from triton.runtime.jit import JITFunction, KernelInterface

    while isinstance(kernel, KernelInterface) and not isinstance(kernel, JITFunction):
        if getattr(kernel, "fn", None) is None or not isinstance(kernel.fn, KernelInterface):
            break
        kernel = kernel.fn
    return kernel


def _key(kernel: Any) -> tuple[str, str]:
    return getattr(kernel, "__module__", ""), getattr(kernel, "__name__", "")


def _tuning(decorated: Any) -> str:
    configs = getattr(decorated, "configs", None)
    return _of_configs(configs) if configs else ""


def _of_configs(configs: Sequence[Any]) -> str:
    """Say what @triton.autotune would try, for an error message."""
    tried = [", ".join(f"{k}={v}" for k, v in it.kwargs.items()) for it in configs]
    shown = "; ".join(dict.fromkeys(it for it in tried if it))
    return f". @triton.autotune, which is not run here, tries {shown}" if shown else ""


def _kernels_of(module: ModuleType) -> str:
    from triton.runtime.jit import JITFunction

    names = [k for k, v in vars(module).items() if isinstance(_undecorated(v), JITFunction)]
    return f"; kernels there: {', '.join(names)}" if names else "; it has no Triton kernels"

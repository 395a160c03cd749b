"""Take over `kernel[grid](...)` for CPU tensors, and give it back."""

from __future__ import annotations

import itertools
import os
import threading
from types import TracebackType
from typing import Any

from flashasc.native import build, settings
from flashasc.native.errors import NativeError

_lock = threading.Lock()
_current: Installed | None = None
_numbers = itertools.count(1)


class Installed:
    """The native route while it is Triton's driver; as a context manager, it ends with the block.

    Attributes:
        arch: Ascend processor that kernels are lowered for.
        level: "linalg" or "hfusion".
    """

    def __init__(self, target: settings.Target, threads: int | None) -> None:
        import triton
        from triton.backends import Backend, backends

        from flashasc.native.backend import NativeDriver, make_backend_class

        self.arch = target.arch
        self.level = target.level
        self._config = triton.runtime.driver
        self._backends: dict[str, Any] = backends
        self._old_backend: Any = backends["ascend"]
        self._old_driver: Any = self._config.active
        self._driver = NativeDriver(target, threads, f"flashasc-native-{next(_numbers)}")
        self._backend = Backend(
            make_backend_class(self._old_backend.compiler, target.arch), NativeDriver
        )
        backends["ascend"] = self._backend
        self._config.set_active(self._driver)

    def __enter__(self) -> Installed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _current is self:
            uninstall()

    def _undo(self) -> None:
        # what somebody else put there since stays
        if self._config.active is self._driver:
            self._config.set_active(self._old_driver)
        if self._backends.get("ascend") is self._backend:
            self._backends["ascend"] = self._old_backend
        self._driver.installed = False
        for kernel in self._driver.kernels:
            kernel.cache.pop(self._driver.device, None)
        self._driver.kernels.clear()


def install(
    arch: str | None = None, level: str | None = None, threads: int | None = None
) -> Installed:
    """Make `kernel[grid](...)` run every `@triton.jit` kernel natively on CPU tensors.

    Replaces Triton's active driver, in the whole process, until `uninstall()`. Kernels with
    `@triton.autotune` must be decorated after the call: Triton asks the driver then how to time.

    Args:
        arch: Ascend processor; None: FLASHASC_NATIVE_ARCH, or "Ascend910B3".
        level: "linalg" or "hfusion"; None: FLASHASC_NATIVE_LEVEL, or "linalg".
        threads: as in `launch`; None is looked up at each launch.

    Returns:
        What `with` can be used on: `with install(): ...` uninstalls at the end of the block.

    Raises:
        NativeError: triton-ascend is missing, or the route is installed already.
        ValueError: an unknown `arch` or `level`, or wrong `threads`.

    Triton's own limits stay: a grid of at most 65 535 programs (`launch` has no such limit), and
    `triton.testing.do_bench` needs an NPU.
    """
    global _current
    target = settings.target(arch, level)
    if threads is not None:
        settings.thread_count(threads)
    with _lock:
        if _current is not None:
            raise NativeError(
                f"already installed, for {_current.arch} at level {_current.level}; call "
                "flashasc.native.uninstall() first",
                step="install",
            )
        if os.environ.get("TRITON_INTERPRET") == "1":
            raise NativeError(
                "TRITON_INTERPRET=1 is set: kernels decorated under it run in Triton's interpreter "
                "and never reach a driver; unset it",
                step="install",
            )
        build.libtriton()
        _current = Installed(target, threads)
        return _current


def uninstall() -> None:
    """Undo `install()`: the driver, the backend and every kernel's cache are as they were before.

    Raises:
        NativeError: the route is not installed.
    """
    global _current
    with _lock:
        if _current is None:
            raise NativeError("not installed; flashasc.native.install() does that", step="install")
        _current._undo()
        _current = None

"""A Triton backend and driver that run kernels natively; imports Triton, so `install()` loads it.

The backend is triton-ascend's own up to the Linalg text. Where that calls `bishengir-compile`, this
one leaves the text as it is, and the driver builds machine code from it when the kernel is first
run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from flashasc.ascend.frontend import _A5_OPTIONS
from flashasc.ascend.toolchain import family
from flashasc.native import settings
from flashasc.native.errors import NativeError
from flashasc.native.program import Program, get_program


def make_backend_class(base: type, arch: str) -> type:
    """Return the class that stands in for triton-ascend's backend.

    Args:
        base: the class that Triton found. Its module is loaded by path, so it is not the one that
            `import triton.backends.ascend.compiler` gives.
        arch: Ascend processor.
    """
    defaults = _A5_OPTIONS if family(arch) == "A5" else {}
    # the functions of the module it was defined in
    stage = base.add_stages.__globals__  # type: ignore[attr-defined]

    class NativeBackend(base):  # type: ignore[misc]
        """triton-ascend's backend with another last stage."""

        def parse_options(self, opts: dict[str, Any]) -> Any:
            """Fill in the defaults of the processor's generation."""
            options = super().parse_options({**defaults, **opts})
            if options.force_simt_only:
                raise NativeError(
                    "compile_mode='simt_only' hands Triton's own text to the Ascend compiler; "
                    "only kernels that go through Linalg can be run here",
                    step="check",
                )
            return options

        def add_stages(self, stages: dict[str, Any], options: Any) -> None:
            """Go as far as the Linalg text."""
            stages["ttir"] = lambda source, data: stage["make_ttir"](source, data, options)
            stages["ttadapter"] = lambda source, data: stage["ttir_to_linalg"](
                source, data, options, named_ops=True
            )

            def keep_text(text: str, data: dict[str, Any]) -> bytes:
                linalg, _ = stage["_parse_linalg_metadata"](text, data)
                return str(linalg).encode()

            stages["npubin"] = keep_text

        def hash(self) -> str:
            # Triton's file cache must not mix this text with an NPU's machine code
            return f"flashasc-native-{self.target}"

    return NativeBackend


class _Utils:
    """What Triton asks of a driver about its device."""

    def __init__(self, target: settings.Target) -> None:
        self._target = target

    def get_device_properties(self, device: object) -> dict[str, int]:
        return {"max_shared_mem": 2**31, "num_aicore": 20, "num_vectorcore": 40}

    def get_arch(self) -> str:
        return self._target.arch

    def get_aicore_num(self) -> int:
        return self.get_device_properties(None)["num_aicore"]

    def get_aivector_core_num(self) -> int:
        return self.get_device_properties(None)["num_vectorcore"]

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: object
    ) -> tuple[Program, Program, int, int]:
        program = get_program(kernel.decode(), name.split()[0], self._target)
        return program, program, 0, 0


class NativeDriver(DriverBase):  # type: ignore[misc]
    """The active driver while the native route is installed."""

    def __init__(self, target: settings.Target, threads: int | None, device: str) -> None:
        super().__init__()
        self.target = target
        self.threads = threads
        # what Triton keeps kernels under; no other driver's devices are called so
        self.device = device
        self.utils = _Utils(target)
        self.kernels: list[Any] = []
        self.installed = True

    def launcher_cls(self, source: Any, metadata: Any) -> _Launcher:
        """Make what calls one compiled kernel."""
        self.kernels.append(source.fn)
        return _Launcher(self, source)

    @classmethod
    def is_active(cls) -> bool:
        """Say that there is a device: this one."""
        return True

    def get_current_target(self) -> Any:
        """Return the Ascend processor that is lowered for."""
        return GPUTarget("npu", self.target.arch, 0)

    def get_current_device(self) -> str:
        """Return the one device."""
        return self.device

    def set_current_device(self, device: object) -> None:
        """Accept the one device."""
        if device != self.device:
            raise NativeError(
                f"there is one device, {self.device}, while the native route is installed; got "
                f"{device!r}",
                step="run",
            )

    def get_current_stream(self, device: object = None) -> int:
        """Return the one stream."""
        return 0

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Return what `@triton.autotune` times a configuration with, in milliseconds."""

        def benchmark(
            call: Callable[[], object], quantiles: Sequence[float] = (0.5,), **_: object
        ) -> list[float]:
            if not self.installed:
                raise NativeError(
                    "a kernel that was decorated with @triton.autotune while the native route was "
                    "installed keeps its way of timing; decorate it again",
                    step="run",
                )
            call()
            times: list[float] = []
            end = time.perf_counter() + 0.1
            while len(times) < 3 or (time.perf_counter() < end and len(times) < 100):
                start = time.perf_counter()
                call()
                times.append((time.perf_counter() - start) * 1e3)
            return torch.tensor(times).quantile(torch.tensor(list(quantiles))).tolist()

        return benchmark


class _Launcher:
    """Calls one compiled kernel with the arguments that Triton hands over."""

    def __init__(self, driver: NativeDriver, source: Any) -> None:
        self._driver = driver
        fixed = {
            name if isinstance(name, str) else source.fn.arg_names[name]
            for name in source.constants
        }
        names = list(source.signature)
        self._kept = [(i, name) for i, name in enumerate(names) if name not in fixed]
        self._types = [source.signature[name] for _, name in self._kept]
        self._name: str = source.fn.__name__
        self._pack: Callable[..., bytes] | None = None

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: object,
        program: Program,
        packed_metadata: object,
        launch_metadata: object,
        enter_hook: Callable[[object], None] | None,
        exit_hook: Callable[[object], None] | None,
        *args: Any,
    ) -> None:
        if self._pack is None:
            self._pack = program.packer(self._types).pack
        values = [self._value(args[i], name) for i, name in self._kept]
        if enter_hook is not None:
            enter_hook(launch_metadata)
        if grid_x * grid_y * grid_z > 0:
            threads = settings.thread_count(self._driver.threads)
            program.run(self._pack(*values), (grid_x, grid_y, grid_z), threads)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _value(self, value: Any, name: str) -> Any:
        """Return a scalar as it is and of a tensor its address."""
        if not hasattr(value, "data_ptr"):
            return value
        # triton.reinterpret wraps a tensor
        tensor = getattr(value, "base", value)
        if isinstance(tensor, torch.Tensor) and not tensor.is_cpu:
            raise ValueError(
                f"{name}: expected a CPU tensor, got one on {tensor.device}; kernel {self._name} "
                "runs on the CPU until flashasc.native.uninstall()"
            )
        if isinstance(tensor, torch.Tensor) and tensor.is_neg():
            raise ValueError(
                f"{name}: a lazily negated view, whose memory holds the opposite sign; pass "
                f"{name}.resolve_neg()"
            )
        return value.data_ptr()

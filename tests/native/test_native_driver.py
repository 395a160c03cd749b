"""`install()` and `uninstall()`: a driver for users' own kernels, undone without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import native_kernels as kernels
import pytest
import torch
import triton
import triton.language as tl
from triton.backends import backends
from triton.runtime import driver

from flashasc.native import NativeError, install, uninstall
from flashasc.native import driver as native_driver


@pytest.fixture(autouse=True)
def triton_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    yield
    if native_driver._current is not None:
        uninstall()


@triton.jit
def added(x_ptr, y_ptr, n, addend, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x + addend, mask=offs < n)


def run(addend: float = 1.0) -> None:
    x, y = torch.randn(100), torch.zeros(100)
    added[(2,)](x, y, 100, addend, BLOCK=64)
    assert torch.equal(y, x + addend)
    added[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y, 100, addend, BLOCK=32)
    assert torch.equal(y, x + addend)


@pytest.mark.parametrize("arch", ["Ascend910B3", "Ascend950PR_9589"])
@pytest.mark.parametrize("level", ["linalg", "hfusion"])
def test_kernels_run_while_installed(arch: str, level: str) -> None:
    with install(arch=arch, level=level, threads=2) as installed:
        assert (installed.arch, installed.level) == (arch, level)
        assert driver.active.get_current_target().arch == arch
        run()
        run(2.5)
        # a pointer, an integer 1, nothing
        y = torch.empty(4)
        kernels.typed[(1,)](y, True, 1, 7 << 40, None, 0.5)
        assert y.tolist() == [8.5, 9.5, 10.5, 11.5]


def test_everything_is_put_back() -> None:
    before = (driver.active, dict(backends))
    compiler = backends["ascend"].compiler
    methods = dict(vars(compiler))
    with install():
        run()
        assert len(added.cache) == 1
        assert backends["ascend"].compiler is not compiler
    assert (driver.active, dict(backends)) == before
    assert dict(vars(compiler)) == methods
    assert not added.cache, "a kernel would still run natively"
    # no device: as without this package
    with (
        pytest.raises(RuntimeError, match="0 active drivers"),
        pytest.warns(UserWarning, match="ccec"),
    ):
        run()


def test_install_twice_and_uninstall_once_too_often() -> None:
    with pytest.raises(NativeError, match=r"not installed; flashasc\.native\.install\(\) does"):
        uninstall()
    install(level="hfusion")
    with pytest.raises(NativeError, match=r"already installed, for Ascend910B3 at level hfusion"):
        install()
    run()
    uninstall()
    with pytest.raises(NativeError, match="not installed"):
        uninstall()


def test_an_uninstall_inside_the_block() -> None:
    with install():
        uninstall()
        with install(level="hfusion"):
            run()
    assert native_driver._current is None


def test_a_block_that_raises_uninstalls() -> None:
    with pytest.raises(ZeroDivisionError), install():
        raise ZeroDivisionError
    assert native_driver._current is None and driver.active is driver.default


def test_a_driver_that_came_later_stays() -> None:
    class Other:
        pass

    other = Other()
    installed = install()
    driver.set_active(other)
    try:
        uninstall()
        assert driver.active is other
    finally:
        driver.reset_active()
    assert installed._driver.installed is False


def test_autotune_decorated_while_installed() -> None:
    with install(threads=1):

        @triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 64)], key=["n"])
        @triton.jit
        def tuned(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
            offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)

        x, y = torch.randn(100), torch.zeros(100)
        tuned[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y, 100)
        assert torch.equal(y, x * 2)
        assert set(tuned.configs_timings) == set(tuned.configs)
        assert all(0 < timing[0] < 1e4 for timing in tuned.configs_timings.values())
    with pytest.raises(NativeError, match="decorate it again"):
        tuned.do_bench(lambda: None, quantiles=(0.5,))


def test_hooks_are_called() -> None:
    from triton.compiler import CompiledKernel

    calls: list[str] = []
    with install(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledKernel, "launch_enter_hook", lambda data: calls.append("enter"))
        patch.setattr(CompiledKernel, "launch_exit_hook", lambda data: calls.append("exit"))
        run()
    assert calls == ["enter", "exit"] * 2


def test_a_kernel_that_cannot_run_says_so() -> None:
    with install(), pytest.raises(NativeError, match=r"step 'check', kernel sorting: .*tl\.sort"):
        kernels.sorting[(1,)](torch.zeros(8), torch.zeros(8), N=8)


def test_a_tensor_elsewhere() -> None:
    with (
        install(),
        pytest.raises(ValueError, match="x_ptr: expected a CPU tensor, got one on meta"),
    ):
        added[(1,)](torch.zeros(64, device="meta"), torch.zeros(64), 64, 1.0, BLOCK=64)


def test_the_interpreter_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(NativeError, match="TRITON_INTERPRET=1 is set"):
        install()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"arch": "H100"}, "arch: expected an Ascend processor name"),
        ({"level": "ttir"}, "level: expected one of"),
        ({"threads": -1}, "threads: expected a whole number"),
    ],
)
def test_wrong_options(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        install(**options)
    assert native_driver._current is None


def test_another_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from flashasc.native import build

    def broken() -> Path:
        raise NativeError("triton-ascend is not installed; run: pip install", step="find tools")

    monkeypatch.setattr(build, "libtriton", broken)
    with pytest.raises(NativeError, match="triton-ascend is not installed"):
        install()
    assert native_driver._current is None

"""Arguments, grids, settings and what is specialised."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import native_kernels as kernels
import numpy as np
import pytest
import torch

from flashasc import native
from flashasc.native import build, lowered, program
from flashasc.native.call import launch

BLOCK = {"BLOCK": 64}


def scaled(**changes: Any) -> dict[str, Any]:
    args: dict[str, Any] = {"x_ptr": torch.randn(64), "y_ptr": torch.zeros(64), "n": 64}
    return {**args, "factor": 2.0, **changes}


@pytest.mark.parametrize("grid", [(7,), (3, 5), (2, 3, 4), [2, 2]])
def test_every_program_of_a_grid_runs_once(grid: Any) -> None:
    total = int(np.prod(grid))
    y = torch.full((total + 1,), -1, dtype=torch.int32)
    launch(kernels.mark_programs, grid, {"y_ptr": y, "value": 5}, {})
    assert y.tolist() == [*range(5, total + 5), -1]


def test_a_grid_beyond_the_device_limit() -> None:
    y = torch.full((70_001,), -1, dtype=torch.int32)
    launch(kernels.mark_programs, (70_000,), {"y_ptr": y, "value": 0}, {}, threads=2)
    assert torch.equal(y[:-1], torch.arange(70_000, dtype=torch.int32)) and y[-1] == -1


@pytest.mark.parametrize("grid", [(0,), (4, 0), (2, 0, 3)])
def test_an_empty_grid_runs_nothing(grid: Any) -> None:
    y = torch.zeros(8, dtype=torch.int32)
    launch(kernels.mark_programs, grid, {"y_ptr": y, "value": 9}, {})
    assert not y.any()


@pytest.mark.parametrize(
    "grid, error",
    [
        (4, TypeError),
        ((), TypeError),
        ((1, 1, 1, 1), TypeError),
        ((2.0,), TypeError),
        ((True,), TypeError),
        (lambda meta: (1,), TypeError),
        ((-1,), ValueError),
        ((2**31,), ValueError),
    ],
)
def test_a_wrong_grid(grid: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="grid: expected"):
        launch(kernels.scaled, grid, scaled(), BLOCK)


def test_every_kind_of_argument() -> None:
    y = torch.empty(4)
    offset = torch.tensor([100.0])
    for flag, maybe in ((True, None), (False, offset)):
        args = {"y_ptr": y, "flag": flag, "small": 3, "large": 7 << 40, "maybe_ptr": maybe}
        launch(kernels.typed, (1,), {**args, "ratio": 0.5}, {})
        base = (0.5 if flag else -0.5) + 3 + 7 + (0 if maybe is None else 100)
        assert y.tolist() == [base, base + 1, base + 2, base + 3]


def test_defaults_may_be_given_or_not() -> None:
    args = {"flag": True, "small": 0, "large": 1 << 40, "maybe_ptr": None, "ratio": 1.0}
    for constants in ({}, {"N": 4}, {"N": 8}):
        y = torch.full((8,), -1.0)
        launch(kernels.typed, (1,), {"y_ptr": y, **args}, constants)
        assert (y >= 0).sum() == constants.get("N", 4)


@pytest.mark.parametrize(
    "value", [-(2**63), -(2**31) - 1, -(2**31), -1, 0, 1, 2, 2**31 - 1, 2**31, 2**63 - 2]
)
def test_integers_of_every_size(value: int) -> None:
    y = torch.zeros(1, dtype=torch.int64)
    wraps = value == 2**31 - 1  # an i32 argument, an i32 sum
    launch(kernels.sixty_four_bits, (1,), {"y_ptr": y, "x": value}, {})
    assert y.item() == (-(2**31) if wraps else value + 1)


def test_ones_are_specialised_as_triton_does() -> None:
    seen: list[dict[str, str]] = []
    original = lowered.lower

    def spy(kernel: Any, signature: dict[str, str], constants: Any, arch: str) -> Any:
        seen.append({**signature, **{name: f"={value}" for name, value in constants.items()}})
        return original(kernel, signature, constants, arch)

    y = torch.zeros(1, dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowered, "lower", spy)
        patch.setattr(lowered, "_load", lambda key: None)
        from flashasc.native import call

        call.forget()
        for kept, dropped in ((1, 1), (1, 2), (5, 2), (6, 1)):
            launch(kernels.unspecialised, (1,), {"y_ptr": y, "kept": kept, "dropped": dropped}, {})
            assert y.item() == kept + 10 * dropped
    assert seen == [
        {"y_ptr": "*i32", "kept": "i32", "dropped": "=1"},
        {"y_ptr": "*i32", "kept": "i32", "dropped": "i32"},
    ]


def test_an_annotated_argument() -> None:
    y = torch.zeros(1, dtype=torch.int64)
    launch(kernels.unsigned, (1,), {"y_ptr": y, "x": 2**32 - 2}, {})
    assert y.item() == 2**31 - 1
    for value in (2**32, -1):
        with pytest.raises(ValueError, match=f"x: {value} does not fit the u32 argument"):
            launch(kernels.unsigned, (1,), {"y_ptr": y, "x": value}, {})


def test_alignment_changes_nothing_but_a_mark() -> None:
    """`launch` leaves the mark out: the rest of the text is the same."""
    import re

    from flashasc.ascend import lower

    for kernel, types, constants in (
        (kernels.scaled, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "factor": "fp32"}, BLOCK),
        (
            kernels.softmax_rows,
            {"x_ptr": "*fp16", "y_ptr": "*fp32"}
            | dict.fromkeys(("stride_xm", "stride_xn", "n_rows", "n"), "i32"),
            {"BLOCK": 128},
        ),
    ):
        bare = lower(kernel, types, constants, "Ascend910B3").linalg
        marked = lower(
            kernel,
            types,
            constants,
            "Ascend910B3",
            divisible_by_16=[name for name, type_ in types.items() if type_ != "fp32"],
        ).linalg
        mark = r"tt\.divisibility = 16 : i32"
        assert re.search(mark, marked)
        assert re.sub(rf" \{{{mark}\}}|{mark}, ", "", marked) == bare


def test_equal_constants_of_different_types_stay_apart() -> None:
    y = torch.zeros(4)
    results = []
    for ratio in (1, 1.0, True, 2, 2.5, -0.0, 0.0):
        args = {"y_ptr": y, "flag": True, "small": 0, "large": 1 << 40, "maybe_ptr": None}
        launch(kernels.typed, (1,), args, {"ratio": ratio})
        results.append(y[0].item())
    assert results == [2, 2, 2, 3, 3.5, 1, 1]


@pytest.mark.parametrize(
    "args, constants, message",
    [
        ({"n": None}, {}, r"constants: BLOCK is missing"),
        (
            {},
            {"BLOCK": 64, "WIDTH": 1},
            r"constants: WIDTH: not among the arguments of kernel scaled",
        ),
        ({"typo": 1}, BLOCK, r"args: typo: not among"),
        ({}, {"BLOCK": 64, "n": 5}, r"n given in both"),
        ({"BLOCK": 64}, {}, r"args: BLOCK is a constexpr .* give it in `constants`"),
        ({}, {"BLOCK": object()}, r"constants: BLOCK: a value of type builtins.object"),
        ({}, {"BLOCK": [64]}, r"constants: unhashable type: 'list'; expected values"),
        ({"n": "64"}, BLOCK, r"n: expected a torch tensor, int, .* got builtins.str"),
        ({"factor": np.float16(2)}, BLOCK, r"factor: .* numpy.float16; pass factor.item\(\)"),
        ({"n": 1 + 2j}, BLOCK, r"n: expected .* got builtins.complex"),
        ({"x_ptr": torch.zeros(4, dtype=torch.complex64)}, BLOCK, r"x_ptr: .* torch.complex64"),
        ({"x_ptr": torch.zeros(4).to(torch.float8_e5m2)}, BLOCK, r"x_ptr: .* torch.float8_e5m2"),
    ],
)
def test_wrong_arguments(args: Any, constants: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        launch(kernels.scaled, (1,), scaled(**args), constants)


def test_a_missing_argument() -> None:
    args = scaled()
    del args["n"]
    for _ in range(2):
        with pytest.raises(
            TypeError, match="args: n is missing; it is an argument of kernel scaled"
        ):
            launch(kernels.scaled, (1,), args, BLOCK)
        launch(kernels.scaled, (1,), scaled(), BLOCK)


def test_a_tensor_elsewhere() -> None:
    with pytest.raises(ValueError, match=r"x_ptr: expected a CPU tensor, got one on meta"):
        launch(kernels.scaled, (1,), scaled(x_ptr=torch.zeros(64, device="meta")), BLOCK)


def test_a_lazily_negated_tensor() -> None:
    x = torch._neg_view(torch.randn(64))
    with pytest.raises(ValueError, match=r"x_ptr: a lazily negated view.*resolve_neg"):
        launch(kernels.scaled, (1,), scaled(x_ptr=x), BLOCK)


def test_a_float_beyond_fp32() -> None:
    with pytest.raises(ValueError, match=r"factor: 1e\+300 is out of the range of fp32"):
        launch(kernels.scaled, (1,), scaled(factor=1e300), BLOCK)


def test_a_kernel_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"expected a @triton.jit function, got function"):
        launch(test_a_kernel_that_is_none, (1,), {}, {})
    with pytest.raises(TypeError, match=r"pass the function under the decorator"):
        launch(SimpleNamespace(fn=kernels.scaled), (1,), {}, {})


@pytest.mark.parametrize(
    "options, environment, message",
    [
        ({"level": "hivm"}, {}, r"level: expected one of linalg, hfusion, got 'hivm'"),
        ({}, {"FLASHASC_NATIVE_LEVEL": "x"}, r"FLASHASC_NATIVE_LEVEL: expected one of"),
        ({"arch": "A100"}, {}, r"arch: expected an Ascend processor name, got 'A100'"),
        ({}, {"FLASHASC_NATIVE_ARCH": "910B"}, r"FLASHASC_NATIVE_ARCH: expected an Ascend"),
        ({"threads": 0}, {}, r"threads: expected a whole number of at least 1, got 0"),
        ({"threads": 1.5}, {}, r"threads: expected a whole number"),
        ({}, {"FLASHASC_NATIVE_THREADS": "two"}, r"FLASHASC_NATIVE_THREADS: .* got 'two'"),
    ],
)
def test_wrong_settings(
    options: Any, environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        launch(kernels.scaled, (1,), scaled(), BLOCK, **options)


def test_settings_are_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []
    original = program.Program.run

    def spy(self: Any, packed: bytes, grid: Any, threads: int) -> None:
        used.append((self, threads))
        original(self, packed, grid, threads)

    monkeypatch.setattr(program.Program, "run", spy)
    launch(kernels.scaled, (1,), scaled(), BLOCK)
    monkeypatch.setenv("FLASHASC_NATIVE_LEVEL", "hfusion")
    monkeypatch.setenv("FLASHASC_NATIVE_THREADS", "3")
    launch(kernels.scaled, (1,), scaled(), BLOCK)
    launch(kernels.scaled, (1,), scaled(), BLOCK, level="linalg", threads=1)
    assert [threads for _, threads in used] == [torch.get_num_threads(), 3, 1]
    assert used[0][0] is used[2][0] is not used[1][0]


def test_a_changed_global_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton.language as tl

    x, y = torch.randn(64), torch.empty(64)
    args = {"x_ptr": x, "y_ptr": y, "n": 64}
    for factor in (2.0, 3.0, 2.0):
        monkeypatch.setattr(kernels, "FACTOR", tl.constexpr(factor))
        launch(kernels.doubled, (1,), args, BLOCK)
        assert torch.equal(y, x * factor)


def test_no_driver_is_needed_or_touched() -> None:
    from triton.runtime import driver

    before = driver.active
    launch(kernels.scaled, (1,), scaled(), BLOCK)
    assert driver.active is before is driver.default
    assert before._obj is None, "a driver was looked for"


def test_importing_has_no_effects(run_python: Any) -> None:
    code = """
import os, sys
before = dict(os.environ)
import flashasc.native as native
assert "triton" not in sys.modules and "ascendnpuir" not in sys.modules
assert dict(os.environ) == before
assert callable(native.launch) and callable(native.install)
"""
    run_python(code)


def test_the_runtime_comes_with_the_package() -> None:
    names = {path.name for path in (Path(build.__file__).parent / "runtime").iterdir()}
    assert {"launch.c", "memory.c", "tensors.c", "runtime.h"} <= names
    assert set(native.__all__) == {"Installed", "NativeError", "install", "launch", "uninstall"}
    assert sys.version_info >= (3, 10)

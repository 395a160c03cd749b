"""Every row of the reductions' tables, through the compilers of the processors that it names."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import A2, A5, TARGETS

from flashasc._configs.reduce import NORMALIZE, REDUCE
from flashasc._reductions import rows_of
from flashasc._target import Target
from flashasc.kernels import normalize_launch, reduce_launch
from flashasc.workbench import Case, check
from flashasc.workbench.asked import asked_cases
from flashasc.workbench.shipped_reductions import (
    normalize_case,
    reduce_case,
    shipped_reductions,
)

ROWS = [row for row in REDUCE if A2 in row.targets]
(TILE,) = [tile for tile in NORMALIZE if A2 in tile.targets]


def one_use_each() -> list[Case]:
    """Each row in one of its uses, in turn; `ascend check --uses` is all of them."""
    uses = [("spread", "sum2", True, False), ("value", "kahan", True, True),
            ("weight", "kahan", False, False), ("size", "max", True, False)]  # fmt: skip
    dtypes = ("float32", "bfloat16", "float16")
    cases = []
    for number, (row, arch) in enumerate((row, arch) for arch in (A2, A5) for row in ROWS):
        use = uses[number % len(uses)]
        cases.append(reduce_case(row, dtypes[number % 3], arch, *use))
    full = TILE.max_tile
    cases.append(normalize_case(TILE, "float32", A2, "layer_norm", "sum2", full, True))
    cases.append(normalize_case(TILE, "bfloat16", A5, "rms_norm", "kahan", full, True))
    cases.append(normalize_case(TILE, "float16", A2, "softmax", "kahan", 1000, False))
    cases.append(normalize_case(TILE, "bfloat16", A2, "rms_norm", "kahan", full + 16, True))
    return cases


@pytest.mark.parametrize("case", one_use_each(), ids=lambda case: f"{case.arch}-{case.name}")
def test_a_row_compiles(case: Case) -> None:
    (verdict,) = check([case])
    assert verdict.ok, f"{case.name}: {verdict.explanation()}"


def test_the_check_lists_every_row() -> None:
    """For every processor, in the use that needs most room, and nothing twice."""
    cases = asked_cases(None, None, None, None, TARGETS, None, None, None)
    names = [(case.arch, case.name) for case in cases]
    assert len(set(names)) == len(names)
    listed = shipped_reductions(TARGETS, every_use=False)
    assert {(case.arch, case.name) for case in listed} <= set(names)
    tiles = {(case.arch, case.facts["block_m"], case.facts["block_n"]) for case in listed}
    for arch in TARGETS:
        assert {(arch, row.block_m, row.block_n) for row in ROWS} <= tiles
    everything = shipped_reductions((A2,))
    assert len({case.name for case in everything}) == len(everything) > 200
    # options of attention leave them out
    assert not any("reduction" in case.name for case in asked_cases(
        None, None, None, None, (A2,), None, "standard", None
    ))  # fmt: skip


class Caught(Exception):
    pass


def launched(monkeypatch: pytest.MonkeyPatch, module: Any, call: Any) -> tuple[Any, Any]:
    """What a launcher hands to Triton."""

    def catch(kernel: Any, programs: int, args: Any, constants: Any, **_: Any) -> None:
        raise Caught(args, constants)

    monkeypatch.setattr(module, "launch", catch)
    with pytest.raises(Caught) as caught:
        call()
    args, constants = caught.value.args
    return args, constants


def assert_specialised(case: Case, args: dict[str, Any], constants: dict[str, Any]) -> None:
    """The rules of the JIT, applied to a launch's arguments, give the case."""
    plain = {p.name for p in case.kernel.params if p.do_not_specialize}
    fixed = {
        name: value
        for name, value in args.items()
        if value is None or (isinstance(value, int) and value == 1 and name not in plain)
    }
    assert dict(case.constants) == constants | fixed
    free = {name: value for name, value in args.items() if name not in fixed}
    assert set(case.signature) == set(free)
    assert set(case.divisible_by_16) == {
        name
        for name, value in free.items()
        if isinstance(value, torch.Tensor)
        or (name not in plain and isinstance(value, int) and value % 16 == 0)
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.along}-{row.max_length}")
def test_a_reductions_case_is_what_a_call_specialises(
    monkeypatch: pytest.MonkeyPatch, row: Any
) -> None:
    numbers = row.max_length or 1 << 12
    # a row's numbers in two pieces, a gap behind each
    x = torch.empty(3, 48, 64, numbers + 16, device="meta", dtype=torch.bfloat16)[..., :-16]
    if not row.along:
        x = torch.empty(3, 64, numbers, 48 + 16, device="meta", dtype=torch.bfloat16)[..., :-16]
    x = x if row.along else x.permute(0, 3, 1, 2)
    rows = rows_of(x, (2, 3))
    target = Target("ascend", A2, 20)
    given = torch.empty(rows.count, device="meta")
    args, constants = launched(
        monkeypatch,
        reduce_launch,
        lambda: reduce_launch.launch_sum(rows, "spread", given, "sum2", target, "device"),
    )
    raw = constants["RAW"]
    assert_specialised(
        reduce_case(row, "bfloat16", A2, "spread", "sum2", raw, False), args, constants
    )


@pytest.mark.parametrize("numbers", [1000, TILE.max_tile])
def test_a_norms_case_is_what_a_call_specialises(
    monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    x = torch.empty(3, 48, numbers + 24, device="meta")[..., :numbers]
    x = torch.as_strided(x, x.shape, (64 * 2048, 2048 if numbers < 2048 else 8192, 1))
    rows = rows_of(x, (2,))
    out = rows_of(torch.empty_strided(x.shape, x.stride(), device="meta"), (2,))
    weight = torch.empty(numbers, device="meta")
    target = Target("ascend", A2, 20)
    args, constants = launched(
        monkeypatch,
        normalize_launch,
        lambda: normalize_launch.launch_normalize(
            rows, out, weight, weight, "layer_norm", 1e-5, "kahan", target, "device"
        ),
    )
    case = normalize_case(TILE, "float32", A2, "layer_norm", "kahan", numbers, True)
    assert_specialised(case, args, constants)

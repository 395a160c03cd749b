"""The kernels for few queries, through the compiler of each processor that a row names."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import TARGETS

from flashasc._configs import ascend, choose_split, within_pages
from flashasc._dispatch import plan_decode
from flashasc._target import Target
from flashasc.kernels import split_launch
from flashasc.workbench import check
from flashasc.workbench.shipped_split import SplitUse, _problem, split_case, split_cases, split_uses


def in_turn() -> list[Any]:
    """Some rows, each in one of its uses on one of its processors; `ascend check --uses` is all."""
    chosen = []
    for number, row in enumerate(ascend.SPLIT_TILES[::9]):
        arch = row.targets[number % len(row.targets)]
        use = split_uses(row)[number % len(split_uses(row))]
        kind = f"{str(row.dtype).removeprefix('torch.')}-{row.precision}-{row.max_head}"
        chosen.append(pytest.param(row, use, arch, id=f"{arch}-{kind}-{use}"))
    return chosen


@pytest.mark.parametrize("row, use, arch", in_turn())
def test_a_row_compiles(row: Any, use: SplitUse, arch: str) -> None:
    for verdict in check(split_case(row, use, arch)):
        assert verdict.ok, verdict.explanation()


def test_every_row_is_listed_and_every_kind_served() -> None:
    listed = {(case.arch, case.name) for case in split_cases(TARGETS)}
    every = {
        (arch, case.name)
        for row in ascend.SPLIT_TILES
        for arch in row.targets
        for use in split_uses(row)
        for case in split_case(row, use, arch)
    }
    assert listed == every
    for row in ascend.SPLIT_TILES:
        for arch in row.targets:
            for use in split_uses(row):
                assert choose_split(_problem(row, use), Target("ascend", arch, 20)) is not None


def test_tiles_of_small_pages_lie_in_one_page() -> None:
    """And sums are folded as many keys apart as in one piece."""
    row = next(r for r in ascend.SPLIT_TILES if r.segment > 1)
    for page in (16, 32, 128, 512):
        found = within_pages(row, page)
        assert found.block_n == min(page, row.block_n)
        assert found.block_n * found.segment == row.block_n * row.segment
        assert found.chunk == row.chunk


def test_pages_too_small_for_a_compiler_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    from flashasc import _dispatch

    monkeypatch.setattr(_dispatch, "target_of", lambda _: Target("ascend", "Ascend950PR_9589", 28))
    monkeypatch.setattr(_dispatch, "kernel_route", lambda _: "device")
    row = next(r for r in ascend.SPLIT_TILES if r.least_page == 32 and not r.options)
    use = SplitUse(64, 64, 4, page=16, options=False)
    problem = _problem(row, use)
    problem = type(problem)(**{**vars(problem), "device": torch.device("cpu")})
    with pytest.raises(NotImplementedError, match="need pages of 32 keys or more"):
        plan_decode(problem, "triton", 16)
    assert plan_decode(problem, "triton", 32).split is not None


def test_cases_are_what_a_call_specialises(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the launcher hands to Triton, against what is compiled here."""
    caught: list[tuple[Any, dict[str, Any], dict[str, Any]]] = []

    def catch(kernel: Any, programs: int, args: Any, constants: Any, **_: Any) -> None:
        caught.append((kernel, dict(args), dict(constants)))

    monkeypatch.setattr(split_launch, "launch", catch)
    row = next(r for r in ascend.SPLIT_TILES if r.options)
    use = SplitUse(64, 64, 4, page=32, options=True)
    problem = _problem(row, use)
    q = torch.empty(2, 8, 1, 64, dtype=row.dtype, device="meta")
    pages = torch.empty(300, 2, 32, 64, dtype=row.dtype, device="meta")
    table = torch.empty(2, 256, dtype=torch.int32, device="meta")
    lens = torch.empty(2, dtype=torch.int32, device="meta")
    heads = torch.empty(8, device="meta")
    from flashasc._problem import Extras

    split_launch.launch_attention_split(
        q, pages, pages, torch.empty_like(q), torch.empty(2, 8, 1, device="meta"), problem,
        Extras(alibi_slopes=heads, sinks=heads, kv_lens=lens), within_pages(row, 32),
        Target("ascend", row.targets[0], 20), "device", last_key=True,
        pages=split_launch.Pages(table, 32),
    )  # fmt: skip
    cases = split_case(row, use, row.targets[0])
    assert [case.kernel for case in cases] == [kernel for kernel, _, _ in caught]
    for case, (kernel, args, constants) in zip(cases, caught, strict=True):
        plain = {p.name for p in kernel.params if p.do_not_specialize}
        fixed = {n: v for n, v in args.items() if v is None or (v == 1 and n not in plain)}
        # a stride of 1 between heads or sequences of few is no matter of the compiler's room
        fixed = {n: v for n, v in fixed.items() if v is None or n.endswith("d")}
        assert dict(case.constants) == constants | fixed
        assert set(case.signature) == set(args)

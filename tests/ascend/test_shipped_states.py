"""The kernels around those for few queries, through the compiler; and that they are all listed."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import A5, TARGETS

from flashasc._target import Target
from flashasc.kernels import append, states
from flashasc.workbench import Case, check
from flashasc.workbench.asked import asked_cases
from flashasc.workbench.shipped_states import append_case, cache_cases, finalize_case, merge_case


def in_turn() -> list[Any]:
    """Some cases, on one processor or another; `ascend check --uses` is all."""
    listed = [cache_cases((arch,)) for arch in TARGETS]
    chosen = [listed[number % len(TARGETS)][number] for number in range(0, len(listed[0]), 12)]
    return [pytest.param(case, id=f"{case.arch}-{case.name}") for case in chosen]


@pytest.mark.parametrize("case", in_turn())
def test_a_case_compiles(case: Case) -> None:
    (verdict,) = check([case])
    assert verdict.ok, verdict.explanation()


def test_all_are_listed_for_every_target() -> None:
    for arch in TARGETS:
        listed = {case.name for case in cache_cases((arch,))}
        operations = {case.facts["operation"] for case in cache_cases((arch,))}
        assert operations == {
            "append to a cache", "attention forward", "merge of states", "end of a state",
        }  # fmt: skip
        asked = asked_cases(None, None, None, None, [arch], None, None, None, every_use=True)
        assert listed <= {case.name for case in asked}


@pytest.mark.parametrize("page", [0, 64])
def test_an_append_is_what_a_call_specialises(monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    caught = catch(monkeypatch, append)
    keys = torch.empty(300, 8, page or 1024, 128, dtype=torch.float16, device="meta")
    new = torch.empty(300, 8, 1, 128, dtype=torch.float16, device="meta")
    lens = torch.empty(300, dtype=torch.int32, device="meta")
    table = torch.empty(300, 4, dtype=torch.int32, device="meta") if page else None
    append.launch_append_kv(keys, keys, new, new, lens, table, Target("ascend", A5, 28), "device")
    ((kernel, args, constants),) = caught
    case = append_case("float16", A5, 8, 128, 128, page)
    same(case, kernel, args, constants)


def test_states_are_what_a_call_specialises(monkeypatch: pytest.MonkeyPatch) -> None:
    caught = catch(monkeypatch, states)
    rows = torch.empty(2, 4, 5, 300, device="meta")
    acc = torch.empty(2, 4, 300, 2, 128, device="meta")
    target = Target("ascend", A5, 28)
    states.launch_merge_states(
        (rows, acc, rows, acc), rows, acc, target, "device", whole=False, natural=True
    )
    out = torch.empty(2, 4, 300, 128, dtype=torch.bfloat16, device="meta")
    states.launch_finalize_state(
        rows, acc, out, out[..., 0].float(), torch.empty(4, device="meta"), target, "device",
        whole=False, lowered=False, natural=True, separate_lse=True,
    )  # fmt: skip
    cases = [merge_case(A5, 128, False), finalize_case("bfloat16", A5, 128, True, True)]
    for case, call in zip(cases, caught, strict=True):
        same(case, *call)


Call = tuple[Any, dict[str, Any], dict[str, Any]]


def catch(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[Call]:
    """The list to which a module's launches are added from now on."""
    caught: list[Call] = []

    def launch(kernel: Any, programs: int, args: Any, constants: Any, **_: Any) -> None:
        caught.append((kernel, dict(args), dict(constants)))

    monkeypatch.setattr(module, "launch", launch)
    return caught


def same(case: Case, kernel: Any, args: dict[str, Any], constants: dict[str, Any]) -> None:
    """A number equal to 1 becomes a constant, where the JIT looks at it."""
    assert case.kernel is kernel
    plain = {p.name for p in kernel.params if p.do_not_specialize}
    fixed = {
        n: v
        for n, v in args.items()
        if v is None or (isinstance(v, int) and v == 1 and n not in plain)
    }
    assert dict(case.constants) == constants | fixed
    assert set(case.signature) == set(args) - set(fixed)
    for name, kind in case.signature.items():
        types = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
        types |= {torch.int32: "i32"}
        value = args[name]
        assert kind == (f"*{types[value.dtype]}" if isinstance(value, torch.Tensor) else "i32")

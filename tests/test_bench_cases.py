"""Every case of the benchmarks in its small form, the gate it has to pass, and the peers' calls."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from bench import gate, test_gemm, test_reductions
from bench.attention_runs import (
    Build,
    Unavailable,
    fa3,
    fa4,
    flex,
    npu_fusion_attention,
    ours,
    sdpa,
)
from bench.cases import (
    ATTENTION,
    ATTENTION_CPU,
    GEMM,
    GEMM_CPU,
    REDUCTIONS,
    REDUCTIONS_CPU,
    AttentionCase,
    GemmCase,
    ReductionCase,
    long_tailed,
)
from tests.docs import other_libraries as other

SMALL = [case.small() for case in ATTENTION]
BY_NAME = {case.name: case for case in SMALL}


def shortfall(case: AttentionCase, build: Build) -> float:
    """Error of a call as a share of its budget; over the budget it raises."""
    inputs = gate.attention_inputs(case, "cpu")
    return gate.expected_attention(case, inputs).check(build(case, inputs)()).error_of_budget


def ids(case: Any) -> str:
    return str(case.name)


@pytest.mark.parametrize("case", [*SMALL, *ATTENTION_CPU], ids=ids)
def test_attention_by_the_reference(case: AttentionCase) -> None:
    shortfall(case, ours("compensated", "reference"))


def test_attention_by_the_kernel() -> None:
    """The other options are other names in the same call, which tests of their own compile."""
    shortfall(BY_NAME["window1024-32k-causal"], ours("compensated", "triton"))


@pytest.mark.parametrize("case", [case.small() for case in (*GEMM, *GEMM_CPU)], ids=ids)
def test_gemm_by_the_reference(case: GemmCase) -> None:
    a, b = gate.gemm_inputs(case, "cpu")
    expected = gate.expected_gemm(a, b)
    for name in ("reference_plain", "reference_compensated", "torch"):
        expected.check(test_gemm.build(a, b, name)())


@pytest.mark.parametrize("case", [case.small() for case in (*REDUCTIONS, *REDUCTIONS_CPU)], ids=ids)
def test_reductions_by_the_reference(case: ReductionCase) -> None:
    x, weight = gate.reduction_inputs(case, "cpu")
    expected = gate.expected_reduction(case, x, weight)
    for name in ("reference_plain", "reference_compensated", "torch"):
        expected.check(test_reductions.build(case, x, weight, name)())


# --- the table -----------------------------------------------------------------------------------


def test_names_are_unique_and_say_what_is_hidden() -> None:
    for table in (ATTENTION, ATTENTION_CPU, GEMM, GEMM_CPU, REDUCTIONS, REDUCTIONS_CPU):
        names = [case.name for case in table]
        assert len(set(names)) == len(names)
    for case in (*ATTENTION, *ATTENTION_CPU):
        assert case.causal == ("causal" in case.name)


def test_operations_are_those_of_what_is_seen() -> None:
    for case in SMALL:
        pairs = 0
        for Sq, Sk in case.sequences:
            at, j = torch.arange(Sq)[:, None] + Sk - Sq, torch.arange(Sk)
            seen = (j <= at) if case.causal else (j >= 0).expand(Sq, Sk)
            if case.window is not None:
                seen = seen & (j >= at - case.window)
            pairs += int(seen.sum())
        assert case.flops() == 4 * case.D * case.Hq * pairs, case.name
    assert BY_NAME["window1024-32k-causal"].flops() < BY_NAME["gqa-32k-causal"].flops()


def test_packed_lengths_have_a_long_tail() -> None:
    lengths = long_tailed(65536)
    assert sum(lengths) == 65536 and min(lengths) >= 1
    assert max(lengths) > 4 * sorted(lengths)[len(lengths) // 2]


# --- the gate ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prefill-d128-8k-causal", "packed-full", "decode-b8-32k"])
def test_what_is_wrong_is_not_timed(name: str) -> None:
    case = BY_NAME[name]
    inputs = gate.attention_inputs(case, "cpu")
    expected = gate.expected_attention(case, inputs)
    out = ours("compensated", "reference")(case, inputs)()
    first = (0,) * out.dim()
    for fault in (0.1, float("nan")):
        broken = out.clone()
        broken[first if fault != fault else ...] += fault
        with pytest.raises(gate.WrongResult):
            expected.check(broken)
    with pytest.raises(gate.WrongResult):
        # the heads of another order
        expected.check(out.flip(1))


def test_a_mask_that_is_off_by_one_is_wrong() -> None:
    case = BY_NAME["window1024-32k-causal"]
    inputs = gate.attention_inputs(case, "cpu")
    expected = gate.expected_attention(case, inputs)
    assert case.window is not None
    for wrong in (
        AttentionCase(**{**vars(case), "window": case.window + 1}),
        AttentionCase(**{**vars(case), "window": None}),
        AttentionCase(**{**vars(case), "causal": False}),
    ):
        with pytest.raises(gate.WrongResult):
            expected.check(ours("standard", "reference")(wrong, inputs)())


# --- peers, by models of their documentation where they do not run here --------------------------


def grouped(attend: Any) -> Any:
    """A model's call for heads that share keys, in float64; heads are the dimension before last."""

    def call(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Tensor:
        axis = 1 if "BNSD" in args else -2
        k, v = (x.repeat_interleave(q.shape[axis] // k.shape[axis], axis) for x in (k, v))
        wide = attend(q.double(), k.double(), v.double(), *args, **options)
        result: Tensor = wide.to(q.dtype)
        return result

    return call


def from_cache(q: Tensor, k: Tensor, v: Tensor, *, cache_seqlens: Tensor) -> Tensor:
    assert bool((cache_seqlens == k.shape[1]).all())
    out: Tensor = grouped(other.flash_attn_func)(q, k, v)
    return out


FLASH_ATTN = {
    "flash_attn_func": grouped(other.flash_attn_func),
    "flash_attn_varlen_func": grouped(other.flash_attn_varlen_func),
}
PAGED = {"decode-b32-32k-paged"}
WINDOWS = {"window1024-32k-causal"}
KINDS = [
    BY_NAME[name]
    for name in (
        "prefill-d128-4k-full",
        "prefill-d128-4k-causal",
        "gqa-8k-causal",
        *WINDOWS,
        "packed-full",
        "packed-causal",
        "decode-b1-32k",
        *PAGED,
    )
]


def fa4_func(*args: Any, **options: Any) -> tuple[Tensor, None]:
    """The newest of the family: None is no bound, and the log-sum-exp comes along."""
    left, right = options.pop("window_size", (None, None))
    bounds = (-1 if left is None else left, -1 if right is None else right)
    return FLASH_ATTN["flash_attn_func"](*args, **options, window_size=bounds), None


MODULES: dict[str, tuple[Build, dict[str, Any]]] = {
    "fa3_fwd_interface": (fa3, {**FLASH_ATTN, "flash_attn_with_kvcache": from_cache}),
    "flash_attn.cute": (fa4, {**FLASH_ATTN, "flash_attn_func": fa4_func}),
    "torch_npu": (
        npu_fusion_attention,
        {
            "npu_fusion_attention": lambda *args, **options: (
                grouped(other.npu_fusion_attention)(*args, **options),
                None,
            )
        },
    ),
}


def refused(build: Build, cases: list[AttentionCase] = SMALL) -> set[str]:
    """Names of the cases that a peer has no call for; the others pass the gate."""
    names = set()
    for case in cases:
        try:
            shortfall(case, build)
        except Unavailable:
            names.add(case.name)
    return names


@pytest.mark.parametrize("module", MODULES)
def test_a_peer_is_called_as_its_documentation_says(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, names = MODULES[module]
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))  # type: ignore[arg-type]
    assert refused(build) == PAGED


@pytest.mark.parametrize("module", MODULES)
def test_a_peer_that_is_not_installed_is_skipped(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*MODULES, "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    assert refused(MODULES[module][0]) == set(BY_NAME)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention() -> None:
    assert refused(flex(compiled=False), KINDS) == PAGED


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sdpa() -> None:
    assert refused(sdpa(None), [case for case in SMALL if not case.lengths]) == PAGED | WINDOWS
    # PyTorch's only way to do nested tensors on a CPU, and not when causal
    assert not refused(sdpa(SDPBackend.MATH), [BY_NAME["packed-full"]])

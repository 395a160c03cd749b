"""Every row of the Ascend tile table, through the compiler of each processor that it names."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib.util
import itertools
import os
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import TARGETS, product, rows

from flashasc._configs import TileConfig, ascend, choose
from flashasc._problem import AttentionProblem
from flashasc._target import Target
from flashasc.ascend import compile_kernel, lint, lower
from flashasc.kernels.attention_fwd import (
    _attention_fwd_kernel,
    kernel_constants,
    kernel_signature,
)


@dataclass(frozen=True)
class Variant:
    """One way a row may be used, as the launcher would specialise the kernel for it."""

    D: int
    Dv: int
    causal: bool
    with_lse: bool
    fp32_out: bool = False
    wide: bool = False
    """Strides that need 64 bits."""


def variants(row: TileConfig) -> list[Variant]:
    """Plain use, one column short of the limit, and the slimmest D and Dv."""
    limit = row.max_head
    return [
        Variant(limit, limit, causal=True, with_lse=True),
        Variant(limit - 1, limit - 1, causal=False, with_lse=False, fp32_out=True),
        Variant(1, limit, causal=True, with_lse=False),
        Variant(limit, 1, causal=False, with_lse=True, wide=True),
    ]


def problem(dtype: torch.dtype, precision: str, variant: Variant) -> AttentionProblem:
    return AttentionProblem(
        B=2,
        Hq=4,
        Hk=2,
        Sq=300,
        Sk=500,
        D=variant.D,
        Dv=variant.Dv,
        dtype=dtype,
        out_dtype=torch.float32 if variant.fp32_out else dtype,
        device=torch.device("meta"),
        layout="BNSD",
        causal=variant.causal,
        diagonal=200,
        scale=0.125,
        precision=precision,
        with_lse=variant.with_lse,
    )


def verdict(row: TileConfig, variant: Variant, arch: str) -> str | None:
    """What is wrong with a row in one use on one processor; None when nothing is."""
    facts = problem(row.dtype, row.precision, variant)
    constants = kernel_constants(facts, row, variant.wide)
    signature = kernel_signature(facts)
    strides = [name for name in signature if name.startswith("stride_")]
    if variant.wide:
        signature |= dict.fromkeys(strides, "i64")
    if not variant.with_lse:
        constants["lse_ptr"] = None
    # the JIT makes constants of integers equal to 1: the columns' strides, the rows' of one column
    ones = [f"stride_{tensor}d" for tensor in "qkvo"]
    ones += ["stride_qm", "stride_kn"] if variant.D == 1 else []
    ones += ["stride_vn", "stride_om"] if variant.Dv == 1 else []
    constants |= dict.fromkeys(ones, 1)
    pointers = ["q_ptr", "k_ptr", "v_ptr", "out_ptr"]
    aligned = [name for name in (*pointers, *strides) if name not in constants]
    lowered = lower(_attention_fwd_kernel, signature, constants, arch, divisible_by_16=aligned)
    # before compiling: what the lints find may crash or hang the compiler
    if findings := lint(lowered.linalg):
        return "\n".join(map(str, findings))
    report = compile_kernel(lowered)
    return None if report.ok else report.summary()


USES = [(row, arch) for row in ascend.TILES for arch in row.targets]


def name_of(use: tuple[TileConfig, str]) -> str:
    row, arch = use
    dtype = str(row.dtype).removeprefix("torch.")
    return f"{arch}-{dtype}-{row.precision}-{row.max_head}-{row.block_m}x{row.block_n}"


@pytest.mark.parametrize("use", USES, ids=name_of)
def test_a_row_compiles_for_a_processor_it_names(use: tuple[TileConfig, str]) -> None:
    row, arch = use
    uses = variants(row)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = list(pool.map(lambda variant: verdict(row, variant, arch), uses))
    assert not any(wrong), "\n".join(
        f"{use}: {why}" for use, why in zip(uses, wrong, strict=True) if why
    )


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("precision", ["standard", "compensated"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_head_size_has_a_row(dtype: torch.dtype, precision: str, arch: str) -> None:
    target = Target("ascend", arch, cores=20)
    sizes = range(1, 257)
    for D, Dv in [*zip(sizes, sizes, strict=True), *itertools.product(sizes, [256]), (256, 1)]:
        facts = problem(dtype, precision, Variant(D, Dv, causal=True, with_lse=True))
        row = choose(facts, target)
        assert arch in row.targets
        assert (row.dtype, row.precision) == (dtype, precision)
        assert max(D, Dv) <= row.max_head


@pytest.mark.parametrize("alike, named", ascend.SAME_MEMORIES.items())
def test_processors_that_share_a_row_have_the_same_memories(alike: str, named: str) -> None:
    for case in (rows(), product()):
        assert (
            compile_kernel(lower(*case, alike)).memory == compile_kernel(lower(*case, named)).memory
        )


def test_a_row_that_is_too_large_does_not_pass() -> None:
    row, arch = USES[-1]
    too_large = dataclasses.replace(row, block_m=256, block_n=256)
    assert "overflow: needs" in str(verdict(too_large, variants(too_large)[0], arch))

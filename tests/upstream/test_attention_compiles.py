"""Every row of the NVIDIA tile table, to machine code, with no GPU."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from compile_only import SHARED_BYTES, Compiled, compile_only, newest_capability

from flashasc._configs import TileConfig, choose, nvidia
from flashasc._problem import AttentionProblem, Precision
from flashasc._target import Target
from flashasc.kernels.attention_fwd import attention_fwd_kernel
from flashasc.kernels.attention_launch import (
    Spread,
    absent_arguments,
    kernel_constants,
    kernel_signature,
)

CAPABILITIES = (80, 90)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
BAND = {"window_left": 100, "softcap": 30.0, "has_alibi": True, "has_sinks": True}


def compile_row(
    row: TileConfig,
    capability: int,
    head: int,
    *,
    causal: bool,
    wide: bool = False,
    mask: Spread = "none",
    bias: Spread = "none",
    described: bool = False,
    **facts: Any,
) -> Compiled:
    problem = AttentionProblem(
        B=2, Hq=4, Hk=2, Sq=1000, Sk=1000, D=head, Dv=head, dtype=row.dtype, out_dtype=row.dtype,
        device=torch.device("meta"), causal=causal, diagonal=0, scale=0.125,
        precision=row.precision, with_lse=True, has_mask=mask != "none", has_bias=bias != "none",
        **{"layout": "BNSD", **facts},
    )  # fmt: skip
    signature = kernel_signature(problem, described=row if described else None)
    constants = kernel_constants(
        problem, row, mask=mask, bias=bias, wide=wide, descriptors=described
    )
    constants |= absent_arguments(problem, described=described, ordered=problem.packed)
    # what a launch specialises for contiguous tensors: unit strides, and everything aligned
    constants |= dict.fromkeys(("stride_qd", "stride_kd", "stride_vd", "stride_od"), 1)
    constants |= {"stride_mask_n": 1} if mask != "none" else {}
    constants |= {"stride_bias_n": 1} if bias != "none" else {}
    runtime = {name: type_ for name, type_ in signature.items() if name not in constants}
    aligned = [name for name in runtime if name.endswith("_ptr") or name.startswith("stride_")]
    return compile_only(
        attention_fwd_kernel,
        runtime,
        constants,
        capability,
        divisible_by_16=aligned,
        **row.compiler_options(),
    )


def name_of(row: TileConfig) -> str:
    name = f"{str(row.dtype).removeprefix('torch.')}-{row.precision}-{row.max_head}"
    return f"{name}-{row.targets[0]}" if len(row.targets) == 1 else name


HOPPER = [row for row in nvidia.TILES if row.targets == ("sm_90",)]
PLAIN = [row for row in nvidia.TILES if "mask" not in row.options and row not in HOPPER]
WITH_MASK = [row for row in nvidia.TILES if "mask" in row.options]


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("row", PLAIN, ids=name_of)
def test_row_compiles_and_fits(row: TileConfig, capability: int) -> None:
    assert f"sm_{capability}" in row.targets
    built = compile_row(row, capability, row.max_head, causal=True)
    assert built.cubin
    # one tile for every member of a generation: the smallest shared memory among the row's targets
    assert built.shared_bytes <= min(SHARED_BYTES[int(arch[3:])] for arch in row.targets)


on_hopper = pytest.mark.skipif(
    newest_capability() == 90, reason="Triton 3.2 has no descriptors: `choose` skips these rows"
)
# Bytes of a thread's state that may be spilled. None where all registers may be used; where fewer
# are allowed, two programs share a multiprocessor, which was measured to be worth more than a few
# spills cost. The low parts of the weights do not fit into the tiles that were fastest.
# float16 has these shapes too, but for one (compensated, 128: 24 bytes). The widest heads take a
# minute each: 0 bytes by `standard`, 680 by `compensated`.
STACK_BYTES = {
    ("standard", 64): 0,
    ("standard", 128): 80,
    # of "standard", 128, around the loops: 4 % faster, with products that are waited for
    # of "compensated", none in the loop over whole tiles
    ("compensated", 64): 96,
    ("compensated", 128): 0,
    # some of it in the loop over whole tiles: that tile was the fastest all the same
    ("high", 64): 400,
    # around the repair of infinite values: none in the loops over whole tiles
    ("high", 128): 80,
}
QUICK = [row for row in HOPPER if row.dtype == torch.bfloat16 and row.max_head <= 128]


@on_hopper
@pytest.mark.parametrize("row", QUICK, ids=name_of)
def test_row_of_hopper_compiles_and_spills_no_more_than_it_may(row: TileConfig) -> None:
    built = compile_row(row, 90, row.max_head, causal=True, described=row.descriptors)
    assert "wgmma.mma_async" in built.ptx
    # the whole tiles; those that have to be masked are read by pointers
    assert "cp.async.bulk.tensor" in built.ptx
    assert built.shared_bytes <= SHARED_BYTES[90]
    assert built.stack_bytes <= STACK_BYTES[row.precision, row.max_head]


@on_hopper
@pytest.mark.parametrize(
    ("option", "value", "stack_bytes"),
    # 40 bytes and more of each for products that are waited for, by which windows are 6 % faster;
    # slopes: scores in natural units take one more factor on their way to a weight
    [("window_left", 100, 168), ("softcap", 30.0, 88), ("has_alibi", True, 176)],
)
def test_row_of_hopper_has_room_for_each_option_that_it_takes(
    option: str, value: Any, stack_bytes: int
) -> None:
    row = next(r for r in QUICK if (r.precision, r.max_head) == ("standard", 128))
    built = compile_row(row, 90, 128, causal=True, described=True, **{option: value})
    assert built.shared_bytes <= SHARED_BYTES[90]
    assert built.stack_bytes <= stack_bytes


@on_hopper
def test_row_of_hopper_has_room_for_packed_sequences_and_odd_heads() -> None:
    row = next(r for r in QUICK if (r.precision, r.max_head) == ("compensated", 128))
    facts = {"layout": "TND", "tokens_q": 500, "tokens_k": 700}
    built = compile_row(row, 90, 127, causal=True, described=True, **facts)
    assert built.shared_bytes <= SHARED_BYTES[90]


def test_older_triton_gets_the_rows_that_it_compiles() -> None:
    problem = AttentionProblem(
        B=1, Hq=1, Hk=1, Sq=8, Sk=8, D=64, Dv=64, dtype=torch.bfloat16,
        out_dtype=torch.bfloat16, device=torch.device("meta"), causal=True, diagonal=0, scale=0.125,
        precision="standard", with_lse=False, layout="BNSD", has_mask=False, has_bias=False,
    )  # fmt: skip
    assert choose(problem, Target("nvidia", "sm_90", 132)) in HOPPER
    assert choose(problem, Target("nvidia", "sm_90", 132, (3, 2))) in PLAIN


@pytest.mark.parametrize("row", PLAIN[:3], ids=name_of)
def test_row_compiles_for_a_head_size_that_is_no_power_of_two(row: TileConfig) -> None:
    assert compile_row(row, 90, row.max_head - 1, causal=False, wide=True).cubin


@pytest.mark.parametrize("row", WITH_MASK, ids=name_of)
def test_row_has_room_for_every_option(row: TileConfig) -> None:
    built = compile_row(
        row, 90, row.max_head, causal=True, mask="full", bias="full", has_kv_lens=True, **BAND
    )
    assert built.shared_bytes <= min(SHARED_BYTES[int(arch[3:])] for arch in row.targets)


@pytest.mark.parametrize("row", PLAIN[::4], ids=name_of)
def test_row_has_room_for_packed_sequences(row: TileConfig) -> None:
    facts = {"layout": "TND", "tokens_q": 500, "tokens_k": 700, "causal": True, **BAND}
    built = compile_row(row, 80, row.max_head, **facts)
    assert built.shared_bytes <= min(SHARED_BYTES[int(arch[3:])] for arch in row.targets)


@pytest.mark.parametrize("spread", ["columns", "rows", "one"])
def test_masks_and_biases_that_are_broadcast_compile(spread: Spread) -> None:
    assert compile_row(WITH_MASK[3], 90, 64, causal=False, mask=spread, bias=spread).cubin


@pytest.mark.parametrize("capability", [86, 89, 100, 120])
def test_the_other_targets_that_rows_name_compile(capability: int) -> None:
    if capability > newest_capability():
        pytest.skip(f"this Triton does not know sm_{capability}")
    for row in PLAIN[::5]:
        assert f"sm_{capability}" in row.targets
        built = compile_row(row, capability, row.max_head, causal=True)
        assert built.shared_bytes <= SHARED_BYTES[capability]


def test_every_dtype_and_precision_has_a_row_for_the_largest_head() -> None:
    largest = {(row.dtype, row.precision) for row in nvidia.TILES if row.max_head == 256}
    every = {(d, p) for d in DTYPES for p in get_args(Precision)}
    assert largest == every - {(torch.float32, "high")}


def test_products_of_float32_are_not_tf32() -> None:
    row = next(r for r in PLAIN if r.dtype == torch.float32)
    assert "tf32" not in compile_row(row, 90, 64, causal=False).ptx

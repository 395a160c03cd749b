"""Every row of the NVIDIA table for few queries, both kernels, to machine code, with no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compile_only import SHARED_BYTES, Compiled, compile_only

from flashasc._configs import TileConfig, nvidia
from flashasc._problem import AttentionProblem
from flashasc.kernels import append, split_launch
from flashasc.kernels.attention_split import attention_split_kernel
from flashasc.kernels.merge_chunks import merge_chunks_kernel

OPTIONS = {"window_left": 100, "softcap": 30.0, "has_alibi": True, "has_sinks": True}


def facts(row: TileConfig, **more: Any) -> AttentionProblem:
    head = row.max_head
    return AttentionProblem(
        B=2, Hq=8, Hk=2, Sq=1, Sk=9000, D=head, Dv=head, dtype=row.dtype, out_dtype=row.dtype,
        device=torch.device("meta"), causal=True, diagonal=0, scale=0.125,
        precision=row.precision, with_lse=True, **{"layout": "BNSD", **more},
    )  # fmt: skip


def build(kernel: Any, signature: dict[str, str], constants: dict[str, Any], **options: Any) -> Any:
    ones = [f"stride_{letter}d" for letter in "qkvo"]
    constants |= {name: 1 for name in ones if name in signature}
    runtime = {name: kind for name, kind in signature.items() if name not in constants}
    plain = {p.name for p in kernel.params if p.do_not_specialize}
    aligned = [n for n in runtime if n.endswith("_ptr") or (n.startswith("stride_"))]
    aligned = [name for name in aligned if name not in plain]
    return compile_only(kernel, runtime, constants, 90, divisible_by_16=aligned, **options)


def compile_split(
    row: TileConfig, *, page: int = 0, one_chunk: bool = False, **more: Any
) -> Compiled:
    problem = facts(row, **more)
    constants = split_launch.split_constants(
        problem, row, one_chunk=one_chunk, last_key=True, page=page, wide=False
    )
    constants |= split_launch.absent_in_split(problem, one_chunk=one_chunk, paged=bool(page))
    signature = split_launch.split_signature(problem)
    return build(attention_split_kernel, signature, constants, **row.compiler_options())


def name_of(row: TileConfig) -> str:
    return f"{str(row.dtype).removeprefix('torch.')}-{row.precision}-{row.max_head}"


# every dtype and precision, every head size
@pytest.mark.parametrize("row", nvidia.SPLIT_TILES[::2], ids=name_of)
def test_a_row_compiles_and_fits(row: TileConfig) -> None:
    built = compile_split(row, page=16, has_kv_lens=True)
    assert built.cubin
    assert built.shared_bytes <= min(SHARED_BYTES[int(arch[3:])] for arch in row.targets)


@pytest.mark.parametrize("row", nvidia.SPLIT_TILES[3:6], ids=name_of)
def test_options_and_other_uses_compile(row: TileConfig) -> None:
    packed = {"layout": "TND", "tokens_q": 500, "tokens_k": 700}
    for built in (
        compile_split(row, one_chunk=True, **OPTIONS),
        compile_split(row, **packed, **OPTIONS),
        compile_split(row, page=128, has_kv_lens=True),
    ):
        assert built.shared_bytes <= min(SHARED_BYTES[int(arch[3:])] for arch in row.targets)


@pytest.mark.parametrize("row", nvidia.SPLIT_TILES[3:6], ids=name_of)
def test_the_merge_compiles_without_contracted_products(row: TileConfig) -> None:
    """A fused multiply-add would break the exact rounding errors that a merge is made of."""
    problem = facts(row, has_kv_lens=True, has_sinks=True)
    constants = split_launch.merge_constants(problem, row, last_key=True, wide=False)
    signature = split_launch.merge_signature(problem)
    absent = split_launch.absent_in_split(problem, one_chunk=False, paged=False)
    constants |= {name: None for name in absent if name in signature}
    options = {**row.compiler_options(), "num_warps": 1}
    built = build(merge_chunks_kernel, signature, constants, **options)
    assert built.cubin
    assert built.stack_bytes == 0


def test_new_tokens_compile() -> None:
    signature = {
        name: "*bf16" if name.endswith("_ptr") else "i32"
        for name in append.append_kv_kernel.arg_names
        if not name.isupper() and name not in ("D", "Dv")
    }
    signature |= {"lens_ptr": "*i32", "table_ptr": "*i32", "Hk": "i32", "S": "i32"}
    constants: dict[str, Any] = {
        "D": 128, "Dv": 128, "BLOCK_H": 8, "BLOCK_D": 128, "BLOCK_DV": 128, "PAGE": 16,
        "WIDE": False,
    }  # fmt: skip
    assert compile_only(append.append_kv_kernel, signature, constants, 90).cubin

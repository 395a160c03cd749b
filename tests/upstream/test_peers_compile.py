"""Kernels that store with peers, to machine code, with no GPU: the order of memory they rely on."""

from __future__ import annotations

import re
from itertools import cycle
from typing import Any

import pytest
import torch
from compile_only import SHARED_BYTES, Compiled, compile_only, newest_capability

from flashasc._configs import TileConfig, nvidia
from flashasc._problem import AttentionProblem
from flashasc.kernels import peer_kernels
from flashasc.kernels.attention_fwd import attention_fwd_kernel
from flashasc.kernels.attention_launch import absent_arguments, kernel_constants, kernel_signature
from flashasc.kernels.attention_peers import attention_peers_kernel

POINTERS = {"memories_ptr": "*i64", "pieces_ptr": "*i32", "failed_ptr": "*i32"}
PLACES = dict.fromkeys(("out_at", "lse_at"), "i64")
COUNTS = dict.fromkeys(("pieces", "rank", "first_head", "all_heads"), "i32")


def compile_attention(row: TileConfig, head: int, *, peers: bool, heads_first: bool) -> Compiled:
    problem = AttentionProblem(
        B=2, Hq=4, Hk=2, Sq=1000, Sk=1000, D=head, Dv=head, dtype=row.dtype, out_dtype=row.dtype,
        device=torch.device("meta"), causal=True, diagonal=0, scale=0.125,
        precision=row.precision, with_lse=True, layout="BNSD",
    )  # fmt: skip
    signature = kernel_signature(problem, described=row if row.descriptors else None)
    constants = kernel_constants(
        problem, row, mask="none", bias="none", wide=False, descriptors=row.descriptors
    )
    constants |= absent_arguments(problem, described=row.descriptors)
    constants |= dict.fromkeys(("stride_qd", "stride_kd", "stride_vd"), 1)
    kernel: Any = attention_fwd_kernel
    if peers:
        kernel = attention_peers_kernel
        signature |= POINTERS | PLACES | COUNTS
        constants |= {"HEADS_FIRST": heads_first, "LEVELS": 1}
    constants |= {"stride_od": 1}
    runtime = {name: kind for name, kind in signature.items() if name not in constants}
    aligned = [name for name in runtime if name.endswith("_ptr") or name.startswith("stride_")]
    return compile_only(
        kernel, runtime, constants, 90, divisible_by_16=aligned, **row.compiler_options()
    )


def lines(ptx: str, pattern: str) -> list[int]:
    return [i for i, line in enumerate(ptx.splitlines()) if re.search(pattern, line)]


ROWS = [
    row
    for row in nvidia.TILES
    if (row.dtype, row.precision, row.max_head)
    in ((torch.bfloat16, "compensated", 128), (torch.float32, "standard", 64))
    and "mask" not in row.options
    # an older Triton is given the rows for every GPU
    and (row.least_triton == (3, 2) or newest_capability() > 90)
]


@pytest.mark.parametrize(
    ("row", "heads_first"),
    list(zip(ROWS, cycle((True, False)))),
    ids=lambda x: str(getattr(x, "dtype", x)),
)
def test_tiles_are_stored_wide_and_nothing_waits_for_them(
    row: TileConfig, heads_first: bool
) -> None:
    built = compile_attention(row, row.max_head, peers=True, heads_first=heads_first)
    assert built.shared_bytes <= min(SHARED_BYTES[int(arch[3:])] for arch in row.targets)
    stores = lines(built.ptx, r"st\.global")
    # the signal is the next kernel's: a fence here would hold the program until a peer has answered
    assert not lines(built.ptx, r"\b(atom|red|membar)\.|fence\S*\.sys")
    text = built.ptx.splitlines()
    # where to is known before the rows are finished; of another owner only behind the first's
    loads = lines(built.ptx, r"\bld\.global")
    logarithm = lines(built.ptx, r"\blg2\.|logf")[0]
    assert not [i for i in loads if logarithm < i < stores[-1]]
    # the tile is stored 16 bytes at a time: addresses from a table hide how they are aligned
    assert sum(".v4.b32" in text[i] for i in stores) >= len(stores) - 2, len(stores)
    alone = compile_attention(row, row.max_head, peers=False, heads_first=heads_first)
    assert built.stack_bytes <= alone.stack_bytes


def small(kernel: Any, types: dict[str, str], constants: dict[str, Any], num_warps: int = 4) -> str:
    names = [p.name for p in kernel.params if p.name not in constants]
    signature = {name: types.get(name, "i32") for name in names}
    aligned = [n for n in names if n.endswith(("_ptr", "columns", "_from", "_to"))]
    return compile_only(
        kernel, signature, constants, 90, divisible_by_16=aligned, num_warps=num_warps
    ).ptx


def test_the_signal_releases_and_waiting_acquires() -> None:
    types = {"signals_ptr": "*i32", "report_ptr": "*i32", "failed_ptr": "*i32"}
    types |= {"peers_ptr": "*i64", "at": "i64", "limit": "i64"}
    meets = small(peer_kernels.meet_kernel, types, {"RANKS": 2}, num_warps=1)
    text = meets.splitlines()
    (signal,) = lines(meets, r"atom\.global\S*release|red\.\S*release")
    reads = lines(meets, r"(ld|atom)\.global\S*acquire")
    assert len(reads) == 2 and signal < min(reads), (signal, reads)
    assert all(".sys" in text[line] for line in (signal, *reads))
    assert lines(meets, "globaltimer"), "the wait has an end"


def test_pushing_and_taking_compile() -> None:
    types = {"x_ptr": "*bf16", "lse_ptr": "*fp32", "pause": "i64", **POINTERS, **PLACES}
    types |= {"out_ptr": "*bf16", "out_lse_ptr": "*fp32"}
    constants = {
        "Dv": 72, "BLOCK_DV": 128, "BLOCK_M": 64, "WITH_LSE": True, "HEADS_FIRST": False,
        "LEVELS": 1,
    }  # fmt: skip
    assert lines(small(peer_kernels.push_kernel, types, constants), r"st\.global\.v4")
    types = {"out_ptr": "*i16", "arrived_ptr": "*i16", "failed_ptr": "*i32"}
    types |= {"lse_ptr": "*i32", "arrived_lse_ptr": "*i32"}
    constants = {"BLOCK": 2048, "LSE_BLOCK": 4096, "WITH_LSE": True, "POISON": False}
    taken = small(peer_kernels.take_kernel, types, constants)
    # 16 bytes at a time, whichever columns are the rank's own
    for access in (r"\bld\.global", r"\bst\.global"):
        found = [taken.splitlines()[i] for i in lines(taken, access)]
        assert sum(".v4" in line for line in found) >= len(found) - 1, found

"""The kernels for few queries, as they are shipped for Ascend: what `shipped` is for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from flashasc._configs import TileConfig, ascend, within_pages
from flashasc._problem import AttentionProblem
from flashasc.ascend import family
from flashasc.ascend.frontend import _import_backend
from flashasc.workbench.case import Case
from flashasc.workbench.shipped import _GENERATION, DEFAULT_TARGETS, DTYPES


@dataclass(frozen=True)
class SplitUse:
    """One way a row for few queries may be used.

    Attributes:
        D, Dv: head sizes.
        group: query heads that share a key head.
        page: keys of a page; 0: keys lie in one piece.
        packed, options: as the launcher specialises the kernels.
    """

    D: int
    Dv: int
    group: int
    page: int = 0
    packed: bool = False
    options: bool = True

    def __str__(self) -> str:
        words = [f"D={self.D} Dv={self.Dv} group={self.group}"]
        words += [f"page={self.page}"] if self.page else []
        words += ["packed"] if self.packed else []
        return " ".join([*words, "all options" if self.options else "no options"])


def split_uses(row: TileConfig) -> tuple[SplitUse, ...]:
    """How a row for few queries is used; what needs most room comes first."""
    limit, options = row.max_head, bool(row.options)
    return (
        SplitUse(limit, limit, 3, packed=True, options=options),
        SplitUse(limit, limit, 4, page=row.least_page, options=options),
        SplitUse(limit, limit, 1, options=options),
        SplitUse(limit - 1, 1, 8, page=512, options=options),
    )


def split_cases(
    targets: Sequence[str] = DEFAULT_TARGETS,
    *,
    dtype: str | None = None,
    precision: str | None = None,
    head_dim: int | None = None,
    every_use: bool = True,
) -> list[Case]:
    """List both kernels for few queries, as a call of each kind specialises them.

    Args and Raises: as for `shipped_cases`. Without `every_use` rows that differ in their head size
    alone share the merge of the largest: it takes values 128 columns at a time for all of them.
    """
    found: list[Case] = []
    for arch in targets:
        named = {name for row in ascend.SPLIT_TILES for name in row.targets}
        serving = ascend.SAME_MEMORIES.get(arch, arch)
        serving = serving if serving in named else _GENERATION[family(arch)]
        rows = [row for row in ascend.SPLIT_TILES if serving in row.targets]
        chosen: list[TileConfig] = []
        for row in rows:
            if (dtype and row.dtype != DTYPES[dtype]) or (precision and row.precision != precision):
                continue
            below = max((r.max_head for r in rows if r.max_head < row.max_head), default=0)
            if head_dim is None or below < head_dim <= row.max_head:
                chosen.append(row)
        for row in chosen:
            if every_use:
                found += [case for use in split_uses(row) for case in split_case(row, use, arch)]
                continue
            kernel, merge = split_case(row, split_uses(row)[0], arch)
            found += [kernel, merge] if row is _largest_merge(row, chosen) else [kernel]
    return found


def _largest_merge(row: TileConfig, rows: Sequence[TileConfig]) -> TileConfig:
    """Of the rows that differ from a row in their head size alone, the one with the largest."""
    kind = (row.dtype, row.precision, row.options)
    alike = [r for r in rows if (r.dtype, r.precision, r.options) == kind]
    return max(alike, key=lambda r: r.max_head)


def split_case(row: TileConfig, use: SplitUse, arch: str) -> list[Case]:
    """The kernels that a call of this kind runs: that for the chunks, and their merge.

    Raises:
        ToolchainError: triton-ascend is not installed.
    """
    _import_backend()
    from flashasc.kernels import split_launch

    row = within_pages(row, use.page)
    from flashasc.kernels.attention_split import attention_split_kernel
    from flashasc.kernels.merge_chunks import merge_chunks_kernel

    problem = _problem(row, use)
    last_key = bool(use.page) or use.packed
    constants = split_launch.split_constants(
        problem, row, one_chunk=False, last_key=last_key, page=use.page, wide=False
    )
    absent = split_launch.absent_in_split(problem, one_chunk=False, paged=bool(use.page))
    merging = split_launch.merge_constants(problem, row, last_key=last_key, wide=False)
    kernels = [
        (attention_split_kernel, split_launch.split_signature(problem), constants),
        (merge_chunks_kernel, split_launch.merge_signature(problem), merging),
    ]
    dtype = str(row.dtype).removeprefix("torch.")
    aligned = ("stride_qm", "stride_kn", "stride_vn", "stride_om")
    cases = []
    for kernel, signature, fixed in kernels:
        fixed = {**fixed, **{name: None for name in absent if name in signature}}
        ones = [f"stride_{tensor}d" for tensor in "qkvo"]
        ones += ["stride_qm", "stride_kn"] if use.D == 1 else []
        ones += ["stride_vn", "stride_om"] if use.Dv == 1 else []
        fixed |= {name: 1 for name in ones if name in signature}
        pointers = [name for name in signature if name.endswith("_ptr")]
        name = "attention split" if kernel is attention_split_kernel else "merge of chunks"
        cases.append(
            Case(
                name=f"{name} {dtype} {row.precision} D<={row.max_head} "
                f"{row.block_m}x{row.block_n}, {use}",
                arch=arch,
                kernel=kernel,
                signature=signature,
                constants=fixed,
                divisible_by_16=tuple(
                    n for n in (*pointers, *aligned) if n in signature and n not in fixed
                ),
                facts={
                    "operation": name,
                    "dtype": dtype,
                    "precision": row.precision,
                    "max_head": row.max_head,
                    "options": sorted(row.options) if use.options else [],
                    "block_m": row.block_m,
                    "block_n": row.block_n,
                    "segment": row.segment,
                    "use": str(use),
                    "D": use.D,
                    "Dv": use.Dv,
                    "causal": True,
                },
            )
        )
    return cases


def _problem(row: TileConfig, use: SplitUse) -> AttentionProblem:
    """A call of this kind. Its sizes do not reach the compiler."""
    plain = AttentionProblem(
        B=2, Hq=2 * use.group, Hk=2, Sq=1, Sk=8192, D=use.D, Dv=use.Dv, dtype=row.dtype,
        out_dtype=row.dtype, device=torch.device("meta"), layout="TND" if use.packed else "BNSD",
        causal=True, diagonal=0, scale=0.125, precision=row.precision, with_lse=use.options,
        has_kv_lens=bool(use.page), tokens_q=2 if use.packed else 0,
        tokens_k=9000 if use.packed else 0,
    )  # fmt: skip
    if not use.options:
        return plain
    return replace(plain, softcap=30.0, window_left=4000, has_alibi=True, has_sinks=True)

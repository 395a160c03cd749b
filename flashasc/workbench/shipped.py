"""Everything for Ascend that the package ships: kernel x dtype x tile configuration x use.

The tests, `python -m flashasc ascend check` and the search for tiles all take their cases from
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from flashasc._configs import TileConfig, ascend
from flashasc._problem import AttentionProblem, Precision
from flashasc.ascend import family, known_archs
from flashasc.ascend.frontend import _import_backend
from flashasc.workbench.case import Case
from flashasc.workbench.shipped_gemm import shipped_gemm_cases

DEFAULT_TARGETS = ("Ascend910B3", "Ascend910_9392", "Ascend950PR_9589")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_GENERATION = {"A2": "Ascend910B3", "A3": "Ascend910_9392", "A5": "Ascend950PR_9589"}


@dataclass(frozen=True)
class Use:
    """One way a row of the tile table may be used, as the launcher would specialise the kernel.

    Attributes:
        D, Dv: head sizes of queries and keys, and of values.
        causal, with_lse, sinks, kv_lens, packed: as in `flashasc.attention`.
        fp32_out: 16-bit inputs, float32 output.
        wide: strides that need 64 bits.
        state: the raw softmax state instead of the output.
        options: the score options in use, see `AttentionProblem.score_options`.
        spread: over what a mask and a bias are given, see `blocks.layout.load_spread`.
    """

    D: int
    Dv: int
    causal: bool = True
    with_lse: bool = True
    fp32_out: bool = False
    wide: bool = False
    sinks: bool = False
    kv_lens: bool = False
    packed: bool = False
    state: bool = False
    options: frozenset[str] = frozenset()
    spread: Literal["full", "columns"] = "full"

    def __str__(self) -> str:
        switches = ("causal", "with_lse", "fp32_out", "wide", "sinks", "kv_lens", "packed", "state")
        words = [f"D={self.D} Dv={self.Dv}", *filter(self.__getattribute__, switches)]
        words += sorted(self.options)
        words += [f"per {self.spread}"] if self.options & {"mask", "bias"} else []
        return " ".join(words)


def uses(row: TileConfig, above: int) -> tuple[Use, ...]:
    """How a row is used; what needs most room comes first.

    Then one column short, with the slimmest D and Dv, and between.

    Args:
        row: of the tile table.
        above: largest head size that the table's next smaller row serves; 0 where there is none.
            Head sizes between that and the row's own that have a tile width of their own are uses.
    """
    limit, options = row.max_head, row.options
    between = [size for size in row.head_blocks[1:] if above < size < limit]
    return (
        Use(limit, limit, options=options),
        Use(limit - 1, limit - 1, causal=False, with_lse=False, fp32_out=True, sinks=True,
            options=options - {"mask", "softcap"}),
        Use(1, limit, with_lse=False, kv_lens=True, sinks=True, options=options, spread="columns"),
        Use(limit, 1, causal=False, wide=True, options=options - {"bias"}),
        # packed sequences take neither mask nor bias
        Use(limit, limit, sinks=True, packed=True, options=options - {"mask", "bias"}),
        # a single column takes the narrowest tile already
        *(Use(size, size, options=options) for size in between),
    )  # fmt: skip


def attention_case(row: TileConfig, use: Use, arch: str) -> Case:
    """The forward kernel as a call of this kind specialises it on a processor.

    Raises:
        ToolchainError: triton-ascend is not installed.
    """
    # the kernels import triton: without the right one, say what to install
    _import_backend()
    from flashasc.kernels.attention_fwd import attention_fwd_kernel
    from flashasc.kernels.attention_launch import (
        absent_arguments,
        kernel_constants,
        kernel_signature,
    )

    problem = _problem(row, use)
    spreads = {name: use.spread if name in use.options else "none" for name in ("mask", "bias")}
    constants = kernel_constants(problem, row, wide=use.wide, state=use.state, **spreads)  # type: ignore[arg-type]
    constants |= absent_arguments(problem, state=use.state)
    signature = kernel_signature(problem, state=use.state)
    # rows of a multiple of 16 numbers; other strides are as they come, or not looked at by the JIT
    rows = ["stride_qm", "stride_kn", "stride_vn", "stride_om"]
    # 0, as a launch passes the strides of what is not there or the same for all rows
    zeros = [
        f"stride_{name}_{dim}"
        for name in ("mask", "bias")
        for dim in "bhmn"
        if name not in use.options or (dim in "hm" and use.spread == "columns")
    ]
    zeros += [f"stride_{tensor}b" for tensor in "qkvo" if use.packed]
    if use.wide:
        far = [f"stride_{tensor}{dim}" for tensor in "qkvo" for dim in "bh"]
        signature |= dict.fromkeys((*rows, *far), "i64")
    # the JIT makes constants of integers equal to 1: the columns' strides, the rows' of one column
    ones = [f"stride_{tensor}d" for tensor in "qkvo"]
    ones += ["stride_qm", "stride_kn"] if use.D == 1 else []
    ones += ["stride_vn", "stride_om"] if use.Dv == 1 else []
    ones += [f"stride_{name}_n" for name in ("mask", "bias") if name in use.options]
    constants |= dict.fromkeys(ones, 1)
    dtype = str(row.dtype).removeprefix("torch.")
    pointers = [name for name in signature if name.endswith("_ptr")]
    return Case(
        name=f"attention forward {dtype} {row.precision} D<={row.max_head} "
        f"{row.block_m}x{row.block_n}, {use}",
        arch=arch,
        kernel=attention_fwd_kernel,
        signature=signature,
        constants=constants,
        divisible_by_16=tuple(name for name in (*pointers, *rows, *zeros) if name not in constants),
        facts={
            "operation": "attention forward",
            "dtype": dtype,
            "precision": row.precision,
            "max_head": row.max_head,
            "options": sorted(row.options),
            "block_m": row.block_m,
            "block_n": row.block_n,
            "segment": row.segment,
            "use": str(use),
            "D": use.D,
            "Dv": use.Dv,
            "causal": use.causal,
        },
        # sums that are kept plainly have no compensation to fold a segment into
        plainly=attention_case(replace(row, precision="standard", segment=1), use, arch)
        if row.segment > 1 and row.precision != "high"
        else None,
    )


def shipped_cases(
    targets: Sequence[str] = DEFAULT_TARGETS,
    *,
    dtype: str | None = None,
    precision: str | None = None,
    head_dim: int | None = None,
    every_use: bool = True,
    attention_only: bool = False,
) -> list[Case]:
    """List what is shipped for some processors.

    Args:
        targets: processor names in full. One that no row of the table names gets the rows of its
            generation's first.
        dtype: "float16", "bfloat16" or "float32"; all by default.
        precision: "standard", "compensated" or "high"; all by default.
        head_dim: only attention, and of that only the rows that serve this head size; all by
            default.
        every_use: each row in all its `uses`; otherwise in the one that needs most room.
        attention_only: leave out the other kernels.

    Raises:
        ValueError: an unknown processor, dtype or precision, or a head size that no row serves.
        ToolchainError: triton-ascend is not installed.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    if precision is not None and precision not in get_args(Precision):
        expected = " or ".join(get_args(Precision))
        raise ValueError(f"precision: expected {expected}, got {precision!r}")
    largest = max(row.max_head for row in ascend.TILES)
    if head_dim is not None and not 1 <= head_dim <= largest:
        raise ValueError(f"head_dim: expected 1 to {largest}, got {head_dim}")
    found: list[Case] = []
    for arch in targets:
        served: dict[tuple[torch.dtype, str, frozenset[str]], int] = {}
        for row in rows_of(arch):
            kind = (row.dtype, row.precision, row.options)
            if (dtype and row.dtype != DTYPES[dtype]) or (precision and row.precision != precision):
                continue
            above = served.get(kind, 0)
            served[kind] = row.max_head
            # as `choose` does: the first row that is large enough
            if head_dim is None or above < head_dim <= row.max_head:
                listed = uses(row, above) if every_use else uses(row, above)[:1]
                found += [attention_case(row, use, arch) for use in listed]
        if head_dim is None and not attention_only:
            found += shipped_gemm_cases(
                arch,
                _GENERATION[family(arch)],
                dtype=DTYPES[dtype] if dtype else None,
                precision=precision,
                every_use=every_use,
            )
    return found


def rows_of(arch: str) -> list[TileConfig]:
    """Rows of the tile table that serve a processor, or else its generation's first processor.

    Raises:
        ValueError: an unknown processor.
    """
    generation = generation_of(arch)
    named = {name for row in ascend.TILES for name in row.targets}
    serving = ascend.SAME_MEMORIES.get(arch, arch)
    serving = serving if serving in named else generation
    return [row for row in ascend.TILES if serving in row.targets]


def generation_of(arch: str) -> str:
    """The first processor of a processor's generation.

    Raises:
        ValueError: an unknown processor.
    """
    return _GENERATION[family(arch)]


def full_name(target: str) -> str:
    """Return a processor's name in full: "910b3" and "Ascend910B3" are both "Ascend910B3".

    Raises:
        ValueError: no such processor; the message lists those there are.
    """
    names = {name.lower(): name for name in known_archs()}
    short = target.lower().removeprefix("ascend")
    if name := names.get(f"ascend{short}"):
        return name
    try:
        family(target)
    except ValueError as error:
        raise ValueError(str(error).replace("arch:", "target:", 1)) from None
    return target


def _problem(row: TileConfig, use: Use) -> AttentionProblem:
    """A call of this kind. Its sizes do not reach the compiler."""
    return AttentionProblem(
        B=2,
        Hq=4,
        Hk=2,
        Sq=300,
        Sk=500,
        D=use.D,
        Dv=use.Dv,
        dtype=row.dtype,
        out_dtype=torch.float32 if use.fp32_out else row.dtype,
        device=torch.device("meta"),
        layout="TND" if use.packed else "BNSD",
        causal=use.causal,
        diagonal=0 if use.packed else 200,
        scale=0.125,
        precision=row.precision,
        with_lse=use.with_lse,
        softcap=30.0 if "softcap" in use.options else None,
        window_left=64 if "window" in use.options else None,
        window_right=8 if "window" in use.options and not use.causal else None,
        has_mask="mask" in use.options,
        has_bias="bias" in use.options,
        has_alibi="alibi" in use.options,
        has_sinks=use.sinks,
        has_kv_lens=use.kv_lens,
        tokens_q=500 if use.packed else 0,
        tokens_k=700 if use.packed else 0,
    )

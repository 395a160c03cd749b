"""Start the kernels for few queries: the keys in chunks, and the merge of their states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from blocks.constants import LOG2E

from .._configs import TileConfig, rows_of_a_tile
from .._problem import AttentionProblem, Extras
from .._target import Target
from .attention_launch import by_columns, reach
from .attention_split import attention_split_kernel
from .launch import Route, launch
from .merge_chunks import merge_chunks_kernel


@dataclass(frozen=True)
class Pages:
    """Where the pages of a cache are.

    Attributes:
        table: [B, pages of a sequence] int32: which page of memory holds each.
        size: keys of a page, a power of two.
    """

    table: torch.Tensor
    size: int


def split_constants(
    problem: AttentionProblem,
    config: TileConfig,
    *,
    one_chunk: bool,
    last_key: bool,
    page: int,
    wide: bool,
    by_columns: tuple[bool, bool] = (False, False),
) -> dict[str, Any]:
    """The constexpr arguments of `attention_split_kernel`, by name.

    Args:
        problem: the facts of the call.
        config: a row for few queries.
        one_chunk: no sequence has more keys than a chunk holds.
        last_key: the last query is aligned with its sequence's own last key.
        page: keys of a page; 0: keys lie in one piece.
        wide: strides need 64 bits.
        by_columns: for k and v, whether it lies column by column.
    """
    compensated = "kahan" if config.segment == 1 else "segment"
    rows, group = rows_of_a_tile(config, problem.group)
    return {
        "D": problem.D,
        "Dv": problem.Dv,
        "BLOCK_D": config.columns(problem.D),
        "BLOCK_DV": config.value_columns(problem.Dv),
        "BLOCK_N": config.block_n,
        "ROWS": rows,
        "GROUP": group,
        "CHUNK": config.chunk,
        "PAGE": page,
        "BOUND_LEFT": problem.window_left is not None,
        "BOUND_RIGHT": problem.reach_right is not None,
        "ALIBI": problem.has_alibi,
        "SOFTCAP": problem.softcap is not None,
        "SINKS": problem.has_sinks,
        "KV_LENS": problem.has_kv_lens,
        "PACKED": problem.packed,
        "LAST_KEY": last_key,
        "ONE_CHUNK": one_chunk,
        "METHOD": "plain" if problem.precision == "standard" else compensated,
        "SPLIT": problem.precision == "high",
        "SEGMENT": config.segment,
        "WITH_LSE": problem.with_lse,
        "NATURAL": config.natural(problem),
        "COMP_DTYPE": tl.bfloat16 if config.comp_dtype == torch.bfloat16 else tl.float32,
        "DOT_PRECISION": config.dot_precision,
        "SPLIT_LOOP": config.split_loop,
        "WIDE": wide,
        "K_BY_COLUMNS": by_columns[0],
        "V_BY_COLUMNS": by_columns[1],
        "CORE_LOOP": config.core_loop,
    }


def merge_constants(
    problem: AttentionProblem, config: TileConfig, *, last_key: bool, wide: bool
) -> dict[str, Any]:
    """The constexpr arguments of `merge_chunks_kernel`, by name; see `split_constants`."""
    rows, group = rows_of_a_tile(config, problem.group)
    cut = 0 < config.merge_columns < problem.Dv
    # whole blocks on a GPU, which loads aligned numbers faster; an NPU has no room for more
    cut = cut and (config.core_loop or problem.Dv % config.merge_columns == 0)
    columns = config.merge_columns if cut else problem.Dv
    return {
        "Dv": problem.Dv,
        "COLS": columns,
        "BLOCK_COLS": columns if cut else config.value_columns(problem.Dv),
        "ROWS": rows,
        "MERGE_ROWS": rows if config.core_loop else 1,
        "GROUP": group,
        "CHUNK": config.chunk,
        "BOUND_LEFT": problem.window_left is not None,
        "BOUND_RIGHT": problem.reach_right is not None,
        "SINKS": problem.has_sinks,
        "KV_LENS": problem.has_kv_lens,
        "PACKED": problem.packed,
        "LAST_KEY": last_key,
        "PLAIN": problem.precision == "standard",
        "WHOLE": problem.precision == "high" or problem.dtype == torch.float32,
        "LOWERED": problem.dtype == torch.float16,
        "WITH_LSE": problem.with_lse,
        "NATURAL": config.natural(problem),
        "WIDE": wide,
        # a GPU loads the next chunks' states ahead
        "STAGES": 1 if config.core_loop else 4,
    }


def launch_attention_split(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    problem: AttentionProblem,
    extras: Extras,
    config: TileConfig,
    target: Target,
    route: Route,
    *,
    last_key: bool,
    few: int = 0,
    pages: Pages | None = None,
) -> None:
    """Write the attention output, and its log-sum-exp unless `lse` is None.

    Args:
        q: [B, Hq, Sq, D], or [Hq, tokens, D] where packed; any strides.
        k: [B, Hk, Sk, D], [Hk, tokens, D] where packed, or [pages, Hk, page, D]; any strides.
        v: likewise, with Dv.
        out: [B, Hq, Sq, Dv], or [Hq, tokens, Dv] where packed; any strides.
        lse: [B, Hq, Sq], or [Hq, tokens] where packed; fp32, contiguous, natural-log units.
        problem: the facts of the call; not empty. `Sk` is the most keys that a sequence has.
        extras: the other tensors; neither mask nor bias.
        config, target, route: what the dispatcher chose.
        last_key: the last query is aligned with its sequence's own last key.
        few: packed sequences of more queries than that are left out.
        pages: where keys lie in pages.
    """
    packed = problem.packed
    longest_q = min(few, problem.Sq, problem.tokens_q) if packed else problem.Sq
    longest_k = min(problem.Sk, problem.tokens_k) if packed else problem.Sk
    rows, group = rows_of_a_tile(config, problem.group)
    head_tiles = triton.cdiv(problem.group, group)
    tiles = head_tiles * triton.cdiv(longest_q, rows)
    chunks = max(1, triton.cdiv(longest_k, config.chunk))
    tasks = problem.B * problem.Hk * tiles * chunks
    slot_rows = min(longest_q, rows) * group
    if q.stride(-1) != 1 and q.shape[-1] > 1:
        # a few rows: a copy costs less than reading them by columns
        q = q.contiguous()
    heads = [x.unsqueeze(0) if packed else x for x in (q, k, v, out)]
    letters = (("q", "bhmd"), ("k", "bhnd"), ("v", "bhnd"), ("o", "bhmd"))
    strides = {
        f"stride_{letter}{dim}": 0 if packed and dim == "b" else stride
        for (letter, dims), tensor in zip(letters, heads, strict=True)
        for dim, stride in zip(dims, tensor.stride(), strict=True)
    }
    strides |= {
        f"stride_{letter}d": 1
        for (letter, _), tensor in zip(letters, heads, strict=True)
        if tensor.shape[-1] == 1
    }
    slopes, sinks = (
        x.float() if x is not None and x.dtype == torch.float64 else x
        for x in (extras.alibi_slopes, extras.sinks)
    )
    kv_lens, cu_q, cu_k = (
        None if x is None else x.contiguous()
        for x in (extras.kv_lens, extras.cu_seqlens_q, extras.cu_seqlens_k)
    )
    lse_rows = lse.unsqueeze(0) if lse is not None and packed else lse
    # a tile spans several heads of queries and outputs, and one head of keys and values
    within = [
        stride for x, dim in zip(heads, (1, 2, 2, 1), strict=True) for stride in x.stride()[dim:]
    ]
    wide = max(map(abs, within)) * 2 * max(config.block_n, 256) >= 2**31
    unit = 1.0 if config.natural_scores(problem) else LOG2E.value
    cap = problem.softcap
    # States go to memory, unless no sequence has a second chunk. On Ascend they always do: with
    # the end of the work in the same kernel bishengir-compile 1.2.0 aborts.
    one_chunk = chunks == 1 and not config.core_loop
    states: list[torch.Tensor | None] = [None, None]
    if not one_chunk:
        slots = problem.B * chunks
        if packed:
            slots = problem.tokens_k // config.chunk + problem.B
        count = slots * problem.Hk * tiles
        states[0] = q.new_empty((count, 5, slot_rows), dtype=torch.float32)
        states[1] = q.new_empty((count, slot_rows, 2, problem.Dv), dtype=torch.float32)
    common = {
        "out_ptr": out, "lse_ptr": lse, "rows_ptr": states[0], "acc_ptr": states[1],
        "sinks_ptr": sinks, "kv_lens_ptr": kv_lens, "cu_q_ptr": cu_q, "cu_k_ptr": cu_k,
        **{name: step for name, step in strides.items() if name.startswith("stride_o")},
        "stride_lse_b": 0 if lse_rows is None or packed else lse_rows.stride(0),
        "stride_lse_h": 0 if lse_rows is None else lse_rows.stride(1),
        "stride_sinks_h": 0 if sinks is None else sinks.stride(0),
        "Hk": problem.Hk, "group": problem.group,
        "Sq": problem.tokens_q if packed else problem.Sq,
        "Sk": problem.tokens_k if packed else problem.Sk,
        "max_q": min(problem.Sq, problem.tokens_q) if packed else problem.Sq, "max_k": longest_k,
        "diagonal": problem.diagonal,
        "window_left": reach(problem.window_left), "window_right": reach(problem.reach_right),
        "few": few, "head_tiles": head_tiles, "tiles": tiles, "chunks": chunks,
        "slot_rows": slot_rows,
    }  # fmt: skip
    options: dict[str, Any] = {
        "route": route, "device": problem.device, "arch": target.arch,
    }  # fmt: skip
    launch(
        attention_split_kernel,
        min(tasks, target.cores) if config.core_loop else tasks,
        {
            "q_ptr": q, "k_ptr": k, "v_ptr": v, "alibi_ptr": slopes,
            "table_ptr": None if pages is None else pages.table,
            "scale": problem.scale * unit if cap is None else problem.scale / cap,
            "cap": 0.0 if cap is None else cap * unit,
            **common, **strides,
            "stride_alibi_b": slopes.stride(0) if slopes is not None and slopes.dim() == 2 else 0,
            "stride_alibi_h": 0 if slopes is None else slopes.stride(-1),
            "stride_table_b": 0 if pages is None else pages.table.stride(0),
            "pages": 0 if pages is None else k.shape[0], "tasks": tasks,
        },
        split_constants(
            problem,
            config,
            one_chunk=one_chunk,
            last_key=last_key,
            page=0 if pages is None else pages.size,
            wide=wide,
            by_columns=(by_columns(k), by_columns(v)),
        ),
        options=config.compiler_options(),
        **options,
    )  # fmt: skip
    if one_chunk:
        return
    constants = merge_constants(problem, config, last_key=last_key, wide=wide)
    parts = (rows // constants["MERGE_ROWS"]) * triton.cdiv(problem.Dv, constants["COLS"])
    tasks = problem.B * problem.Hk * tiles * parts
    launch(
        merge_chunks_kernel,
        min(tasks, target.cores) if config.core_loop else tasks,
        {**common, "tasks": tasks},
        constants,
        # one warp: many small programs, each waiting for memory
        options={**config.compiler_options(), **({} if config.core_loop else {"num_warps": 1})},
        **options,
    )


def split_signature(problem: AttentionProblem) -> dict[str, str]:
    """Triton types of `attention_split_kernel`'s runtime arguments, by name.

    As `launch_attention_split` passes them for tensors whose strides and sizes fit in 32 bits, and
    for slopes and sinks in float32 and lengths in int32.
    """
    return _signature(attention_split_kernel, problem)


def merge_signature(problem: AttentionProblem) -> dict[str, str]:
    """The same of `merge_chunks_kernel`."""
    return _signature(merge_chunks_kernel, problem)


def _signature(kernel: Any, problem: AttentionProblem) -> dict[str, str]:
    dtype = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
    types = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), f"*{dtype[problem.dtype]}")
    floats = ("lse_ptr", "rows_ptr", "acc_ptr", "alibi_ptr", "sinks_ptr")
    types |= dict.fromkeys(floats, "*fp32")
    types |= dict.fromkeys(("kv_lens_ptr", "cu_q_ptr", "cu_k_ptr", "table_ptr"), "*i32")
    types |= {"out_ptr": f"*{dtype[problem.out_dtype]}", "scale": "fp32", "cap": "fp32"}
    constants = {p.name for p in kernel.params if p.is_constexpr}
    return {name: types.get(name, "i32") for name in kernel.arg_names if name not in constants}


def absent_in_split(problem: AttentionProblem, *, one_chunk: bool, paged: bool) -> dict[str, None]:
    """The pointers that a call does not pass: the compiler drops what reads them."""
    passed = {
        "lse_ptr": problem.with_lse,
        "rows_ptr": not one_chunk,
        "acc_ptr": not one_chunk,
        "alibi_ptr": problem.has_alibi,
        "sinks_ptr": problem.has_sinks,
        "kv_lens_ptr": problem.has_kv_lens,
        "cu_q_ptr": problem.packed,
        "cu_k_ptr": problem.packed,
        "table_ptr": paged,
    }
    return {name: None for name, is_passed in passed.items() if not is_passed}

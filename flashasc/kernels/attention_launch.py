"""Start the attention forward kernel: its arguments, and what it is specialised for."""

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
import triton.language as tl

from blocks.constants import LOG2E

from .._configs import TileConfig
from .._problem import AttentionProblem, Extras
from .._target import Target
from .attention_fwd import attention_fwd_kernel
from .attention_peers import attention_peers_kernel
from .descriptors import key_descriptors
from .launch import Route, launch
from .order_launch import heads_together, launch_packed_order, order_of, tiles_of_a_head
from .peer_launch import PeerStores

Spread = Literal["none", "full", "columns", "rows", "one"]
"""Over what a mask or bias is given: every pair of query and key, keys alone, queries alone, ..."""


def kernel_constants(
    problem: AttentionProblem,
    config: TileConfig,
    *,
    mask: Spread,
    bias: Spread,
    wide: bool,
    by_columns: tuple[bool, bool, bool] = (False, False, False),
    state: bool = False,
    descriptors: bool = False,
) -> dict[str, Any]:
    """The kernel's constexpr arguments, by name, for one problem and one row of the tile table.

    Args:
        problem: the facts of the call.
        config: the row.
        mask, bias: over what these are spread out, see `blocks.layout.load_spread`.
        wide: strides need 64 bits.
        by_columns: for q, k and v, whether it lies column by column: its last stride is not 1, the
            one before it is.
        state: the kernel stores the rows' raw state instead of their output.
        descriptors: keys and values are passed by descriptor too.
    """
    compensated = "kahan" if config.segment == 1 else "segment"
    return {
        "D": problem.D,
        "Dv": problem.Dv,
        "BLOCK_D": config.columns(problem.D),
        "BLOCK_DV": config.value_columns(problem.Dv),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BOUND_LEFT": problem.window_left is not None,
        "BOUND_RIGHT": problem.reach_right is not None,
        "MASK": mask,
        "BIAS": bias,
        "ALIBI": problem.has_alibi,
        "SOFTCAP": problem.softcap is not None,
        "SINKS": problem.has_sinks,
        "KV_LENS": problem.has_kv_lens,
        "PACKED": problem.packed,
        "DIAGONALS": problem.has_diagonals,
        "BOTTOM_RIGHT": problem.bottom_right,
        "STATE": state,
        "METHOD": "plain" if problem.precision == "standard" else compensated,
        "SPLIT": problem.precision == "high",
        "SEGMENT": config.segment,
        "WITH_LSE": problem.with_lse,
        "NATURAL": config.natural(problem),
        "COMP_DTYPE": tl.bfloat16 if config.comp_dtype == torch.bfloat16 else tl.float32,
        "DOT_PRECISION": config.dot_precision,
        "SPLIT_LOOP": config.split_loop,
        "WIDE": wide,
        **dict(zip(("Q_BY_COLUMNS", "K_BY_COLUMNS", "V_BY_COLUMNS"), by_columns, strict=True)),
        "PAIRS": config.pairs,
        "DESCRIPTORS": descriptors and ("edges" if config.described_edges else "whole"),
        "SETTLE": config.settle,
        "REPAIR": config.repair,
        "CORE_LOOP": config.core_loop,
        "ORDER": order_of(problem, config),
    }


def kernel_signature(
    problem: AttentionProblem, *, state: bool = False, described: TileConfig | None = None
) -> dict[str, str]:
    """Triton types of the kernel's runtime arguments, by name.

    As `launch_attention_fwd` passes them for tensors whose strides and sizes fit in 32 bits, and
    for a bias, slopes and sinks in float32 and lengths in int32. `described` is the row, where keys
    and values are passed by descriptor.
    """
    dtype = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
    types = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), f"*{dtype[problem.dtype]}")
    types |= dict.fromkeys(("lse_ptr", "bias_ptr", "alibi_ptr", "sinks_ptr"), "*fp32")
    lengths = ("kv_lens_ptr", "cu_q_ptr", "cu_k_ptr", "diagonals_ptr")
    types |= dict.fromkeys((*lengths, "order_ptr"), "*i32")
    out_dtype = torch.float32 if state else problem.out_dtype
    types |= {"out_ptr": f"*{dtype[out_dtype]}", "mask_ptr": "*u8"}
    types |= {"scale": "fp32", "cap": "fp32"}
    if described is not None:
        sizes = (described.columns(problem.D), described.value_columns(problem.Dv))
        types |= {
            name: f"tensordesc<{dtype[problem.dtype]}[1, 1, {described.block_n}, {size}]>"
            for name, size in zip(("k_desc", "v_desc"), sizes, strict=True)
        }
    constants = {p.name for p in attention_fwd_kernel.params if p.is_constexpr}
    return {
        name: types.get(name, "i32")
        for name in attention_fwd_kernel.arg_names
        if name not in constants
    }


def absent_arguments(
    problem: AttentionProblem,
    *,
    state: bool = False,
    described: bool = False,
    ordered: bool = False,
) -> dict[str, None]:
    """The pointers that a call does not pass: the compiler drops what reads them."""
    passed = {
        "order_ptr": ordered,
        "k_desc": described,
        "v_desc": described,
        "lse_ptr": problem.with_lse or state,
        "mask_ptr": problem.has_mask,
        "bias_ptr": problem.has_bias,
        "alibi_ptr": problem.has_alibi,
        "sinks_ptr": problem.has_sinks,
        "diagonals_ptr": problem.has_diagonals,
        "kv_lens_ptr": problem.has_kv_lens,
        "cu_q_ptr": problem.packed,
        "cu_k_ptr": problem.packed,
    }
    return {name: None for name, is_passed in passed.items() if not is_passed}


def launch_attention_fwd(
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
    state: bool = False,
    few: int = 0,
    peers: PeerStores | None = None,
) -> None:
    """Write the attention output, and its log-sum-exp unless `lse` is None.

    Args:
        q: [B, Hq, Sq, D], or [Hq, tokens, D] where packed; any strides.
        k: [B, Hk, Sk, D], or [Hk, tokens, D] where packed; any strides.
        v: [B, Hk, Sk, Dv], or [Hk, tokens, Dv] where packed; any strides.
        out: [B, Hq, Sq, Dv], or [Hq, tokens, Dv] where packed; any strides. Every element is
            written; where packed and `config.core_loop`, those of a sequence, and those of
            sequences that `few` leaves out are not.
        lse: [B, Hq, Sq], or [Hq, tokens] where packed; fp32, contiguous, natural-log units.
        problem: the facts of the call; not empty.
        extras: the other tensors.
        config, target, route: what the dispatcher chose.
        state: write the rows' raw state instead: `out` is its acc and `lse` its rows, as in
            `state_memory`, with S before the last two, or last, dimensions. Sinks do not count.
        few: packed sequences of at most so many queries are left out.
        peers: rows go to the ranks that own them. `out` and `lse` begin where this rank's own
            output does, of all heads, and have strides of 0.
    """
    if state:
        assert lse is not None
        # row m of the state's acc begins where one of `out` would
        out, lse = out[..., 0, :], lse[..., 0, :]
    # a packed sequence is no longer than all of them together, whatever was announced
    longest_q = min(problem.Sq, problem.tokens_q) if problem.packed else problem.Sq
    longest_k = min(problem.Sk, problem.tokens_k) if problem.packed else problem.Sk
    tasks = problem.Hq * tiles_of_a_head(problem, config, longest_q)
    heads = [x.unsqueeze(0) if problem.packed else x for x in (q, k, v, out)]
    letters = (("q", "bhmd"), ("k", "bhnd"), ("v", "bhnd"), ("o", "bhmd"))
    strides = {
        f"stride_{letter}{dim}": 0 if problem.packed and dim == "b" else stride
        for (letter, dims), tensor in zip(letters, heads, strict=True)
        for dim, stride in zip(dims, tensor.stride(), strict=True)
    }
    # a single column may come with any stride; known to be 1, it costs nothing
    strides |= {
        f"stride_{letter}d": 1
        for (letter, _), tensor in zip(letters, heads, strict=True)
        if tensor.shape[-1] == 1
    }
    mask, mask_spread = _spread_out(extras.mask, problem)
    bias, bias_spread = _spread_out(extras.bias, problem)
    for name, tensor in (("mask", mask), ("bias", bias)):
        steps = tensor.stride() if tensor is not None else (0, 0, 0, 0)
        strides |= {f"stride_{name}_{dim}": s for dim, s in zip("bhmn", steps, strict=True)}
    # a number a sequence: a copy costs less than a stride
    lengths = [
        None if x is None else x.contiguous()
        for x in (extras.kv_lens, extras.cu_seqlens_q, extras.cu_seqlens_k, extras.diagonals)
    ]
    order = None
    if order_of(problem, config) == "longest":
        order = launch_packed_order(
            None if state else out, None if state else lse, lengths[1:3], problem, config,
            target, route, longest_q=longest_q, longest_k=longest_k, few=few,
        )  # fmt: skip
    slopes, sinks = (
        x.float() if x is not None and x.dtype == torch.float64 else x
        for x in (extras.alibi_slopes, extras.sinks)
    )
    rows = lse.unsqueeze(0) if lse is not None and problem.packed else lse
    strides |= {
        "stride_lse_b": 0 if rows is None or problem.packed else rows.stride(0),
        "stride_lse_h": 0 if rows is None else rows.stride(1),
        "stride_alibi_b": slopes.stride(0) if slopes is not None and slopes.dim() == 2 else 0,
        "stride_alibi_h": 0 if slopes is None else slopes.stride(-1),
        "stride_sinks_h": 0 if sinks is None else sinks.stride(0),
    }
    within = [stride for x in (*heads, mask, bias) if x is not None for stride in x.stride()[2:]]
    wide = max(map(abs, within)) * 2 * max(config.block_m, config.block_n, 256) >= 2**31
    unit = 1.0 if config.natural_scores(problem) else LOG2E.value
    cap = problem.softcap
    described = key_descriptors(k, v, problem, config, route)
    args = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "out_ptr": out, "lse_ptr": lse,
        "mask_ptr": None if mask is None else mask.view(torch.uint8), "bias_ptr": bias,
        "alibi_ptr": slopes, "sinks_ptr": sinks, "kv_lens_ptr": lengths[0],
        "cu_q_ptr": lengths[1], "cu_k_ptr": lengths[2], "diagonals_ptr": lengths[3],
        "order_ptr": order,
        "k_desc": None if described is None else described[0],
        "v_desc": None if described is None else described[1],
        # with a cap scores are first its shares
        "scale": problem.scale * unit if cap is None else problem.scale / cap,
        "cap": 0.0 if cap is None else cap * unit,
        **strides,
        "Hq": problem.Hq, "group": problem.group,
        "Sq": problem.tokens_q if problem.packed else problem.Sq,
        "Sk": problem.tokens_k if problem.packed else problem.Sk,
        "max_q": longest_q, "max_k": longest_k, "diagonal": problem.diagonal,
        "window_left": reach(problem.window_left), "window_right": reach(problem.reach_right),
        "few": few, "tiles_m": triton.cdiv(longest_q, config.block_m), "tasks": tasks,
        "sequences": problem.B, "together": heads_together(problem, config),
    }  # fmt: skip
    launch(
        attention_fwd_kernel if peers is None else attention_peers_kernel,
        min(tasks, target.cores) if config.core_loop else tasks,
        args if peers is None else {**args, **peers.arguments()},
        kernel_constants(
            problem,
            config,
            mask=mask_spread,
            bias=bias_spread,
            wide=wide,
            by_columns=(by_columns(q), by_columns(k), by_columns(v)),
            state=state,
            descriptors=described is not None,
        )
        | ({} if peers is None else peers.constants()),
        route=route,
        device=problem.device,
        arch=target.arch,
        options=config.compiler_options(),
    )


def _spread_out(
    tensor: torch.Tensor | None, problem: AttentionProblem
) -> tuple[torch.Tensor | None, Spread]:
    """A mask or bias as [B, Hq, Sq, Sk], broadcast without a copy, and what it is spread over."""
    if tensor is None:
        return None, "none"
    over_rows = tensor.dim() < 2 or tensor.shape[-2] == 1
    over_columns = tensor.dim() < 1 or tensor.shape[-1] == 1
    spread: dict[tuple[bool, bool], Spread] = {
        (False, False): "full",
        (True, False): "columns",
        (False, True): "rows",
        (True, True): "one",
    }
    if tensor.dtype == torch.float64:
        # no target's kernels read it; what is finite stays so
        largest = torch.finfo(torch.float32).max
        tensor = torch.where(tensor.isfinite(), tensor.clamp(-largest, largest), tensor).float()
    shape = (problem.B, problem.Hq, problem.Sq, problem.Sk)
    return tensor.expand(shape), spread[over_rows, over_columns]


def by_columns(tensor: torch.Tensor) -> bool:
    """Whether a tensor's columns lie in one piece each, and its rows do not."""
    return tensor.stride(-2) == 1 and tensor.stride(-1) != 1 and tensor.shape[-1] > 1


def reach(keys: int | None) -> int:
    """A window's reach as an int32 that can be added to a diagonal; 0 where there is no bound."""
    return 0 if keys is None else min(keys, 2**30)

"""Every block inside a kernel, as (kernel, signature, constants) to compile without running."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import triton.language as tl

# the wrapper kernels of the blocks' own tests; under pytest only their folder's tests see it
sys.path.insert(0, str(Path(__file__).parent / "blocks"))

import compensated_kernels
import gemm_kernels
import layout_kernels
import owner_kernels
import reduce_kernels
import scores_kernels
import softmax_kernels

BlockCase = tuple[Any, dict[str, str], dict[str, object]]


def _case(kernel: Any, constants: dict[str, object], **types: str) -> BlockCase:
    """Pointers are *fp32 and scalars i32 unless `types` says otherwise."""
    runtime = [name for name in kernel.arg_names if name not in constants]
    default = {name: "*fp32" if name.endswith("_ptr") else "i32" for name in runtime}
    return kernel, default | types, constants


_STATE: dict[str, object] = {"M": 32, "Dv": 64, "COMP_DTYPE": tl.bfloat16}
_TILE: dict[str, object] = {"COLS": 40, "BLOCK_ROWS": 32, "BLOCK_COLS": 64, "WIDE": True}

BLOCK_CASES: dict[str, BlockCase] = {
    "pairs": _case(compensated_kernels.pairs_kernel, {"N": 256}),
    "kahan_chain": _case(compensated_kernels.chain_kernel, {"M": 64}),
    "merge_chain": _case(compensated_kernels.merge_chain_kernel, {"M": 64}),
    "row_sum": _case(compensated_kernels.row_sum_kernel, {"M": 16, "N": 256}),
    "power_of_two": _case(compensated_kernels.power_of_two_kernel, {"N": 256}),
    "raise_pivot": _case(softmax_kernels.pivot_kernel, {"M": 64}),
    "add_weights": _case(softmax_kernels.weights_kernel, {"M": 32, "N": 64}),
    "online_init": _case(softmax_kernels.init_kernel, _STATE),
    "online_merge": _case(
        softmax_kernels.merge_kernel, {**_STATE, "WHOLE": True, "NATURAL": False}
    ),
    "online_finalize": _case(
        softmax_kernels.finalize_kernel,
        {"M": 32, "Dv": 64, "SEPARATE_LSE": True, "LOWERED": True, "NATURAL": False},
    ),
    "fold_segment": _case(
        softmax_kernels.fold_kernel, {"M": 32, "Dv": 64, "WHOLE": True, "NATURAL": False}
    ),
    "exponential": _case(softmax_kernels.exponential_kernel, {"N": 256}),
    "rounded_away": _case(gemm_kernels.rounded_away_kernel, {"N": 256}),
    "load_tile": _case(
        layout_kernels.load_kernel, {**_TILE, "CHECK_ROWS": True, "BY_COLUMNS": False}
    ),
    "store_tile": _case(layout_kernels.store_kernel, _TILE),
    "store_block": _case(
        layout_kernels.block_kernel, {"BLOCK_ROWS": 32, "BLOCK_COLS": 64, "WIDE": True}
    ),
    "store_rows": _case(layout_kernels.rows_kernel, {"N": 64}),
    "load_rows": _case(layout_kernels.copied_rows_kernel, {"N": 64}),
    "load_paged_tile": _case(
        layout_kernels.paged_kernel, {"ROWS": 32, "COLS": 64, "PAGE": 64}, table_ptr="*i32"
    ),
    "load_grouped": _case(layout_kernels.grouped_kernel, {"ROWS": 8, "GROUP": 4, "COLS": 64}),
    "masking": _case(layout_kernels.predicates_kernel, {"M": 32, "N": 64}),
    "key_range": _case(
        layout_kernels.ranges_kernel,
        {"BOUND_LEFT": True, "BOUND_RIGHT": True},
        cases_ptr="*i32",
        out_ptr="*i32",
    ),
    "sequence": _case(layout_kernels.sequence_kernel, {}, cu_ptr="*i64", out_ptr="*i32"),
    "soft_cap": _case(scores_kernels.cap_kernel, {"N": 256}, cap="fp32"),
    "distance": _case(scores_kernels.distance_kernel, {"M": 32, "N": 64}),
    "log2_units": _case(scores_kernels.log2_kernel, {"N": 256}),
    "natural_base": _case(scores_kernels.base_kernel, {"N": 256}),
    "add_sink": _case(
        scores_kernels.sink_kernel, {**_STATE, "WHOLE": True, "LOWERED": True, "NATURAL": False}
    ),
}
BLOCK_CASES |= {
    "sum2_add": _case(reduce_kernels.sum2_kernel, {"N": 256}),
    "row_sum2": _case(reduce_kernels.row_sum2_kernel, {"M": 16, "N": 256}),
    "extract": _case(reduce_kernels.extract_kernel, {"M": 16, "N": 256}),
    "accumulate": _case(reduce_kernels.lanes_kernel, {"M": 8, "N": 256, "METHOD": "sum2"}),
    "tile_reductions": _case(
        reduce_kernels.tile_kernel, {"M": 8, "N": 64, "METHOD": "kahan"}, count="fp32", eps="fp32"
    ),
    "scale_of": _case(reduce_kernels.scales_kernel, {"N": 256}),
    "corrected_spread": _case(reduce_kernels.spread_kernel, {"N": 256}, count="fp32"),
}
for _spread in ("full", "columns", "rows", "one"):
    BLOCK_CASES[f"load_spread-{_spread}"] = _case(
        layout_kernels.spread_kernel,
        {"SPREAD": _spread, "ROWS": 32, "COLS": 64, "WIDE": False, "stride_col": 1},
    )
for _method, _split, _units in (
    ("kahan", False, "log2"),
    ("segment", False, "natural"),
    ("kahan", True, "log2"),
    ("segment", True, "log2"),
    ("kahan", True, "natural-scores"),
):
    BLOCK_CASES[f"online_update-{_method}-{'split-' * _split}{_units}"] = _case(
        softmax_kernels.update_kernel,
        {
            **_STATE,
            "N": 64,
            "METHOD": _method,
            "SPLIT": _split,
            "NATURAL": _units == "natural",
            "COMP_DTYPE": tl.float32 if _method == "segment" else tl.bfloat16,
            "NATURAL_SCORES": _units == "natural-scores",
        },
        values_ptr="*fp16",
    )
for _method, _dtype in (("plain", "fp16"), ("kahan", "bf16"), ("kahan", "fp32")):
    BLOCK_CASES[f"accumulate_product-{_method}-{_dtype}"] = _case(
        gemm_kernels.sums_kernel,
        {"M": 32, "K": 64, "N": 64, "METHOD": _method, "COMP_DTYPE": tl.float32},
        a_ptr=f"*{_dtype}",
        b_ptr=f"*{_dtype}",
    )
for _branch in (False, True):
    BLOCK_CASES[f"gemm_tile-{'branch' if _branch else 'nested'}"] = _case(
        gemm_kernels.tile_kernel,
        {
            **dict.fromkeys(("BLOCK_M", "BLOCK_N", "BLOCK_K"), 32),
            "METHOD": "kahan",
            "SEGMENT": 4,
            "BRANCH": _branch,
            "PRODUCT": "ieee",
            "WIDE": True,
            "A_BY_COLUMNS": False,
            "B_BY_COLUMNS": True,
            "GROUP": 4,
        },
    )
BLOCK_CASES["grouped_order"] = _case(gemm_kernels.order_kernel, {"GROUP": 4}, out_ptr="*i32")
BLOCK_CASES["owner_of"] = _case(
    owner_kernels.owner_kernel,
    {"LEVELS": 2},
    **dict.fromkeys(("pieces_ptr", "rows_ptr", "out_ptr"), "*i32"),
)
BLOCK_CASES["split"] = _case(gemm_kernels.split_kernel, {"N": 256, "DTYPE": tl.float16})
BLOCK_CASES["activations"] = _case(gemm_kernels.activations_kernel, {"N": 256})
for _product in ("bf16x3", "fp16x6"):
    BLOCK_CASES[f"split_dot_add-{_product}"] = _case(
        gemm_kernels.split_product_kernel, {"M": 32, "K": 32, "N": 32, "PRODUCT": _product}
    )


def product_case(precision: str) -> BlockCase:
    """`blocks.gemm.dot` and `dot_add` of fp32 tiles at one precision."""
    return _case(
        gemm_kernels.products_kernel, {"M": 32, "K": 64, "N": 64, "DOT_PRECISION": precision}
    )


def round_pairs_case(dtype: tl.dtype) -> BlockCase:
    """`blocks.gemm.round_pairs`, which is for NVIDIA GPUs alone."""
    return _case(gemm_kernels.round_pairs_kernel, {"N": 256, "DTYPE": dtype})

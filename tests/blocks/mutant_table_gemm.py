"""Mutants of matrix products in `blocks`; see `mutant_table`."""

from __future__ import annotations

_LOW_GUARD = "low = tl.where(tl.abs(low) < INF, low, 0.0)"

GEMM_MUTANTS: dict[str, tuple[str, str, str]] = {
    "gemm_tile: no compensation between segments": (
        "gemm.py",
        "acc, comp = kahan_add(acc, comp, part)",
        "acc, comp = kahan_add(acc, comp * 0.0, part)",
    ),
    "gemm_tile: segments summed plainly": (
        "gemm.py",
        "acc, comp = kahan_add(acc, comp, part)",
        "acc = acc + part",
    ),
    "gemm_tile: a segment of one tile": (
        "gemm.py",
        "segment + SEGMENT * BLOCK_K, stop), segment + 1)",
        "segment + BLOCK_K, stop), segment + 1)",
    ),
    "gemm_tile: a branch that drops what it rounds away": (
        "gemm.py",
        "acc, part = fold(acc, part)",
        "acc, part = acc + part, part * 0.0",
    ),
    "gemm_tile: a branch never taken": (
        "gemm.py",
        "% SEGMENT == SEGMENT - 1",
        "% SEGMENT == SEGMENT",
    ),
    "gemm_tile: the last segment without its error": (
        "gemm.py",
        "acc, comp = fold(acc, part)",
        "acc = acc + part",
    ),
    "gemm_tile: a part of K that runs on": (
        "gemm.py",
        "a_ptr, start_m, M, k, end_k, stride_am",
        "a_ptr, start_m, M, k, k + BLOCK_K, stride_am",
    ),
    "grouped_order: the last group as tall as the others": (
        "gemm.py",
        "rows = tl.minimum(tiles_m - first_m, GROUP)",
        "rows = GROUP",
    ),
    "grouped_order: row by row": (
        "gemm.py",
        "return first_m + within % rows, within // rows",
        "return first_m + within // tiles_n, within % tiles_n",
    ),
    "split: no scale": (
        "splits.py",
        "rest = (x - first.to(tl.float32)) * SCALE",
        "rest = x - first.to(tl.float32)",
    ),
    "split: no third part": (
        "splits.py",
        "third = ((rest - second.to(tl.float32)) * SCALE).to(DTYPE)",
        "third = (rest - rest).to(DTYPE)",
    ),
    "split_left: another first part": (
        "splits.py",
        "first_again = (x - rest).to(DTYPE)",
        "first_again = (x + rest).to(DTYPE)",
    ),
    "split_left: another second part": (
        "splits.py",
        "second_again = ((rest - last) * SCALE).to(DTYPE)",
        "second_again = (rest - last).to(DTYPE)",
    ),
    "split_dot_add: a product twice": (
        "splits.py",
        "low = tl.dot(a2, b1, acc=low)",
        "low = tl.dot(a1_again, b2, acc=low)",
    ),
    "split_dot_add: the least products not scaled": (
        "splits.py",
        "low += least * DOWN",
        "low += least",
    ),
    "split_dot_add: low products not scaled": ("splits.py", "low = low * DOWN", "low = low * 1.0"),
    "split_dot_add: no finite guard": ("splits.py", _LOW_GUARD, "low = low * 1.0"),
    "split_dot_add: start left out": ("splits.py", "acc=start + low)", "acc=low)"),
    "relu: a maximum": (
        "activations.py",
        "tl.where(x < 0.0, 0.0, x)",
        "tl.where(x > 0.0, x, 0.0)",
    ),
    "silu: sign": ("activations.py", "tl.exp(-x)", "tl.exp(x)"),
    "gelu: not scaled": ("activations.py", "tl.erf(x * 0.7071067811865476)", "tl.erf(x)"),
    "gelu_tanh: a square": ("activations.py", "0.044715 * x * x * x", "0.044715 * x * x"),
    "load_block: columns not checked": (
        "layout.py",
        "mask = (rows < row_end - row_start) & (cols < col_end - col_start)",
        "mask = (rows < row_end - row_start) & (cols >= 0)",
    ),
}

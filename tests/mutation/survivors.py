"""Mutants that no test can catch, and why: they change nothing, or nothing that is promised."""

from __future__ import annotations

from tests.mutation.mutants import Mutant

_PRODUCT = "a product of two integers in 64 bits, whichever of them is made that wide"
_COLUMNS = "which way a factor is read from memory changes no number: it is for Ascend's transfers"
_SYMMETRIC = "fold(acc, x + comp) adds them up first: their order does not matter"

# (file, function): part of the changed line -> why
_REASONS: dict[tuple[str, str], dict[str, str]] = {
    ("accurate.py", "row_sum2"): {
        "sum2_add(total, tl.sum(high, axis=1), error)": "both are added: what is rounded otherwise "
        "is u**2 of the magnitudes, which the bound allows",
    },
    ("gemm.py", "gemm_tile"): {
        "A_BY_COLUMNS: tl.constexpr = True": _COLUMNS,
        "WIDE, B_BY_COLUMNS, A_BY_COLUMNS": _COLUMNS,
        'if METHOD == "kahan":': "BRANCH chooses between two loops with one bound of the error",
    },
    ("layout.py", "load_tile"): {
        "advance(ptr, stride_row, row_start)": _PRODUCT,
        "if COLS < BLOCK_COLS:": "rows are masked also where they are promised to be there",
    },
    ("layout.py", "load_spread"): {"stride_col, col_start)": _PRODUCT},
    ("layout.py", "store_tile"): {"advance(ptr, stride_row, row_start)": _PRODUCT},
    ("gathered.py", "load_paged_tile"): {
        "if BLOCK_ROWS < PAGE:": "a tile of one page comes row by row too, only slower",
        "mask=rows <= row_end, other=0": "reads the page number of one row more, which is masked "
        "off; past a table that ends there it is a read that no route here notices",
    },
    ("softmax.py", "add_sink"): {"kahan_add(row_sum * rescale, weight,": _SYMMETRIC},
    ("softmax.py", "online_update"): {
        "pivot.shape[ -1]": "a pivot has one dimension: its first is its last",
    },
    ("splits.py", "split_left"): {
        "first_once_more = (x - (rounded))": "what is left out is less than half an ulp of the "
        "first part, and the rounding to it undoes that",
    },
}  # fmt: skip


def reason(mutant: Mutant) -> str:
    """Why a mutant may survive; "" where that is not known."""
    known = _REASONS.get((mutant.file, mutant.function), {})
    return next((why for part, why in known.items() if part in mutant.new), "")

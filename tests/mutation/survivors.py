"""Mutants that no test can catch, and why: they change nothing, or nothing that is promised."""

from __future__ import annotations

from tests.mutation.mutants import Mutant

_PRODUCT = "a product of two integers in 64 bits, whichever of them is made that wide"
_COLUMNS = "which way a factor is read from memory changes no number: it is for Ascend's transfers"
_SYMMETRIC = "fold(acc, x + comp) adds them up first: their order does not matter"
_SECOND_ORDER = (
    "both are added: what is rounded otherwise is u**2 of the magnitudes, which the bound allows"
)
_FOLDED = "a pair that is folded again is the same pair"
_ONE_MORE = (
    "what is extracted once more is 0, or adds up exactly too; it costs operations, and "
    "test_block_costs.py counts them"
)
_ONE_PART = "beside the first part it is less than half an ulp, and the rounding to that undoes it"

# (file, function): part of the changed line -> why
_REASONS: dict[tuple[str, str], dict[str, str]] = {
    ("accurate.py", ""): {"EXTRACTIONS = tl.constexpr( 4)": _ONE_MORE},
    ("accurate.py", "row_sum2"): {
        "sum2_add(total, tl.sum(high, axis=1), error)": _SECOND_ORDER,
        "sum2_add(total, carried, error)": _SECOND_ORDER,
        "static_range(EXTRACTIONS + 1)": _ONE_MORE,
    },
    ("activations.py", "relu"): {"tl.where(x <= 0.0, 0.0, x)": "the sign of a 0 is not promised"},
    ("compensated.py", "merge"): {
        "two_sum(acc_b, acc_a)": "the sum and its error are exact, whichever comes first",
    },
    ("constants.py", ""): {
        "FP16_PIVOT_DROP_END = tl.constexpr(2.0** 25)": "below 2**25 numbers are 2 apart: 14 is "
        "taken off exactly, in natural units 10 for 9.7, and no weight exceeds e**10 < 65504",
    },
    ("gemm.py", "round_pairs"): {
        "": "an instruction of NVIDIA GPUs, which the interpreter does not have: tests/upstream "
        "read its PTX, and a test with -m gpu compares its bits",
    },
    ("gemm.py", "gemm_tile"): {
        "A_BY_COLUMNS: tl.constexpr = True": _COLUMNS,
        "B_BY_COLUMNS: tl.constexpr = True": _COLUMNS,
        "WIDE, B_BY_COLUMNS, A_BY_COLUMNS": _COLUMNS,
        "CHECK_M: tl.constexpr = False": "rows beyond M are read then, which no route here "
        "notices, and stored nowhere",
        "stop = tl.maximum(end_k, 1)": "a part has an element at least: the maximum is for the "
        "eyes of a compiler",
        "stop), segment + 2)": "the loop goes by BLOCK_K, and ends after the same tile",
        "if ends & (k + BLOCK_K <= stop):": _FOLDED,
        "if ends:": _FOLDED,
        'if METHOD == "kahan":': "BRANCH chooses between two loops with one bound of the error",
    },
    ("layout.py", "load_tile"): {
        "advance(ptr, stride_row, row_start)": _PRODUCT,
        "if COLS < BLOCK_COLS:": "rows are masked also where they are promised to be there",
        "elif COLS <= BLOCK_COLS:": "a mask of every column, only slower",
    },
    ("layout.py", "load_described"): {
        "": "a tensor descriptor, which NVIDIA GPUs have: tests with -m gpu compare the bits of "
        "attention with and without",
    },
    ("layout.py", "load_block"): {
        "advance(ptr, stride_row, row_start)": _PRODUCT,
        "stride_col, col_start)": _PRODUCT,
    },
    ("layout.py", "load_rows"): {"advance(ptr, stride, row_start)": _PRODUCT},
    ("layout.py", "load_spread"): {
        "stride_col, col_start)": _PRODUCT,
        "tile_offsets(stride_row, 1, BLOCK_ROWS, 1, WIDE)": "one column has no next",
    },
    ("layout.py", "store_tile"): {"advance(ptr, stride_row, row_start)": _PRODUCT},
    ("gathered.py", "store_grouped"): {"advance(ptr, stride_row, row_start)": _PRODUCT},
    ("gathered.py", "load_paged_tile"): {
        "if BLOCK_ROWS < PAGE:": "a tile of one page comes row by row too, only slower",
        "mask=rows <= row_end, other=0": "reads the page number of one row more, which is masked "
        "off; past a table that ends there it is a read that no route here notices",
    },
    ("scores.py", "tanh"): {"size >= 0.625": "at 0.625 itself either formula is within the bound"},
    ("softmax.py", "add_weights"): {"kahan_add(total * rescale, tile_sum,": _SYMMETRIC},
    ("softmax.py", "online_finalize"): {
        "tl.where(empty, 2.0, divisor)": "what an empty row is divided by is thrown away",
    },
    ("softmax.py", "add_sink"): {"kahan_add(row_sum * rescale, weight,": _SYMMETRIC},
    ("softmax.py", "online_update"): {
        "pivot.shape[ -1]": "a pivot has one dimension: its first is its last",
    },
    ("splits.py", "split_dot_add"): {
        "tl.where(tl.abs(low) < INF, low, -1.0)": "it is not finite only where a first part is "
        "not, and then neither is the product",
    },
    ("splits.py", "split_left"): {
        "first_once_more = (x - (rounded))": _ONE_PART,
        "first_once_more = (x - (rounded - last))": _ONE_PART,
    },
}  # fmt: skip


def reason(mutant: Mutant) -> str:
    """Why a mutant may survive; "" where that is not known."""
    known = _REASONS.get((mutant.file, mutant.function), {})
    return next((why for part, why in known.items() if part in mutant.new), "")

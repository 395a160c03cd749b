"""Runs the tests of the blocks against mutants of the blocks, in Triton's interpreter.

`main(folder)`, in a process of its own under TRITON_INTERPRET=1, writes each mutant of the package
into the folder, runs the TESTS of the changed file on it, and prints one JSON object: name of the
mutant -> "test: first line of its complaint", or "" when every test passed.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from block_device import Device
from mutant_table import MUTANTS

Arguments = tuple[object, ...]

HERE = Path(__file__).resolve().parent
BLOCKS = HERE.parent.parent / "blocks"

UNCHANGED = "unchanged"


COMPENSATED: dict[str, Sequence[Arguments]] = {
    "test_two_sum_is_exact": [()],
    "test_fast_two_sum_is_exact_where_the_first_is_larger": [()],
    "test_fold_and_kahan_add_lose_no_more_than_a_rounding": [()],
    "test_merge_loses_a_rounding_of_the_compensations": [()],
    "test_merge_is_symmetric_bit_for_bit": [()],
    "test_compensation_never_makes_a_nan": [()],
    "test_merge_at_the_end_of_the_range": [()],
    "test_power_of_two_is_exact_over_the_whole_range": [()],
    "test_row_sum_falls_back_to_the_plain_sum": [()],
    "test_row_sum": [(64,)],
}
ACCURATE: dict[str, Sequence[Arguments]] = {
    "test_an_addition_loses_twice_u_squared": [()],
    "test_infinities_and_the_end_of_the_range_leave_no_error": [()],
    "test_row_sum2": [(1024,)],
    "test_row_sum2_falls_back_to_the_plain_sum": [()],
}
REDUCE: dict[str, Sequence[Arguments]] = {
    "test_sum2_is_right_to_the_last_digit": [()],
    "test_a_compensated_sum_of_lanes_keeps_kahans_bound": [()],
    "test_scales_and_pivots": [()],
    "test_a_corrected_spread": [()],
    "test_reductions_within_a_tile": [("kahan",)],
    "test_what_is_not_finite_within_a_tile": [()],
    "test_a_norm_overflows_only_where_it_must": [()],
}
GEMM: dict[str, Sequence[Arguments]] = {
    "test_rounded_away": [()],
    "test_a_sum_starts_from_its_compensation": [()],
    "test_a_plain_sum_leaves_the_compensation_alone": [()],
    "test_a_compensated_error_does_not_grow": [(0,)],
}
TILES: dict[str, Sequence[Arguments]] = {
    "test_parts_of_k_are_those_asked_for": [()],
    "test_strides_change_no_bit": [(True, False), (False, True)],
    "test_no_unit_is_lost_beside_a_large_number": [()],
    "test_grouped_order_visits_each_tile_once": [(5, 3), (4, 6)],
}
SPLITS: dict[str, Sequence[Arguments]] = {
    "test_split": [(torch.bfloat16,), (torch.float16,)],
    "test_more_parts_keep_more_digits": [()],
    "test_split_products": [("bf16x6",), ("fp16x6",)],
    "test_infinite_factors": [()],
    "test_activations": [()],
}
STEPS: dict[str, Sequence[Arguments]] = {
    "test_exponential": [()],
    "test_raise_pivot": [()],
    "test_add_weights": [()],
    "test_one_update": [
        *(("kahan", dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)),
        ("plain", torch.float32),
    ],
    "test_16_bit_weights_are_summed_as_rounded": [()],
    "test_merge_of_two_states": [(True, False), (False, True)],
    "test_finalize": [
        (True, False, False),
        (False, False, False),
        (False, False, True),
        (True, True, False),
    ],
}
UPDATES: dict[str, Sequence[Arguments]] = {
    "test_fold_segment": [("whole",), ("natural",)],
    "test_an_update_within_a_segment": [(torch.bfloat16,)],
    "test_split_weights_keep_their_digits": [("kahan", torch.bfloat16), ("segment", torch.float16)],
    "test_an_update_in_natural_units": [(torch.float16,)],
}
ONLINE: dict[str, Sequence[Arguments]] = {
    "test_hostile_rows": [(0,), (1,)],
    "test_the_error_does_not_grow_with_the_keys": [(0, 1.0)],
    "test_natural_scores_of_any_size_lose_nothing": [(torch.float32,)],
}
SCORES: dict[str, Sequence[Arguments]] = {
    "test_log2_units": [()],
    "test_differences_of_natural_scores_to_log2_pivots_are_exact": [()],
    "test_what_natural_scores_are_subtracted_from": [()],
    "test_a_sink_counts_in_the_sums_alone": [(40000.7, True, True, False)],
}
TESTS = {
    "compensated.py": {"test_block_compensated": COMPENSATED},
    "gemm.py": {"test_block_gemm": GEMM, "test_block_gemm_tile": TILES},
    "splits.py": {"test_block_splits": SPLITS},
    "activations.py": {"test_block_splits": SPLITS},
    "layout.py": {"test_block_gemm_tile": TILES},
    "accurate.py": {"test_block_accurate": ACCURATE},
    "reduce.py": {"test_block_reduce": REDUCE},
    "softmax.py": {
        "test_block_softmax": STEPS,
        "test_block_update_variants": UPDATES,
        "test_block_online_softmax": ONLINE,
        "test_block_scores": SCORES,
    },
    "scores.py": {"test_block_scores": SCORES},
}
"""Changed file -> tests that look at it, by module: arguments after the device, a call each."""


def fresh(folder: Path) -> None:
    """Forget the blocks, and what was made of them, and import from `folder` from now on."""
    names = {path.stem for path in HERE.glob("*.py")} | {"blocks"}
    for name in list(sys.modules):
        if name.partition(".")[0] in names and name not in (__name__, "block_device"):
            del sys.modules[name]
    sys.path[0] = str(folder)
    importlib.invalidate_caches()


def first_failure(device: object, modules: Mapping[str, Mapping[str, Sequence[Arguments]]]) -> str:
    for module, tests in modules.items():
        found = importlib.import_module(module)
        for name, calls in tests.items():
            for arguments in calls:
                try:
                    getattr(found, name)(device, *arguments)
                except AssertionError as error:
                    line = str(error).strip().partition("\n")[0]
                    return f"{name}: {line or 'an assertion failed'}"
    return ""


def write(folder: Path, name: str) -> None:
    shutil.copytree(BLOCKS, folder / "blocks", ignore=shutil.ignore_patterns("__pycache__"))
    if name == UNCHANGED:
        return
    file, old, new = MUTANTS[name]
    path = folder / "blocks" / file
    source = path.read_text()
    if source.count(old) != 1:
        raise ValueError(f"{name}: expected this once in {file}, found {source.count(old)}: {old}")
    path.write_text(source.replace(old, new))


def main(folder: Path) -> None:
    # where `fresh` puts the mutant's folder
    sys.path.insert(0, "")
    results = {}
    for number, name in enumerate([UNCHANGED, *MUTANTS]):
        home = folder / str(number)
        write(home, name)
        fresh(home)
        everything = {module: calls for tests in TESTS.values() for module, calls in tests.items()}
        seen_by = everything if name == UNCHANGED else TESTS[MUTANTS[name][0]]
        results[name] = first_failure(Device("interpreter"), seen_by)
        origin = importlib.import_module("blocks").__file__
        if origin is None or not Path(origin).is_relative_to(home):
            raise RuntimeError(f"{name}: tested {origin} instead of the mutant in {home}")
    print(json.dumps(results))

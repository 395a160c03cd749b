"""Mutants of the compensated arithmetic in `blocks`, and which tests see them.

`python block_mutants.py FOLDER` under TRITON_INTERPRET=1 writes each mutant of the package into
FOLDER, runs TESTS against it in the interpreter, and prints one JSON object: name of the mutant ->
"test: first line of its complaint", or "" when every test passed.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
BLOCKS = HERE.parent.parent / "blocks"

# name: (file, text that occurs once in it, what becomes of that text)
MUTANTS: dict[str, tuple[str, str, str]] = {
    "two_sum: no error of a": (
        "compensated.py",
        "error = (a - (total - b_rounded)) + (b - b_rounded)",
        "error = b - b_rounded",
    ),
    "two_sum: no error of b": (
        "compensated.py",
        "error = (a - (total - b_rounded)) + (b - b_rounded)",
        "error = a - (total - b_rounded)",
    ),
    "two_sum: sign of the error of b": (
        "compensated.py",
        "b_rounded)) + (b - b_rounded)",
        "b_rounded)) - (b - b_rounded)",
    ),
    "two_sum: operands swapped in one place": (
        "compensated.py",
        "b_rounded = total - a\n",
        "b_rounded = total - b\n",
    ),
    "fast_two_sum: sign": ("compensated.py", "error = b - (total - a)", "error = (total - a) - b"),
    "fast_two_sum: operands swapped": (
        "compensated.py",
        "error = b - (total - a)",
        "error = a - (total - b)",
    ),
    "fast_two_sum: no error": (
        "compensated.py",
        "error = b - (total - a)",
        "error = total - total",
    ),
    "fold: no finite guard": (
        "compensated.py",
        "comp = tl.where(tl.abs(total) < INF, error, 0.0)",
        "comp = error",
    ),
    "fold: guards the wrong number": (
        "compensated.py",
        "comp = tl.where(tl.abs(total) < INF, error, 0.0)",
        "comp = tl.where(tl.abs(acc) < INF, error, 0.0)",
    ),
    "fold: operands swapped": (
        "compensated.py",
        "fast_two_sum(acc, addend)",
        "fast_two_sum(addend, acc)",
    ),
    "kahan_add: no compensation": ("compensated.py", "fold(acc, x + comp)", "fold(acc, x)"),
    "kahan_add: sign of the compensation": (
        "compensated.py",
        "fold(acc, x + comp)",
        "fold(acc, x - comp)",
    ),
    "merge: no compensations": (
        "compensated.py",
        "error + (comp_a + comp_b)",
        "error",
    ),
    "merge: no error": ("compensated.py", "error + (comp_a + comp_b)", "comp_a + comp_b"),
    "merge: sign of a compensation": (
        "compensated.py",
        "error + (comp_a + comp_b)",
        "error + (comp_a - comp_b)",
    ),
    "merge: compensations in an order": (
        "compensated.py",
        "error + (comp_a + comp_b)",
        "(error + comp_a) + comp_b",
    ),
    "merge: sum of unordered numbers": (
        "compensated.py",
        "total, error = two_sum(acc_a, acc_b)",
        "total, error = fast_two_sum(acc_a, acc_b)",
    ),
    "merge: no finite guard of the sum": (
        "compensated.py",
        "return tl.where(finite, acc, total), ",
        "return acc, ",
    ),
    "merge: no finite guard of the compensation": (
        "compensated.py",
        "total), tl.where(finite, comp, 0.0)",
        "total), comp",
    ),
    "merge: guards the sum before the compensations": (
        "compensated.py",
        "finite = tl.abs(acc) < INF",
        "finite = tl.abs(total) < INF",
    ),
    "power_of_two: not exact": (
        "compensated.py",
        "return (biased << 23).to(tl.float32, bitcast=True)",
        "return tl.where(biased > 0, tl.exp(exponent * 0.6931471805599453), 0.0)",
    ),
    "power_of_two: bias": ("compensated.py", ".to(tl.int32) + 127", ".to(tl.int32) + 126"),
    "power_of_two: never 0": (
        "compensated.py",
        "tl.maximum(exponent, -127.0)",
        "tl.maximum(exponent, -126.0)",
    ),
    "row_sum: grid too fine for the sum": (
        "compensated.py",
        "(2.0 * x.shape[1])",
        "(0.25 * x.shape[1])",
    ),
    "row_sum: grid too coarse": (
        "compensated.py",
        "(2.0 * x.shape[1])",
        "(256.0 * x.shape[1])",
    ),
    "row_sum: no low part": (
        "compensated.py",
        "comp = tl.sum(x - high, axis=1)",
        "comp = tl.sum(high - high, axis=1)",
    ),
    "row_sum: sign of the low part": (
        "compensated.py",
        "comp = tl.sum(x - high, axis=1)",
        "comp = tl.sum(high - x, axis=1)",
    ),
    "row_sum: no finite guard": (
        "compensated.py",
        "exact = (exponent <= 127.0) & (tl.abs(comp) < INF)",
        "exact = exponent <= 127.0",
    ),
    "row_sum: no guard of the range": (
        "compensated.py",
        "exact = (exponent <= 127.0) & (tl.abs(comp) < INF)",
        "exact = tl.abs(comp) < INF",
    ),
    "accumulate_product: no compensation": (
        "gemm.py",
        "dot_add(a, b, comp, SEED, DOT_PRECISION)",
        "dot(a, b, DOT_PRECISION)",
    ),
    "accumulate_product: operands swapped": (
        "gemm.py",
        "fold(acc, dot_add(a, b, comp, SEED, DOT_PRECISION))",
        "fold(dot_add(a, b, comp, SEED, DOT_PRECISION), acc)",
    ),
    "accumulate_product: old compensation kept": (
        "gemm.py",
        "acc, comp = fold(acc, dot_add(a, b, comp, SEED, DOT_PRECISION))",
        "acc, _ = fold(acc, dot_add(a, b, comp, SEED, DOT_PRECISION))",
    ),
    "accumulate_product: plain reads the compensation": (
        "gemm.py",
        "acc = dot_add(a, b, acc, SEED, DOT_PRECISION)",
        "acc = dot_add(a, b, acc + comp, SEED, DOT_PRECISION)",
    ),
    "add_weights: sum not rescaled": (
        "softmax.py",
        "kahan_add(total * rescale, comp * rescale, tile_sum)",
        "kahan_add(total, comp * rescale, tile_sum)",
    ),
    "add_weights: compensation not rescaled": (
        "softmax.py",
        "kahan_add(total * rescale, comp * rescale, tile_sum)",
        "kahan_add(total * rescale, comp, tile_sum)",
    ),
    "raise_pivot: rescale not exact": (
        "softmax.py",
        "rescale = power_of_two(pivot - base)",
        "rescale = tl.exp((pivot - base) * LN2)",
    ),
    "raise_pivot: no finite base": (
        "softmax.py",
        "base = tl.where(raised == NEG_INF, 0.0, raised)",
        "base = raised",
    ),
    "online_update: pivot not a whole number": (
        "softmax.py",
        "    if WHOLE:\n        candidate = tl.ceil(candidate)\n    elif",
        "    if",
    ),
    "online_update: row maximum and inexact rescale": (
        "softmax.py",
        "        candidate = tl.ceil(candidate)\n",
        "        candidate = candidate + 0.0\n    WHOLE: tl.constexpr = False\n    if WHOLE:\n"
        "        candidate = candidate + 0.0\n",
    ),
    "online_update: pivot rounded down": ("softmax.py", "tl.ceil(candidate)", "tl.floor(candidate)"),
    "online_update: fp16 pivot not lowered": (
        "softmax.py",
        "lowered = candidate - FP16_PIVOT_DROP",
        "lowered = candidate",
    ),
    "online_update: fp16 pivot always lowered": (
        "softmax.py",
        "tl.where(tl.abs(candidate) < FP16_PIVOT_DROP_END, lowered, candidate)",
        "lowered",
    ),
    "online_update: 16-bit weights summed unrounded": (
        "softmax.py",
        "rescale, factors.to(tl.float32), METHOD",
        "rescale, weights, METHOD",
    ),
    "online_update: log-sum-exp of rounded weights": (
        "softmax.py",
        "add_weights(lse_sum, lse_sum_comp, rescale, weights, METHOD)",
        "add_weights(lse_sum, lse_sum_comp, rescale, factors.to(tl.float32), METHOD)",
    ),
    "online_update: accumulator not rescaled": (
        "softmax.py",
        "acc = acc * rescale[:, None]",
        "acc = acc * 1.0",
    ),
    "online_update: compensation not rescaled": (
        "softmax.py",
        "acc, acc_comp * rescale[:, None], factors",
        "acc, acc_comp.to(tl.float32), factors",
    ),
    "online_update: compensation not kept": (
        "softmax.py",
        "acc_comp = comp.to(acc_comp.dtype)",
        "acc_comp = (comp * 0.0).to(acc_comp.dtype)",
    ),
    "online_merge: factors swapped": (
        "softmax.py",
        "_pivot, _base, rescale_b = raise_pivot(pivot_b, pivot_a, WHOLE)",
        "_pivot, _base, rescale_b = raise_pivot(pivot_a, pivot_b, WHOLE)",
    ),
    "online_merge: sum's compensation not rescaled": (
        "softmax.py",
        "row_sum_comp_b * rescale_b",
        "row_sum_comp_b",
    ),
    "online_merge: log-sum-exp's compensation not rescaled": (
        "softmax.py",
        "lse_sum_comp_a * rescale_a",
        "lse_sum_comp_a",
    ),
    "online_merge: accumulator's compensation not rescaled": (
        "softmax.py",
        "acc_comp_b * column_b",
        "acc_comp_b.to(tl.float32)",
    ),
    "online_finalize: no compensation of the sum": (
        "softmax.py",
        "divisor = row_sum + row_sum_comp",
        "divisor = row_sum",
    ),
    "online_finalize: no compensation of the output": (
        "softmax.py",
        "tl.div_rn(acc + acc_comp, ",
        "tl.div_rn(acc, ",
    ),
    "online_finalize: no compensation of the log-sum-exp": (
        "softmax.py",
        "total = lse_sum + lse_sum_comp",
        "total = lse_sum",
    ),
    "online_finalize: log-sum-exp of the divisor": (
        "softmax.py",
        "    if SEPARATE_LSE:\n        total",
        "    if False:\n        total",
    ),
    "online_finalize: empty rows divided": (
        "softmax.py",
        "safe_divisor = tl.where(empty, 1.0, divisor)",
        "safe_divisor = divisor",
    ),
    "online_finalize: log-sum-exp of empty rows": (
        "softmax.py",
        "tl.where(empty, NEG_INF, lse)",
        "lse",
    ),
}

UNCHANGED = "unchanged"


def calls() -> Iterator[tuple[str, str, tuple[object, ...]]]:
    """(module, test, arguments after the device), quickest first."""
    compensated, gemm = "test_block_compensated", "test_block_gemm"
    step, online = "test_block_softmax", "test_block_online_softmax"
    for name in (
        "test_two_sum_is_exact",
        "test_fast_two_sum_is_exact_where_the_first_is_larger",
        "test_fold_and_kahan_add_lose_no_more_than_a_rounding",
        "test_merge_loses_a_rounding_of_the_compensations",
        "test_merge_is_symmetric_bit_for_bit",
        "test_compensation_never_makes_a_nan",
        "test_merge_at_the_end_of_the_range",
        "test_power_of_two_is_exact_over_the_whole_range",
        "test_row_sum_falls_back_to_the_plain_sum",
    ):
        yield compensated, name, ()
    yield compensated, "test_row_sum", (64,)
    yield gemm, "test_a_sum_starts_from_its_compensation", ()
    yield step, "test_raise_pivot", ()
    yield step, "test_add_weights", ()
    import torch

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        yield step, "test_one_update", ("kahan", dtype)
    yield step, "test_one_update", ("plain", torch.float32)
    yield step, "test_16_bit_weights_are_summed_as_rounded", ()
    for flag in (True, False):
        yield step, "test_merge_of_two_states", (flag,)
        yield step, "test_finalize", (flag,)
    variants = importlib.import_module(online).CORE
    for variant in variants[:2]:
        yield online, "test_hostile_rows", (variant,)
    yield online, "test_the_error_does_not_grow_with_the_keys", (variants[0], 1.0)


def fresh(folder: Path) -> None:
    """Forget the blocks, and what was made of them, and import from `folder` from now on."""
    names = {path.stem for path in HERE.glob("*.py")} | {"blocks"}
    for name in list(sys.modules):
        if name.partition(".")[0] in names and name not in (__name__, "block_device"):
            del sys.modules[name]
    sys.path[0] = str(folder)
    importlib.invalidate_caches()


def first_failure(device: object) -> str:
    for module, name, arguments in calls():
        found: ModuleType = importlib.import_module(module)
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
    sys.path.insert(0, "")
    sys.path.insert(1, str(HERE))
    from block_device import Device

    results = {}
    for number, name in enumerate([UNCHANGED, *MUTANTS]):
        home = folder / str(number)
        write(home, name)
        fresh(home)
        results[name] = first_failure(Device("interpreter"))
        origin = importlib.import_module("blocks").__file__
        if origin is None or not Path(origin).is_relative_to(home):
            raise RuntimeError(f"{name}: tested {origin} instead of the mutant in {home}")
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
